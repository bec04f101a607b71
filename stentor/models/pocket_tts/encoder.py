"""The codec's encoder: recordings to latents. Attributes are named as in checkpoints."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, StreamingState, convolve, state_columns, upcast
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope
from stentor.layers.sliding_window import WindowKV, window_columns
from stentor.layers.types import Column, Launch, eager
from stentor.layers.windows import COLUMNS, Windows, padded, step_of
from stentor.models.calm_blocks import Transformer, make_rope
from stentor.models.calm_codec import CLOCK, WINDOW, Conv, ResidualUnit, Seanet
from stentor.models.calm_config import HOP, RATIOS, UPSAMPLING, SeanetConfig
from stentor.models.pocket_tts.config import PocketConfig

TICK = min(COLUMNS)
"""Steps of a tick of the clock, so that 16 bits hold it. Windows have a multiple of these."""


class Downsample(CausalConv1d):
    """UPSAMPLING steps to one. Copies of the first step stand before it. Whole recordings only."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 2 * UPSAMPLING, stride=UPSAMPLING, bias=False, left=0)

    def whole(self, x: Tensor) -> Tensor:
        """x [B, inputs, n] -> [B, outputs, n / UPSAMPLING]."""
        return convolve(
            self,
            F.pad(x, (UPSAMPLING, 0), "replicate"),
            None,
        )


def encoder(width: int, c: SeanetConfig) -> Seanet:
    """Samples [B, 1, 120 n] -> steps [B, width, n]."""
    channels = c.filters
    layers: list[nn.Module] = [Conv(1, channels, c.kernel)]
    for ratio in reversed(RATIOS):
        layers += [
            ResidualUnit(channels, c),
            nn.ELU(inplace=True),
            Conv(channels, 2 * channels, 2 * ratio, ratio),
        ]
        channels *= 2
    return Seanet([*layers, nn.ELU(inplace=True), Conv(channels, width, c.last_kernel)])


class Encoder(nn.Module):
    """The encoder's half of the checkpoint's `mimi`."""

    def __init__(self, c: PocketConfig) -> None:
        super().__init__()
        self.config = c.encoder
        self.encoder = encoder(
            c.encoder.hidden,
            c.encoder_seanet,
        )
        self.transformer = Transformer(
            c.encoder,
            scaled=True,
        )
        self.downsample = Downsample(
            c.encoder.hidden,
            c.voice,
        )
        self.step = step_of(prod(RATIOS), UPSAMPLING)
        self.rope: Rope | None = None
        self.windows: Windows | None = None

    def process_weights_after_loading(self, samples: int) -> None:
        """Make the RoPE table for recordings of up to `samples` samples, and the columns that carry
        the state between windows."""
        c = self.config
        hop = prod(RATIOS)
        dtype = self.downsample.weight.dtype
        device = self.downsample.weight.device
        self.rope = make_rope(c, -(-samples // hop) + COLUMNS[0] + UPSAMPLING).to(device)
        columns = {
            **state_columns(self.encoder),
            **window_columns(WINDOW, c.layers, c.heads, c.head_dim, c.window, dtype),
            CLOCK: Column((1,), dtype),
        }
        self.windows = Windows(self._window, hop, columns)

    def forward(
        self,
        samples: Tensor,
        launch: Launch = eager,
    ) -> Tensor:
        """samples [n] at 24 kHz -> latents [ceil(n / HOP), voice] in float32 at least. Zeros
        fill the
        last frame."""
        assert self.windows is not None, "process_weights_after_loading comes first"
        wav = F.pad(samples, (0, -len(samples) % HOP))[None, None].to(self.downsample.weight.dtype)
        x = self.windows(wav, launch)
        latents = launch(self._merged, padded(x, self.step))[0]
        return latents[: x.shape[2] // UPSAMPLING]

    def _window(
        self,
        x: Tensor,
        state: StreamingState,
        _: Tensor,
    ) -> Tensor:
        """A piece of a recording: samples [B, 1, 120 n] -> steps [B, hidden, n]."""
        assert self.rope is not None
        y = self.encoder(x, state).transpose(1, 2)
        clock = state.old[CLOCK]
        pos = TICK * clock.long() + torch.arange(y.shape[1], device=y.device)
        window = WindowKV(
            WINDOW,
            self.config.window,
            pos,
            state,
        )
        state.new[CLOCK] = clock + y.shape[1] // TICK
        steps: Tensor = self.transformer(
            y,
            window.attend,
            RopePositions(self.rope, pos),
        )
        return steps.transpose(1, 2)

    def _merged(self, x: Tensor) -> tuple[Tensor]:
        return (upcast(self.downsample.whole(x)[0].T),)
