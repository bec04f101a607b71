"""Blocks of convolutional codecs that several families use. Attribute names are those of the
checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.kernels.types import Affine, SnakeParams
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    SnakeBase,
    StreamingState,
    convolve,
    snake,
)
from stentor.layers.linear import Linear

DILATIONS = (1, 3, 9)
"""Dilations of the three residual units of a block."""


class Snake(SnakeBase):
    """x + sin(alpha x)^2 / alpha with one learned frequency per channel (Ziyin et al., 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def reference(self, x: Tensor) -> Tensor:
        return snake(x, self.alpha)

    def params(self) -> SnakeParams:
        alpha = self.alpha.flatten()
        return SnakeParams(alpha, 1.0 / (alpha + 1e-9))


class SnakeBeta(SnakeBase):
    """x + sin(x e^alpha)^2 / (e^beta + 1e-9) per channel (Ziyin et al., 2020, with its own
    magnitude)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def reference(self, x: Tensor) -> Tensor:
        alpha = self.alpha.exp()[:, None]
        beta = self.beta.exp()[:, None]
        gain = 1.0 / (beta + 1e-9)
        return x + torch.sin(x * alpha).pow(2) * gain

    def params(self) -> SnakeParams:
        gain = 1.0 / (self.beta.exp() + 1e-9)
        return SnakeParams(self.alpha.exp(), gain)


class ConvNeXt(nn.Module):
    """x + MLP(LayerNorm(depthwise causal convolution of x)), exact GELU (Liu et al., 2022). x [B,
    C, n] -> [B, C, n].

    The released models also scale the MLP's output per channel. That gain is folded into `pwconv2`
    before use.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = Linear(channels, 4 * channels)
        self.pwconv2 = Linear(4 * channels, channels)

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        mixed = convolve(self.dwconv, x, state)
        y = self.norm(mixed.transpose(1, 2))
        hidden = F.gelu(self.pwconv1(y))
        change: Tensor = self.pwconv2(hidden)
        return x + change.transpose(1, 2)


class Upsample(nn.ModuleList):
    """A transposed convolution with `stride` outputs per input, then a ConvNeXt block.

    x [B, C, n] -> [B, C, n * stride].
    """

    def __init__(self, channels: int, stride: int, refine: type[ConvNeXt] = ConvNeXt) -> None:
        spread = CausalConvTranspose1d(channels, channels, stride, kernel=stride)
        super().__init__([spread, refine(channels)])

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        spread, refine = self
        wide = convolve(spread, x, state)
        out: Tensor = refine(wide, state)
        return out


class ResidualUnit(nn.Module):
    """x + conv1x1(snake(dilated conv of 7 taps(snake(x)))), x [B, C, n] (DAC, Kumar et al.,
    2023)."""

    def __init__(self, channels: int, dilation: int, depthwise: bool = False) -> None:
        super().__init__()
        groups = channels if depthwise else 1
        dilated = CausalConv1d(channels, channels, 7, dilation, groups=groups)
        pointwise = CausalConv1d(channels, channels, 1)
        self.block = nn.ModuleList([Snake(channels), dilated, Snake(channels), pointwise])

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        before, dilated, after, pointwise = self.block
        y = convolve(dilated, x, state, before=before, after=after)
        return convolve(pointwise, y, state, residual=x)


class DownsampleBlock(nn.Module):
    """DAC's encoder block: three residual units, Snake, a strided convolution.

    x [B, inputs, n] -> [B, outputs, n / stride]. What stands behind these in `block` is not run.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        units = [ResidualUnit(inputs, d, depthwise) for d in DILATIONS]
        down = CausalConv1d(inputs, outputs, 2 * stride, stride=stride, left=stride)
        self.block = nn.ModuleList([*units, Snake(inputs), down])

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        *units, act, down = self.block[: len(DILATIONS) + 2]
        for unit in units:
            x = unit(x, state)
        return convolve(down, x, state, before=act)


class UpsampleBlock(nn.Module):
    """DAC's decoder block: Snake, a transposed convolution with `stride` outputs per input, three
    residual units.

    x [B, inputs, n] -> [B, outputs, n * stride]. `condition` scales and shifts x first.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        units = [ResidualUnit(outputs, d, depthwise) for d in DILATIONS]
        up = CausalConvTranspose1d(inputs, outputs, stride)
        self.block = nn.ModuleList([Snake(inputs), up, *units])

    def forward(
        self,
        x: Tensor,
        state: StreamingState | None = None,
        condition: Affine | None = None,
    ) -> Tensor:
        act, up, *units = self.block
        x = convolve(up, x, state, before=act, affine=condition)
        for unit in units:
            x = unit(x, state)
        return x
