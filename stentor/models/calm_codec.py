"""The codec's decoder: latents to samples, causal and exact in chunks of any number of frames.

Its convolutions are those of SEANet. Attributes are named as in checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    CausalModule,
    StreamingState,
    convolve,
    state_columns,
    upcast,
)
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.types import CodecCall, Column, State
from stentor.models.calm_blocks import Transformer, make_rope
from stentor.models.calm_config import HOP, RATIOS, UPSAMPLING, CalmConfig, SeanetConfig


class Conv(nn.Module):
    """A causal convolution under the name `conv`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.conv = CausalConv1d(
            inputs,
            outputs,
            kernel,
            stride=stride,
            left=kernel - stride,
        )

    def forward(
        self, x: Tensor, state: StreamingState | None, residual: Tensor | None = None
    ) -> Tensor:
        """x [B, inputs, n] -> [B, outputs, n / stride]."""
        return convolve(
            self.conv,
            x,
            state,
            residual=residual,
        )


class ConvTranspose(nn.Module):
    """Up-sampling under the name `convtr`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
    ) -> None:
        super().__init__()
        self.convtr = CausalConvTranspose1d(
            inputs,
            outputs,
            stride,
        )

    def forward(
        self,
        x: Tensor,
        state: StreamingState | None,
    ) -> Tensor:
        """x [B, inputs, n] -> [B, outputs, n * stride]."""
        return convolve(self.convtr, x, state)


class ResidualUnit(nn.Module):
    """x + conv1x1(ELU(conv(ELU(x))))."""

    def __init__(
        self,
        channels: int,
        c: SeanetConfig,
    ) -> None:
        super().__init__()
        inner = channels // c.compress
        first = Conv(channels, inner, c.residual_kernel)
        self.block = nn.ModuleList(
            [nn.ELU(), first, nn.ELU(inplace=True), Conv(inner, channels, 1)]
        )

    def forward(
        self,
        x: Tensor,
        state: StreamingState | None,
    ) -> Tensor:
        act, first, _, second = self.block
        out: Tensor = second(
            act(first(act(x), state)),
            state,
            residual=x,
        )
        return out


class Seanet(nn.Module):
    """Layers one after the other, under the name `model`."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.model = nn.ModuleList(layers)

    def forward(
        self,
        x: Tensor,
        state: StreamingState | None,
    ) -> Tensor:
        for layer in self.model:
            if isinstance(layer, nn.ELU):
                x = layer(x)
            else:
                x = layer(x, state)
        return x


class DepthwiseUpsample(CausalModule):
    """A transposed convolution of each channel by itself, with a kernel of two strides and without
    bias."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 1)
        self.weight = nn.Parameter(torch.empty(channels, 1, 2 * UPSAMPLING))
        self.bias = None

    def forward(
        self,
        x: Tensor,
        state: StreamingState | None,
    ) -> Tensor:
        """x [B, C, n] -> [B, C, n * UPSAMPLING], each of its input column and the one before."""
        x = self.with_history(x, state)[..., None]
        y = torch.addcmul(
            x[:, :, :-1] * self.weight[:, :, UPSAMPLING:],
            x[:, :, 1:],
            self.weight[:, :, :UPSAMPLING],
        )
        return y.flatten(2)


WINDOW = "window"
CLOCK = "clock"
CPU_FRAMES = 8
"""Frames that a CPU decodes at a time: what it makes of them stays in its cache."""
FADE = 120
"""Samples at the beginning of speech that are faded in: a codec without a past starts with a
step."""


def decoder(width: int, c: SeanetConfig) -> Seanet:
    """Steps [B, width, n] -> samples [B, 1, 120 n]."""
    channels = 2 ** len(RATIOS) * c.filters
    layers: list[nn.Module] = [Conv(width, channels, c.kernel)]
    for ratio in RATIOS:
        layers += [
            nn.ELU(inplace=True),
            ConvTranspose(channels, channels // 2, ratio),
            ResidualUnit(channels // 2, c),
        ]
        channels //= 2
    return Seanet([*layers, nn.ELU(inplace=True), Conv(channels, 1, c.last_kernel)])


class Decoder(nn.Module):
    """The decoder's half of the checkpoint's `mimi`, and the scale of latents. Implements Codec."""

    emb_mean: Tensor
    emb_std: Tensor

    def __init__(self, c: CalmConfig) -> None:
        super().__init__()
        self.config = c.decoder
        width = c.decoder.hidden
        self.output_proj = nn.Parameter(torch.empty(width, c.latent, 1))
        self.upsample = DepthwiseUpsample(width)
        self.transformer = Transformer(
            c.decoder,
            scaled=True,
        )
        self.decoder = decoder(width, c.decoder_seanet)
        self.emb_mean = nn.Parameter(torch.empty(c.latent))
        self.emb_std = nn.Parameter(torch.empty(c.latent))
        self.rope: Rope | None = None
        self.columns: dict[str, Column] = {}

    def process_weights_after_loading(self, frames: int) -> None:
        """Make the RoPE table for streams of at most `frames` frames, and the columns of the
        state."""
        c = self.config
        weight = self.output_proj
        self.rope = make_rope(c, frames * UPSAMPLING).to(weight.device)
        self.columns = {
            **state_columns(self),
            **window_columns(WINDOW, c.layers, c.heads, c.head_dim, c.window, weight.dtype),
            CLOCK: Column(dtype=torch.int64),
        }
        fade = torch.ones(HOP)
        fade[:FADE] = torch.linspace(0, 1, FADE)
        self.register_buffer(
            "fade",
            fade.to(weight.device),
            persistent=False,
        )

    def decode(
        self, frames: Tensor, state: State, _: CodecCall | None = None
    ) -> tuple[Tensor, State]:
        """frames [B, n, latent] as they are sampled -> samples [B, n * HOP], next state."""
        rows = max(1, CPU_FRAMES // frames.shape[1])
        if frames.device.type != "cpu" or len(frames) <= rows:
            return self._decode(frames, state)
        parts = [
            self._decode(
                frames[at : at + rows],
                {name: value[at : at + rows] for name, value in state.items()},
            )
            for at in range(0, len(frames), rows)
        ]
        new = {name: torch.cat([part[name] for _, part in parts]) for name in state}
        return torch.cat([samples for samples, _ in parts]), new

    def _decode(
        self,
        frames: Tensor,
        state: State,
    ) -> tuple[Tensor, State]:
        assert self.rope is not None, "process_weights_after_loading comes first"
        streaming = StreamingState(state)
        clock = state[CLOCK]
        dtype = self.output_proj.dtype
        z = torch.addcmul(
            self.emb_mean,
            frames.to(dtype),
            self.emb_std,
        )
        x = self.upsample((z @ self.output_proj[:, :, 0].t()).transpose(1, 2), streaming).transpose(
            1, 2
        )
        pos = clock[:, None] * UPSAMPLING + torch.arange(x.shape[1], device=x.device)
        window = WindowKV(
            WINDOW,
            self.config.window,
            pos,
            streaming,
        )
        x = self.transformer(x, window.attend, RopePositions(self.rope, pos)).transpose(1, 2)
        samples = upcast(self.decoder(x, streaming).flatten(1))
        first = samples[:, :HOP]
        first.copy_(torch.where(clock[:, None] == 0, first * self.get_buffer("fade"), first))
        streaming.new[CLOCK] = clock + frames.shape[1]
        return samples, streaming.new
