"""The 12 Hz codec's decoder: 16 codes per frame to 1920 samples, causal, exact in chunks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.kernels.types import SnakeParams
from stentor.layers.attention import Attend
from stentor.layers.codec_blocks import ConvNeXt, Upsample
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    SnakeBase,
    StreamingState,
    cast_codec,
    context_steps,
    convolve,
    state_columns,
    upcast,
)
from stentor.layers.linear import Linear
from stentor.layers.rope import Rope, angles
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.transformer import Block, Stack, StackConfig
from stentor.layers.types import NO_PAGES, CodecCall, Column, State
from stentor.models.qwen3_tts.config import DecoderConfig

USAGE_FLOOR = 1e-5
WINDOW = "window"
CLOCK = "clock"
POSITIONS = 32768  # frames a stream may have, with its reference: 43 minutes


class LayerScale(nn.Module):
    """Learned gain per channel on a residual branch (Touvron et al., 2021). After loading, the branch's weights
    include it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def scale_outputs(linear: nn.Linear, scale: Tensor) -> None:
    """Multiply the outputs of `linear` by `scale` [outputs]."""
    linear.weight.data = linear.weight.data * scale.data[:, None]
    if linear.bias is not None:
        linear.bias.data = linear.bias.data * scale.data


class DecoderBlock(Block):
    """Pre-norm block with layer scales, which the weights include after loading."""

    def __init__(self, c: StackConfig) -> None:
        super().__init__(c)
        self.self_attn_layer_scale = LayerScale(c.hidden)
        self.mlp_layer_scale = LayerScale(c.hidden)

    def process_weights_after_loading(self) -> None:
        scale_outputs(self.self_attn.o_proj, self.self_attn_layer_scale.scale)
        scale_outputs(self.mlp.down_proj, self.mlp_layer_scale.scale)
        del self.self_attn_layer_scale, self.mlp_layer_scale


class DecoderTransformer(Stack):
    """Windowed self-attention over frames: latent [B, n, latent] -> the same."""

    def __init__(self, c: DecoderConfig) -> None:
        super().__init__(c.stack)
        self.layers = nn.ModuleList(DecoderBlock(c.stack) for _ in range(c.stack.layers))
        self.input_proj = Linear(c.latent, c.stack.hidden)
        self.output_proj = Linear(c.stack.hidden, c.latent)

    def forward(self, x: Tensor, attend: Attend, rope: Rope | None = None, pos: Tensor | None = None) -> Tensor:
        out: Tensor = self.output_proj(super().forward(self.input_proj(x), attend, rope, pos))
        return out


class SnakeBeta(SnakeBase):
    """x + sin(x e^alpha)^2 / (e^beta + 1e-9) per channel (Ziyin et al., 2020, with its own magnitude)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def reference(self, x: Tensor) -> Tensor:
        alpha, beta = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return x + torch.sin(x * alpha).pow(2) * (1.0 / (beta + 1e-9))

    def params(self) -> SnakeParams:
        return SnakeParams(self.alpha.exp(), 1.0 / (self.beta.exp() + 1e-9))


class ScaledConvNeXt(ConvNeXt):
    """A ConvNeXt block with a gain per channel. After loading, the MLP's weights include it."""

    gamma: Tensor | None

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def process_weights_after_loading(self) -> None:
        assert self.gamma is not None
        scale_outputs(self.pwconv2, self.gamma)
        self.gamma = None


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv1d(channels, channels, 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        y = convolve(self.conv1, x, state, before=self.act1, after=self.act2)
        return convolve(self.conv2, y, state, residual=x)


class UpBlock(nn.Module):
    """Snake, transposed convolution, three dilated residual units: halves the channels, multiplies the rate."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        up = CausalConvTranspose1d(channels, half, rate)
        self.block = nn.ModuleList([SnakeBeta(channels), up, *(ResidualUnit(half, d) for d in (1, 3, 9))])

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        act, up, *units = self.block
        x = convolve(up, x, state, before=act)
        for unit in units:
            x = unit(x, state)
        return x


class Codebook(nn.Module):
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, dim))

    def forward(self) -> Tensor:
        """Centroids [size, dim]."""
        return self.embedding_sum / self.cluster_usage.clamp_min(USAGE_FLOOR)[:, None]


class VectorQuantizer(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self._codebook = Codebook(c.codebook_size, c.codebook_dim // 2)

    def forward(self) -> Tensor:
        centroids: Tensor = self._codebook()
        return centroids


class Residual(nn.Module):
    def __init__(self, c: DecoderConfig, codebooks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VectorQuantizer(c) for _ in range(codebooks))


class Quantizer(nn.Module):
    """Residual codebooks between one pair of projections, in the checkpoint's layout."""

    def __init__(self, c: DecoderConfig, codebooks: int) -> None:
        super().__init__()
        inner = c.codebook_dim // 2
        self.vq = Residual(c, codebooks)
        self.input_proj = nn.Conv1d(c.codebook_dim, inner, 1, bias=False)
        self.output_proj = nn.Conv1d(inner, c.codebook_dim, 1, bias=False)

    def tables(self) -> list[Tensor]:
        """One table [codebook_size, codebook_dim] per codebook, projected."""
        weight = self.output_proj.weight[:, :, 0]
        return [F.linear(layer(), weight) for layer in self.vq.layers]


class SplitQuantizer(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.rvq_first = Quantizer(c, 1)
        self.rvq_rest = Quantizer(c, c.codebooks - 1)


class Decoder(nn.Module):
    """The decoder as the checkpoint names it. `process_weights_after_loading` must follow the loading of weights."""

    table: Tensor
    offset: Tensor

    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.config = c
        self.quantizer: SplitQuantizer | None = SplitQuantizer(c)
        self.pre_conv = CausalConv1d(c.codebook_dim, c.latent, 3)
        self.pre_transformer = DecoderTransformer(c)
        self.upsample = nn.ModuleList(Upsample(c.latent, ratio, ScaledConvNeXt) for ratio in c.ratios)
        widths = [c.width // 2**i for i in range(len(c.rates) + 1)]
        blocks = [UpBlock(width, rate) for width, rate in zip(widths, c.rates, strict=False)]
        last = [SnakeBeta(widths[-1]), CausalConv1d(widths[-1], 1, 7)]
        self.decoder = nn.ModuleList([CausalConv1d(c.latent, c.width, 7), *blocks, *last])
        self.rope: Rope | None = None

    @property
    def dtype(self) -> torch.dtype:
        """What audio is made in."""
        return self.pre_conv.weight.dtype

    def process_weights_after_loading(self, dtype: torch.dtype | None = None) -> None:
        """Prepare for decoding. Later calls do nothing.

        In the precision of the weights, the 16 codebooks and their projections become one table, gains are multiplied
        into the weights in front of them, and the RoPE table is made. Then the weights are rounded to `dtype`, if it is
        given.
        """
        if self.quantizer is None:
            return
        for module in self.modules():
            if isinstance(module, DecoderBlock | ScaledConvNeXt):
                module.process_weights_after_loading()
        tables = [*self.quantizer.rvq_first.tables(), *self.quantizer.rvq_rest.tables()]
        self.register_buffer("table", torch.cat(tables).detach(), persistent=False)
        device, c = self.table.device, self.config
        offset = torch.arange(c.codebooks, device=device) * c.codebook_size
        self.register_buffer("offset", offset, persistent=False)
        self.quantizer = None
        rope = Rope(angles(c.stack.head_dim, POSITIONS, c.theta), self.table.dtype, interleaved=False, in_float32=False)
        self.rope = rope.to(device)
        cast_codec(self, self.dtype if dtype is None else dtype)

    def forward(
        self, codes: Tensor, pos: Tensor, state: StreamingState | None = None, heard: int | None = None
    ) -> Tensor:
        """codes [B, n, codebooks] at frame positions pos [B, n] -> samples [B, n * hop] in [-1, 1], or of the last
        `heard` frames. The transformer takes all frames, and the convolutions only these."""
        assert self.rope is not None, "process_weights_after_loading comes first"
        x = F.embedding(codes + self.offset, self.table).sum(-2).to(self.dtype).transpose(1, 2)
        x = convolve(self.pre_conv, x, state).transpose(1, 2)
        kv = WindowKV(WINDOW, self.config.window, pos, state)
        x = self.pre_transformer(x, kv.attend, self.rope, pos)
        x = (x if heard is None else x[:, -heard:]).transpose(1, 2)
        for up in self.upsample:
            x = up(x, state)
        first, *blocks, snake, last = self.decoder
        x = convolve(first, x, state)
        for block in blocks:
            x = block(x, state)
        return upcast(convolve(last, x, state, before=snake))[:, 0].clamp(-1.0, 1.0)


class Codec:
    """The decoder as a stateful codec (implements models.base.Codec)."""

    pages = NO_PAGES

    def __init__(self, decoder: Decoder) -> None:
        c = decoder.config
        self.decoder = decoder
        self.context = context_steps(decoder.upsample, decoder.decoder)
        window = window_columns(WINDOW, c.stack.layers, c.stack.kv_heads, c.stack.head_dim, c.window, decoder.dtype)
        self.columns: Mapping[str, Column] = {**state_columns(decoder), **window, CLOCK: Column(dtype=torch.int64)}

    def decode(self, frames: Tensor, state: State, call: CodecCall | None = None) -> tuple[Tensor, State]:
        """frames [B, n, codebooks] -> samples [B, n * hop] float32 in [-1, 1], and the streams' next state. A silent
        call gives the samples of the last frames, on which the state depends."""
        streaming = StreamingState(state)
        count = frames.shape[1]
        pos = state[CLOCK][:, None] + torch.arange(count, device=frames.device)
        heard = self.context if call is not None and call.silent else None
        samples = self.decoder(frames.long(), pos, streaming, heard)
        return samples.float(), {**streaming.new, CLOCK: state[CLOCK] + count}
