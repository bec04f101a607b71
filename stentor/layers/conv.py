"""Causal convolutions that run whole or in chunks with the same result, and the periodic activations between them.

A chunked run keeps what the convolution still needs of the past: the last (k-1)*dilation input columns. That state is
data, not part of the module: `Stream` carries it in and out, so rows of a batch may belong to different streams and
the engine may keep it in slot columns. `stream=None` means a whole sequence from silence (training, checks).

Tensors are [B, C, n]. In 16 bits on CUDA, `convolve` runs fused kernels on channels-last memory (C innermost); what
they return are [B, C, n] views of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.models.base import Column, State


class Stream:
    """State of the causal modules of one codec during one call: `old` is read, `new` is filled, by module key.

    State is [B, time, ...] whatever the layout of the tensors it belongs to.
    """

    def __init__(self, old: State) -> None:
        self.old = old
        self.new: State = {}

    def extend(self, key: str, x: Tensor, count: int, dim: int) -> Tensor:
        """Put the `count` remembered steps before x, whose time is dimension `dim`; remember the result's last ones."""
        y = torch.cat((self.old[key].movedim(1, dim).to(x.dtype), x), dim=dim)
        kept = y.narrow(dim, y.shape[dim] - count, count)
        # A small part must not keep all of a long input alive until the end of the call.
        self.new[key] = (kept.clone() if y.shape[dim] > 2 * count else kept).movedim(dim, 1)
        return y


def exactly(x: Tensor) -> AbstractContextManager[None]:
    """Where float32 was asked for, convolutions are float32: cuDNN would take TF32, whose ten bits change codes."""
    if x.is_cuda and x.dtype == torch.float32 and torch.is_inference_mode_enabled():
        return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    return nullcontext()


class Causal(nn.Module):
    """A module with a tail of `tail` remembered input columns of `channels` channels."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, channels: int, tail: int) -> None:
        super().__init__()
        self.channels = channels
        self.tail = tail
        self.key = ""

    def past(self, x: Tensor, stream: Stream | None) -> Tensor:
        """x [B, C, n] with `tail` columns of history in front: zeros when the sequence starts here."""
        if not self.tail:
            return x
        return F.pad(x, (self.tail, 0)) if stream is None else stream.extend(self.key, x, self.tail, dim=2)


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
        with exactly(x):
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
        with exactly(x):
            y = F.conv_transpose1d(self.past(x, stream), self.weight, self.bias, self.stride)
        start = self.tail * self.stride
        return y[..., start : start + length]


class Periodic(nn.Module):
    """x + sin(alpha x)^2 / beta per channel (Ziyin et al., 2020). A subclass says what alpha and beta are.

    The argument of the sine is large: it is computed in float32 at least, whatever x is.
    """

    kept: kernels.Waves | None = None

    def formula(self, x: Tensor) -> Tensor:
        """The activation of x [B, C, n] in float32 or wider."""
        raise NotImplementedError

    def waves(self) -> kernels.Waves:
        """As kernels take it."""
        raise NotImplementedError

    def keep(self) -> None:
        """Work `waves` out once, from the weights there are now."""
        self.kept = kernels.Waves(*(t.detach().float().flatten().contiguous() for t in self.waves()))

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(widened(x)).to(x.dtype)


def widened(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype.itemsize < 4 else x


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin(alpha x)^2 / alpha (Ziyin et al., 2020), alpha [1, C, 1]."""
    return x + torch.sin(alpha * x).pow(2) / (alpha + 1e-9)


def convolve(
    conv: nn.Module,
    x: Tensor,
    stream: Stream | None,
    before: nn.Module | None = None,
    after: nn.Module | None = None,
    residual: Tensor | None = None,
    affine: kernels.Affine | None = None,
) -> Tensor:
    """residual + after(conv(before(x * scale + shift))), x [B, C, n]; what is None is left out. Together because
    kernels fuse it.

    `conv` is one of the causal convolutions, `before` and `after` are Periodic.
    """
    if kernels.convolves(x):
        return _fused(conv, x, stream, before, after, residual, affine)
    if affine is not None:
        x = x * affine.scale[:, None] + affine.shift[:, None]
    y: Tensor = conv(x if before is None else before(x), stream)
    if after is not None:
        y = after(y)
    return y if residual is None else residual + y


def _fused(
    conv: nn.Module,
    x: Tensor,
    stream: Stream | None,
    before: nn.Module | None,
    after: nn.Module | None,
    residual: Tensor | None,
    affine: kernels.Affine | None,
) -> Tensor:
    """`convolve` with kernels: the activated input is written behind the history, from where the convolution reads."""
    assert isinstance(conv, CausalConv1d | CausalConvTranspose1d)
    x = x.transpose(1, 2)
    if conv.tail or before is not None or affine is not None:
        carried = stream if conv.tail else None
        past = None if carried is None else carried.old[conv.key]
        x, kept = kernels.extend(x, past, conv.tail, _waves(before), affine, carried is not None)
        if carried is not None:
            carried.new[conv.key] = kept
    waves = _waves(after)
    residual = None if residual is None else residual.transpose(1, 2)
    if isinstance(conv, CausalConvTranspose1d):
        y = kernels.upsample(x, conv.weight, conv.bias, conv.stride, waves, residual)
    else:
        y = kernels.convolve(x, conv.weight, conv.bias, conv.dilation, waves, residual)
    return y.transpose(1, 2)


def _waves(act: nn.Module | None) -> kernels.Waves | None:
    assert act is None or isinstance(act, Periodic)
    return None if act is None else act.kept or act.waves()


def bind(codec: nn.Module) -> dict[str, Column]:
    """Name the state of every causal module in `codec` and return the columns that hold it for one stream."""
    columns: dict[str, Column] = {}
    for name, module in codec.named_modules():
        if isinstance(module, Causal) and module.tail:
            module.key = name
            columns[name] = Column((module.tail, module.channels), module.weight.dtype)
    return columns


def cast(codec: nn.Module, dtype: torch.dtype) -> None:
    """Weights of a decoder in `dtype`, those of periodic activations in float32 at least. Kernels of convolutions are
    laid out tap by tap in memory (their shape stays), as the fused kernels read them."""
    for module in codec.modules():
        own = torch.promote_types(dtype, torch.float32) if isinstance(module, Periodic) else dtype
        for p in module.parameters(recurse=False):
            p.data = p.data.to(own)
        if isinstance(module, Periodic):
            module.keep()
        if isinstance(module, Causal) and kernels.tap_by_tap(dtype):
            order, back = (
                ((2, 1, 0), (2, 1, 0)) if isinstance(module, CausalConvTranspose1d) else ((2, 0, 1), (1, 2, 0))
            )
            module.weight.data = module.weight.data.permute(order).contiguous().permute(back)
