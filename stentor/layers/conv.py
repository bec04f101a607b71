"""Causal convolutions that run whole or in chunks with the same result.

A chunked run keeps what the convolution still needs of the past: the last (k-1)*dilation input columns. That state is
data, not part of the module: `Stream` carries it in and out, so rows of a batch may belong to different streams and
the engine may keep it in slot columns. `stream=None` means a whole sequence from silence (training, checks).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.models.base import Column, State


class Stream:
    """State of the causal modules of one codec during one call: `old` is read, `new` is filled, by module key."""

    def __init__(self, old: State) -> None:
        self.old = old
        self.new: State = {}

    def extend(self, key: str, x: Tensor, count: int) -> Tensor:
        """Put the `count` remembered columns before x [B, C, n]; remember the last `count` of the result."""
        y = torch.cat((self.old[key].to(x.dtype), x), dim=-1)
        self.new[key] = y[..., y.shape[-1] - count :]
        return y


class Causal(nn.Module):
    """A module with a tail of `tail` remembered input columns of `channels` channels."""

    def __init__(self, channels: int, tail: int) -> None:
        super().__init__()
        self.channels = channels
        self.tail = tail
        self.key = ""

    def past(self, x: Tensor, stream: Stream | None) -> Tensor:
        """x [B, C, n] with `tail` columns of history in front: zeros when the sequence starts here."""
        if not self.tail:
            return x
        return F.pad(x, (self.tail, 0)) if stream is None else stream.extend(self.key, x, self.tail)


class CausalConv1d(Causal):
    """Conv1d that sees only the past. A strided convolution (encoders) runs whole only: it pads `left` columns."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        dilation: int = 1,
        groups: int = 1,
        stride: int = 1,
        bias: bool = True,
        left: int | None = None,
    ) -> None:
        super().__init__(inputs, (kernel - 1) * dilation if left is None else left)
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.dilation, self.groups, self.stride = dilation, groups, stride

    def forward(self, x: Tensor, stream: Stream | None = None) -> Tensor:
        x = self.past(x, stream)
        return F.conv1d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class CausalConvTranspose1d(Causal):
    """Up-sampling by `stride` with kernel 2 * stride (or stride: then stateless); the last k - stride outputs of the
    plain transposed convolution look ahead and are cut. Remembers one input column."""

    def __init__(self, inputs: int, outputs: int, stride: int, kernel: int | None = None, bias: bool = True) -> None:
        kernel = 2 * stride if kernel is None else kernel
        if kernel not in (stride, 2 * stride):
            raise ValueError(f"kernel must be stride or 2 * stride, got kernel {kernel} and stride {stride}")
        super().__init__(inputs, kernel // stride - 1)
        self.weight = nn.Parameter(torch.empty(inputs, outputs, kernel))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.stride = stride

    def forward(self, x: Tensor, stream: Stream | None = None) -> Tensor:
        length = x.shape[-1] * self.stride
        y = F.conv_transpose1d(self.past(x, stream), self.weight, self.bias, self.stride)
        start = self.tail * self.stride
        return y[..., start : start + length]


def bind(codec: nn.Module) -> dict[str, Column]:
    """Name the state of every causal module in `codec` and return the columns that hold it for one stream."""
    columns: dict[str, Column] = {}
    for name, module in codec.named_modules():
        if isinstance(module, Causal) and module.tail:
            module.key = name
            columns[name] = Column((module.channels, module.tail))
    return columns


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin(alpha x)^2 / alpha (Ziyin et al., 2020), alpha [1, C, 1]."""
    return x + torch.sin(alpha * x).pow(2) / (alpha + 1e-9)
