"""Convolutions of the codec (SEANet) that both of its halves use. Attributes are named as in checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, CausalModule, StreamingState, convolve
from stentor.models.pocket_tts.config import UPSAMPLING, SeanetConfig


class Conv(nn.Module):
    """A causal convolution under the name `conv`."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = CausalConv1d(inputs, outputs, kernel, stride=stride, left=kernel - stride)

    def forward(self, x: Tensor, state: StreamingState | None, residual: Tensor | None = None) -> Tensor:
        """x [B, inputs, n] -> [B, outputs, n / stride]."""
        return convolve(self.conv, x, state, residual=residual)


class ConvTranspose(nn.Module):
    """Up-sampling under the name `convtr`."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convtr = CausalConvTranspose1d(inputs, outputs, stride)

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        """x [B, inputs, n] -> [B, outputs, n * stride]."""
        return convolve(self.convtr, x, state)


class ResidualUnit(nn.Module):
    """x + conv1x1(ELU(conv(ELU(x))))."""

    def __init__(self, channels: int, c: SeanetConfig) -> None:
        super().__init__()
        inner = channels // c.compress
        first = Conv(channels, inner, c.residual_kernel)
        self.block = nn.ModuleList([nn.ELU(), first, nn.ELU(inplace=True), Conv(inner, channels, 1)])

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        act, first, _, second = self.block
        out: Tensor = second(act(first(act(x), state)), state, residual=x)
        return out


class Seanet(nn.Module):
    """Layers one after the other, under the name `model`."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.model = nn.ModuleList(layers)

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        for layer in self.model:
            x = layer(x) if isinstance(layer, nn.ELU) else layer(x, state)
        return x


class DepthwiseUpsample(CausalModule):
    """A transposed convolution of each channel by itself, with a kernel of two strides and without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 1)
        self.weight = nn.Parameter(torch.empty(channels, 1, 2 * UPSAMPLING))
        self.bias = None

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        """x [B, C, n] -> [B, C, n * UPSAMPLING]. An output is of this input column and the one before."""
        x = self.with_history(x, state)[..., None]
        y = torch.addcmul(x[:, :, :-1] * self.weight[:, :, UPSAMPLING:], x[:, :, 1:], self.weight[:, :, :UPSAMPLING])
        return y.flatten(2)


class Downsample(CausalConv1d):
    """UPSAMPLING steps to one. Copies of the first step stand before it. Whole recordings only."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 2 * UPSAMPLING, stride=UPSAMPLING, bias=False, left=0)

    def whole(self, x: Tensor) -> Tensor:
        """x [B, inputs, n] -> [B, outputs, n / UPSAMPLING]."""
        return convolve(self, F.pad(x, (UPSAMPLING, 0), "replicate"), None)
