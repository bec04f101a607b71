"""Blocks of the codec's encoder and quantizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.codec_blocks import DILATIONS, ConvNeXt, ResidualUnit, Snake
from stentor.layers.conv import CausalConv1d, StreamingState, convolve
from stentor.layers.rope import Rope
from stentor.layers.sliding_window import WindowKV
from stentor.layers.transformer import Stack, StackConfig


def windowed(stack: Stack, x: Tensor, rope: Rope, window: int) -> Tensor:
    """A transformer over whole sequences x [B, C, T]. Each token sees the last `window` ones, itself included."""
    pos = torch.arange(x.shape[-1], device=x.device).expand(x.shape[0], -1)
    y: Tensor = stack(x.transpose(1, 2), WindowKV("", window, pos, None).attend, rope, pos)
    return y.transpose(1, 2)


class Downsample(nn.ModuleList):
    """Frames are merged `stride` at a time, then refined. Whole sequences only."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__([CausalConv1d(channels, channels, stride, stride=stride, left=0), ConvNeXt(channels)])

    def forward(self, x: Tensor) -> Tensor:
        merge, refine = self
        out: Tensor = refine(convolve(merge, x, None))
        return out


class EncoderBlock(nn.Module):
    """Three residual units, then a strided convolution that doubles the channels of x [B, C, n].

    The last block of an encoder ends with a transformer, `stack`, which the encoder calls.
    """

    def __init__(self, channels: int, stride: int, stack: StackConfig | None = None) -> None:
        super().__init__()
        units = [ResidualUnit(channels, d) for d in DILATIONS]
        down = CausalConv1d(channels, 2 * channels, 2 * stride, stride=stride, left=stride)
        stacks = [] if stack is None else [Stack(stack)]
        self.block = nn.ModuleList([*units, Snake(channels), down, *stacks])

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        *units, act, down = (layer for layer in self.block if not isinstance(layer, Stack))
        for unit in units:
            x = unit(x, state)
        return convolve(down, x, state, before=act)
