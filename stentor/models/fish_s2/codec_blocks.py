"""Parts that the codec's encoder, quantizer and decoder share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.codec_blocks import ConvNeXt, Snake
from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, StreamingState, convolve
from stentor.layers.rope import Rope
from stentor.layers.sliding_window import WindowKV
from stentor.layers.transformer import Stack, StackConfig
from stentor.models.fish_s2.codec_config import ENCODER_WINDOW


def windowed(stack: Stack, x: Tensor, rope: Rope, window: int) -> Tensor:
    """A transformer over whole sequences x [B, C, T]; each token sees the last `window` ones, itself included."""
    pos = torch.arange(x.shape[-1], device=x.device).expand(x.shape[0], -1)
    y: Tensor = stack(x.transpose(1, 2), WindowKV("", window, pos, None).attend, rope, pos)
    return y.transpose(1, 2)


class ResidualUnit(nn.Module):
    """x + conv1(snake(conv7(snake(x)))), x [B, C, n]."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        wide, narrow = CausalConv1d(channels, channels, 7, dilation), CausalConv1d(channels, channels, 1)
        self.block = nn.ModuleList([Snake(channels), wide, Snake(channels), narrow])

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        act_in, wide, act_out, narrow = self.block
        return convolve(narrow, convolve(wide, x, state, before=act_in, after=act_out), state, residual=x)


class Downsample(nn.ModuleList):
    """Frames are merged `stride` at a time, then refined. Whole sequences only."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__([CausalConv1d(channels, channels, stride, stride=stride, left=0), ConvNeXt(channels)])

    def forward(self, x: Tensor) -> Tensor:
        merge, refine = self
        out: Tensor = refine(merge(x))
        return out


class EncoderBlock(nn.Module):
    """Three residual units, then a strided convolution that doubles the channels; x [B, C, n]. Whole sequences only.

    The last block of an encoder ends with a transformer, `stack`.
    """

    def __init__(self, channels: int, stride: int, stack: StackConfig | None = None) -> None:
        super().__init__()
        units = [ResidualUnit(channels, d) for d in (1, 3, 9)]
        down = CausalConv1d(channels, 2 * channels, 2 * stride, stride=stride, left=stride)
        stacks = [] if stack is None else [Stack(stack)]
        self.block = nn.ModuleList([*units, Snake(channels), down, *stacks])

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        for layer in self.block:
            x = windowed(layer, x, rope, ENCODER_WINDOW) if isinstance(layer, Stack) else layer(x)
        return x


class DecoderBlock(nn.Module):
    """A transposed convolution that halves the channels, then three residual units; x [B, C, n]."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        up = CausalConvTranspose1d(channels, channels // 2, stride)
        units = [ResidualUnit(channels // 2, d) for d in (1, 3, 9)]
        self.block = nn.ModuleList([Snake(channels), up, *units])

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        act, up, *units = self.block
        x = convolve(up, x, state, before=act)
        for unit in units:
            x = unit(x, state)
        return x
