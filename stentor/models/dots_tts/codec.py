"""AudioVAE: a causal encoder of recordings, and BigVGAN behind an LSTM. Modules are named as in
vocoder.safetensors.

The decoder looks two latents ahead, in its first convolution alone. A call decodes 4 n + 2 latents:
those that were owed and those of n patches, of which the last two count only where the stream ends
there. In a stream's first call nothing is owed, so the samples of its latents stand in front, and
two more latents behind do not count.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.layers.codec_blocks import SnakeBeta
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    CausalModule,
    StreamingState,
    cast_codec,
    upcast,
)
from stentor.layers.types import CodecCall, Column, State
from stentor.models.dots_tts.config import LOOKAHEAD, VocoderConfig

TAPS = 12  # of the filters of a resampling by two
LSTM_WIDTH = 4
"""Width of the LSTM, in latents."""
SLOPE = 0.2
INNER_SLOPE = 0.01
ENCODER_PAIRS = 6


class ChunkState(StreamingState):
    """State of the decoder's convolutions in a call of `latents`, whose last ones are decoded ahead
    of the stream.

    first: [B] bool, the rows whose stream begins with this call. Twice as many latents are ahead in
    those.
    """

    def __init__(self, old: State, first: Tensor, latents: int) -> None:
        super().__init__(old)
        self.first = first
        self._latents = latents

    def ahead(self, steps: int) -> int:
        """How many of a convolution's `steps` are ahead of a stream that has begun before this
        call."""
        return LOOKAHEAD * steps // self._latents

    def concat_history(self, key: str, x: Tensor, count: int, dim: int) -> Tensor:
        """Put the `count` stored steps of `key` before x along `dim`. Store the last ones before
        what is ahead."""
        y = torch.cat((self.old[key].movedim(1, dim).to(x.dtype), x), dim)
        steps = x.shape[dim]
        ahead = self.ahead(steps)
        usual, first = (y.narrow(dim, steps - n, count).movedim(dim, 1) for n in (ahead, 2 * ahead))
        self.new[key] = torch.where(self.first.view(-1, *[1] * (y.ndim - 1)), first, usual)
        return y


class Filter(nn.Module):
    """A low-pass filter of twice the rate, `filter` [channels or 1, 1, TAPS]."""

    def __init__(self, channels: int, own: bool) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.empty(channels if own else 1, 1, TAPS))

    def taps(self, x: Tensor) -> Tensor:
        """[channels of x, 1, TAPS] in its dtype."""
        return self.filter.to(x.dtype).expand(x.shape[1], 1, TAPS)


class LowPass(nn.Module):
    def __init__(self, channels: int, own: bool) -> None:
        super().__init__()
        self.lowpass = Filter(channels, own)


class Activation(nn.Module):
    """SnakeBeta at twice the rate, without the aliases that it would make. x [B, C, n] -> [B, C,
    n].

    Zeros stand before a stream, and at twice the rate its first value as often as it takes. A
    result depends on the `tail` inputs before it: six taps of the way up for each of the six values
    on the way down.
    """

    tail = TAPS - 1

    def __init__(self, channels: int, own: bool = False) -> None:
        super().__init__()
        self.channels = channels
        self.key = ""
        self.act = SnakeBeta(channels)
        self.upsample = Filter(channels, own)
        self.downsample = LowPass(channels, own)

    def forward(self, x: Tensor, state: ChunkState) -> Tensor:
        count = 2 * x.shape[2]
        x = state.concat_history(self.key, x, self.tail, dim=2)
        y = F.conv_transpose1d(x, self.upsample.taps(x), stride=2, groups=self.channels)
        y = self.act(2 * y[..., self.tail : 2 * self.tail + count])
        before = torch.where(
            state.first[:, None, None], y[..., self.tail : self.tail + 1], y[..., : self.tail]
        )
        y = torch.cat((before, y[..., self.tail :]), 2)
        return F.conv1d(y, self.downsample.lowpass.taps(y), stride=2, groups=self.channels)


def convolve_activated(
    act: nn.Module, conv: nn.Module, x: Tensor, state: ChunkState, residual: Tensor | None = None
) -> Tensor:
    """residual + conv(act(x)) for x [B, C, n]. With kernels, what is returned is a view of
    channels-last memory."""
    assert isinstance(act, Activation)
    assert isinstance(conv, CausalConv1d)
    if not kernels.conv_kernels_enabled(x):
        y: Tensor = conv(act(x, state), state)
        if residual is None:
            return y
        return residual + y
    from stentor.models.dots_tts import codec_kernels

    y, state.new[act.key], state.new[conv.key] = codec_kernels.activation(
        x.transpose(1, 2),
        state.old[act.key],
        state.first,
        act.act.cached_params or act.act.params(),
        act.upsample.filter,
        act.downsample.lowpass.filter,
        state.old[conv.key],
        state.ahead(x.shape[2]),
    )
    if residual is None:
        residual = None
    else:
        residual = residual.transpose(1, 2)
    return kernels.conv1d.conv1d(
        y, conv.weight, conv.bias, conv.dilation, None, residual
    ).transpose(1, 2)


class ResidualBlock(nn.Module):
    """AMP block: dilated convolutions between activations, each pair with a skip."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(CausalConv1d(channels, channels, kernel, d) for d in dilations)
        self.convs2 = nn.ModuleList(CausalConv1d(channels, channels, kernel) for _ in dilations)
        self.activations = nn.ModuleList(Activation(channels) for _ in range(2 * len(dilations)))

    def forward(self, x: Tensor, state: ChunkState) -> Tensor:
        pairs = zip(
            self.convs1, self.convs2, self.activations[::2], self.activations[1::2], strict=True
        )
        for dilated, conv, before, between in pairs:
            x = convolve_activated(
                between, conv, convolve_activated(before, dilated, x, state), state, residual=x
            )
        return x


class Up(nn.ModuleList):
    """A transposed convolution, as the checkpoint names it."""

    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__([CausalConvTranspose1d(inputs, outputs, rate)])

    def forward(self, x: Tensor, state: ChunkState) -> Tensor:
        conv = self[0]
        assert isinstance(conv, CausalConvTranspose1d)
        if kernels.conv_kernels_enabled(x):
            x = state.concat_history(conv.key, x.transpose(1, 2), conv.tail, dim=1)
            return kernels.conv1d.conv_transpose1d(
                x, conv.weight, conv.bias, conv.stride, None, None
            ).transpose(1, 2)
        return conv.forward(x, state)


class Generator(nn.Module):
    """BigVGAN: [B, D, n + 4] latents with two on each side -> samples [B, n * hop] in [-1, 1]."""

    def __init__(self, c: VocoderConfig) -> None:
        super().__init__()
        widths = [c.channels >> i for i in range(len(c.up_rates) + 1)]
        self.conv_pre = nn.Conv1d(c.latent, widths[0], 2 * LOOKAHEAD + 1)
        ups = zip(widths, widths[1:], c.up_rates, strict=False)
        self.ups = nn.ModuleList(Up(a, b, r) for a, b, r in ups)
        kinds = list(zip(c.kernels, c.dilations, strict=True))
        self.resblocks = nn.ModuleList(ResidualBlock(w, k, d) for w in widths[1:] for k, d in kinds)
        self.activation_post = Activation(widths[-1], own=True)
        self.conv_post = CausalConv1d(widths[-1], 1, 7, bias=c.last_bias)
        self.kinds = len(kinds)
        self.tanh = c.tanh

    def body(self, x: Tensor, state: ChunkState) -> Tensor:
        """From what `conv_pre` gave [B, C, n] to samples [B, n * hop] float32."""
        for i, up in enumerate(self.ups):
            x = up(x, state)
            blocks = self.resblocks[i * self.kinds : (i + 1) * self.kinds]
            x = functools.reduce(torch.add, [block(x, state) for block in blocks]) / self.kinds
        y: Tensor = upcast(convolve_activated(self.activation_post, self.conv_post, x, state))[:, 0]
        if self.tanh:
            return y.tanh()
        return y.clamp(-1, 1)


class SkipLSTM(nn.Module):
    """LSTM layers with one skip around all of them."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, new = self.lstm(x, state)
        return x + y, new


class MILayer(nn.ModuleList):
    """Linear layers around an LSTM, over time."""

    def __init__(self, latent: int, layers: int) -> None:
        width = LSTM_WIDTH * latent
        super().__init__(
            [nn.Linear(latent, width), SkipLSTM(width, layers), nn.Linear(width, latent)]
        )

    def run(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [B, n, latent] and the state [layers, B, width] of each before it."""
        wide, lstm, narrow = self
        y, new = lstm(wide(x), state)
        return narrow(y), new


class Decoder(nn.Module):
    """Normalised patches of latents to audio. Implements Codec. vocoder.safetensors without its
    encoder."""

    def __init__(self, c: VocoderConfig, patch: int) -> None:
        super().__init__()
        self.config = c
        self.patch = patch
        self.post_proj = nn.Conv1d(c.latent, c.latent, 1)
        self.dec_mi_layer = MILayer(c.latent, c.lstm_layers)
        self.decoder = Generator(c)
        self.register_buffer("mean", torch.zeros(c.latent), persistent=False)
        self.register_buffer("std", torch.ones(c.latent), persistent=False)

    mean: Tensor
    std: Tensor

    @property
    def late(self) -> int:
        """Samples of a chunk that come with the next one."""
        return LOOKAHEAD * self.config.hop

    @property
    def columns(self) -> dict[str, Column]:
        """State of one stream."""
        c = self.config
        dtype = self.post_proj.weight.dtype
        columns = {
            key: Column((module.tail, module.channels), dtype) for key, module in self._causal()
        }
        lstm = Column((c.lstm_layers, LSTM_WIDTH * c.latent), dtype)
        return {
            **columns,
            "h": lstm,
            "c": lstm,
            "latents": Column((2 * LOOKAHEAD, c.latent), dtype),
        }

    def _causal(self) -> Iterator[tuple[str, CausalModule | Activation]]:
        for name, module in self.named_modules():
            if isinstance(module, CausalModule | Activation) and module.tail:
                module.key = name
                yield name, module

    def decode(self, frames: Tensor, state: State, call: CodecCall) -> tuple[Tensor, State]:
        """frames [B, n, patch, D] -> samples [B, late + n * hop of a patch], next state."""
        dtype = self.post_proj.weight.dtype
        first = call.start == 0
        raw = (frames.float() * self.std + self.mean).flatten(1, 2).to(dtype)
        lstm = tuple(state[name].transpose(0, 1).contiguous() for name in ("h", "c"))
        x, new = self.dec_mi_layer.run(
            self.post_proj(raw.transpose(1, 2)).transpose(1, 2), (lstm[0], lstm[1])
        )
        exists = (
            torch.arange(x.shape[1], device=x.device)
            < (call.end - call.start)[:, None] * self.patch
        )
        x = torch.cat((state["latents"], torch.where(exists[..., None], x, 0.0)), 1)
        latents = x.shape[1] - LOOKAHEAD
        streaming = ChunkState(state, first, latents)
        y = self.decoder.conv_pre(F.pad(x, (0, 0, 0, 2 * LOOKAHEAD)).transpose(1, 2))
        begins = first[:, None, None]
        y = self.decoder.body(torch.where(begins, y[..., LOOKAHEAD:], y[..., :latents]), streaming)
        samples = torch.where(first[:, None], F.pad(y, (self.late, 0))[:, : y.shape[1]], y)
        lasting = {name: t.transpose(0, 1) for name, t in zip(("h", "c"), new, strict=True)}
        return samples, {**streaming.new, **lasting, "latents": x[:, -2 * LOOKAHEAD :]}


class EncoderConv(nn.Module):
    """A convolution over a whole recording, with zeros on both sides. Named as a layer of the
    checkpoint's."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, right: int = 0
    ) -> None:
        super().__init__()
        self.layer = nn.Conv1d(inputs, outputs, kernel, stride)
        self.padding = (kernel - 1 - right, right)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(F.pad(x, self.padding))
        return out


class EncoderPair(nn.ModuleDict):
    """Two convolutions with a skip, the first one dilated."""

    def __init__(self, channels: int, dilation: int) -> None:
        dilated = nn.Conv1d(channels, channels, 3, dilation=dilation)
        super().__init__({"2": dilated, "5": nn.Conv1d(channels, channels, 3)})
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        y = self["2"](F.pad(F.leaky_relu(x, INNER_SLOPE), (2 * self.dilation, 0)))
        out: Tensor = x + self["5"](F.pad(F.leaky_relu(y, INNER_SLOPE), (2, 0)))
        return out


class EncoderPairs(nn.Module):
    """Residual pairs of convolutions, whose dilation doubles."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderPair(channels, 1 << i) for i in range(ENCODER_PAIRS))

    def forward(self, x: Tensor) -> Tensor:
        for pair in self.layers:
            x = pair(x)
        return x


class GeneratorOfLatents(nn.Module):
    def __init__(self, c: VocoderConfig) -> None:
        super().__init__()
        widths = c.down_channels
        self.generator = nn.ModuleDict()
        self.generator["0"] = EncoderConv(1, widths[0], 3)
        for i, rate in enumerate(c.down_rates):
            self.generator[str(3 * i + 2)] = EncoderConv(widths[i], widths[i + 1], 2 * rate, rate)
            self.generator[str(3 * i + 3)] = EncoderPairs(widths[i + 1])
        self.generator[str(3 * len(c.down_rates) + 2)] = EncoderConv(
            widths[-1], c.latent, 5, right=LOOKAHEAD
        )

    def forward(self, x: Tensor) -> Tensor:
        first, *body, last = self.generator.values()
        x = F.leaky_relu(first(x), SLOPE)
        for down, pairs in zip(body[::2], body[1::2], strict=True):
            x = F.leaky_relu(pairs(down(x)), SLOPE)
        out: Tensor = last(x)
        return out


class Encoder(nn.Module):
    """A recording [n], a whole number of patches, to the mean and the logarithm of the spread of
    its latents."""

    def __init__(self, c: VocoderConfig) -> None:
        super().__init__()
        self.audio_encoder = GeneratorOfLatents(c)
        self.enc_mi_layer = MILayer(c.latent, c.lstm_layers)
        self.pre_proj = nn.Conv1d(c.latent, 2 * c.latent, 1)

    def forward(self, wav: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log spread [n / hop, D]."""
        x = self.audio_encoder(wav[None, None].to(self.pre_proj.weight.dtype))
        y, _ = self.enc_mi_layer.run(x.transpose(1, 2))
        mean, spread = self.pre_proj(y.transpose(1, 2))[0].T.chunk(2, dim=1)
        return mean, spread


def cast_vocoder(half: Decoder | Encoder, dtype: torch.dtype) -> None:
    """Cast a half of the codec to `dtype`, as its kernels read it."""
    cast_codec(half, dtype)
    for module in half.modules():
        if isinstance(module, nn.LSTM):
            module.flatten_parameters()  # else the library of a GPU copies all weights in each call
