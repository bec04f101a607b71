"""Causal convolutions that run whole or in chunks with the same result, and the periodic
activations between them.

A chunked run needs the last (k - 1) * dilation input columns of each convolution. That state is
data and not part of the module: a `StreamingState` carries it in and out. Rows of a batch may
belong to different streams, and the engine may keep the state in slot columns. `state=None` runs a
whole sequence from silence (training, checks).

Tensors are [B, C, n]. In 16 bits on CUDA, `convolve` runs fused kernels on channels-last memory (C
innermost). The tensors that it returns are [B, C, n] views of that memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels.types import Affine, SnakeParams
from stentor.layers.types import Column, State


class StreamingState:
    """State of the causal modules of one codec during one call: `old` is read, `new` is filled, by
    module key.

    Every entry is [B, time, ...], whatever the layout of the activations that it belongs to.

    ahead: of each row, how many of the last of `steps` input steps are decoded ahead of the stream,
    [B] int64. The new state is the one before them. None: no step is.
    """

    def __init__(self, old: State, ahead: Tensor | None = None, steps: int = 1) -> None:
        self.old = old
        self.new: State = {}
        self._ahead = ahead
        self._steps = steps

    def steps_ahead(self, count: int) -> Tensor | None:
        """How many of a module's `count` input steps are decoded ahead of each row's stream,
        [B]."""
        if self._ahead is None:
            return None
        assert count % self._steps == 0, "a module sees a part of a step that is decoded ahead"
        return self._ahead * (count // self._steps)

    def concat_history(
        self,
        key: str,
        x: Tensor,
        count: int,
        dim: int,
    ) -> Tensor:
        """Put the `count` stored steps of `key` before x along time dimension `dim`. Store the
        result's last steps."""
        length = x.shape[dim]
        history = self.old[key].movedim(1, dim).to(x.dtype)
        y = torch.cat((history, x), dim=dim)
        ahead = self.steps_ahead(length)
        if ahead is not None:
            by_step = y.movedim(dim, 1)
            self.new[key] = steps_from(by_step, length - ahead, count)
            return y
        last = torch.narrow(y, dim, length, count)
        # A small part must not keep all of a long input alive until the end of the call.
        if y.shape[dim] > 2 * count:
            last = last.clone()
        self.new[key] = last.movedim(dim, 1)
        return y


def steps_from(x: Tensor, first: Tensor, count: int) -> Tensor:
    """`count` steps of each row of x [B, T, ...] from step `first` [B] on: [B, count, ...]."""
    steps = first[:, None] + torch.arange(count, device=x.device)
    rows = torch.arange(len(x), device=x.device)
    return x[rows[:, None], steps]


class CausalModule(nn.Module):
    """A module that needs the last `tail` input columns of `channels` channels from the call
    before."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, channels: int, tail: int) -> None:
        super().__init__()
        self.channels = channels
        self.tail = tail
        self.key = ""

    def with_history(self, x: Tensor, state: StreamingState | None) -> Tensor:
        """`tail` columns of history before x [B, C, n]. The history is zeros where `state` is
        None."""
        if not self.tail:
            return x
        if state is None:
            return F.pad(x, (self.tail, 0))
        return state.concat_history(self.key, x, self.tail, dim=2)


class CausalConv1d(CausalModule):
    """Conv1d that sees only the past. A strided convolution (encoders) pads `left` columns. It runs
    in chunks of whole strides if that is kernel - stride."""

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
        tail = (kernel - 1) * dilation if left is None else left
        super().__init__(inputs, tail)
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, kernel))
        if bias:
            self.bias = nn.Parameter(torch.empty(outputs))
        else:
            self.bias = None
        self.dilation = dilation
        self.groups = groups
        self.stride = stride

    @property
    def reads_rows(self) -> bool:
        """Whether the kernels read all taps of an output as one row: with a stride, or where a tap
        is one channel."""
        if self.stride > 1:
            return True
        has_taps = self.weight.shape[2] > 1
        return has_taps and self.channels == 1 and self.dilation == 1

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        x = self.with_history(x, state)
        return F.conv1d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class CausalConvTranspose1d(CausalModule):
    """Up-sampling by `stride` with a kernel of 2 * stride, or of stride, which needs no history.

    The last kernel - stride outputs of the plain transposed convolution depend on later inputs and
    are dropped.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        kernel: int | None = None,
        bias: bool = True,
    ) -> None:
        if kernel is None:
            kernel = 2 * stride
        if kernel not in (stride, 2 * stride):
            raise ValueError(
                f"kernel must be stride or 2 * stride, got kernel {kernel} and stride {stride}"
            )
        super().__init__(inputs, kernel // stride - 1)
        self.weight = nn.Parameter(torch.empty(inputs, outputs, kernel))
        if bias:
            self.bias = nn.Parameter(torch.empty(outputs))
        else:
            self.bias = None
        self.stride = stride

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        length = x.shape[-1] * self.stride
        x = self.with_history(x, state)
        if x.device.type == "cpu":
            return self._as_product(x)
        y = F.conv_transpose1d(x, self.weight, self.bias, self.stride)
        # The history's own outputs were returned by the call before.
        start = self.tail * self.stride
        return y[..., start : start + length]

    def _as_product(self, x: Tensor) -> Tensor:
        """The outputs of x [B, C, tail + n], by one GEMM of all taps. The library of a CPU arranges
        the weights anew in each call, which takes longer than a short chunk."""
        rows = x.transpose(1, 2)
        products = rows @ self.weight.flatten(1)
        taps = products.view(*rows.shape[:2], *self.weight.shape[1:])
        if self.tail:
            present = taps[:, 1:, :, : self.stride]
            before = taps[:, :-1, :, self.stride :]
            taps = present + before
        y: Tensor = taps.transpose(1, 2).flatten(2)
        if self.bias is None:
            return y
        return y.add_(self.bias[:, None])


class SnakeBase(nn.Module):
    """x + sin(alpha x)^2 / beta per channel (Ziyin et al., 2020). A subclass defines alpha and
    beta.

    The argument of the sine is large: it is computed in float32 at least, whatever x is.
    """

    cached_params: SnakeParams | None = None

    def reference(self, x: Tensor) -> Tensor:
        """The activation of x [B, C, n] in float32 or wider."""
        raise NotImplementedError

    def params(self) -> SnakeParams:
        """The arguments of the kernels, worked out from the weights."""
        raise NotImplementedError

    def cache_params(self) -> None:
        """Work `params` out once, from the present weights."""
        flat = (param.detach().float().flatten() for param in self.params())
        self.cached_params = SnakeParams(*(param.contiguous() for param in flat))

    def forward(self, x: Tensor) -> Tensor:
        y = self.reference(upcast(x))
        return y.to(x.dtype)


def upcast(x: Tensor) -> Tensor:
    """x in float32 at least."""
    if x.dtype.itemsize < 4:
        return x.float()
    return x


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """x + sin(alpha x)^2 / alpha (Ziyin et al., 2020), alpha [1, C, 1]."""
    # The reference adds 1e-9, so that an alpha of 0 leaves x as it is.
    divisor = alpha + 1e-9
    if torch.is_grad_enabled():
        return x + torch.sin(alpha * x).pow(2) / divisor
    # The same in place: new memory of this size comes from the system each time.
    wave = (alpha * x).sin_().square_()
    return wave.div_(divisor).add_(x)


def convolve(
    conv: nn.Module,
    x: Tensor,
    state: StreamingState | None,
    before: nn.Module | None = None,
    after: nn.Module | None = None,
    residual: Tensor | None = None,
    affine: Affine | None = None,
    first: Tensor | None = None,
) -> Tensor:
    """residual + after(conv(before(x * scale + shift))) for x [B, C, n]. What is None is left out.

    One function does all of this because the kernels fuse it. `conv` is one of the causal
    convolutions. `before` and `after` are subclasses of `SnakeBase`. What stands before column
    `first` [B] of x counts as zero. It is int64.
    """
    if kernels.conv_kernels_enabled(x):
        return _fused_convolve(conv, x, state, before, after, residual, affine, first)
    if first is not None:
        columns = torch.arange(x.shape[2], device=x.device)
        exists = columns >= first[:, None]
        x = x * exists[:, None]
    if affine is not None:
        x = x * affine.scale[:, None] + affine.shift[:, None]
    if before is not None:
        x = before(x)
    y: Tensor = conv(x, state)
    if after is not None:
        y = after(y)
    if residual is None:
        return y
    return y.add_(residual)


def _fused_convolve(
    conv: nn.Module,
    x: Tensor,
    state: StreamingState | None,
    before: nn.Module | None,
    after: nn.Module | None,
    residual: Tensor | None,
    affine: Affine | None,
    first: Tensor | None,
) -> Tensor:
    """`convolve` with kernels. The activated input is written after the history, where the
    convolution reads it."""
    assert isinstance(conv, CausalConv1d | CausalConvTranspose1d)
    x = x.transpose(1, 2)
    # Otherwise the convolution reads x itself.
    if conv.tail or before is not None or affine is not None or first is not None:
        streams = conv.tail > 0 and state is not None
        past = None
        ahead = None
        if streams:
            assert state is not None
            past = state.old[conv.key]
            ahead = state.steps_ahead(x.shape[1])
        x, last = kernels.conv1d.concat_history(
            x, past, conv.tail, _params(before), affine, streams, ahead, first
        )
        if streams:
            assert state is not None
            state.new[conv.key] = last
    act = _params(after)
    if residual is not None:
        residual = residual.transpose(1, 2)
    if isinstance(conv, CausalConvTranspose1d):
        y = kernels.conv1d.conv_transpose1d(x, conv.weight, conv.bias, conv.stride, act, residual)
    elif conv.reads_rows:
        y = kernels.conv1d.strided_conv1d(x, conv.weight, conv.bias, conv.stride, act, residual)
    else:
        y = kernels.conv1d.conv1d(x, conv.weight, conv.bias, conv.dilation, act, residual)
    return y.transpose(1, 2)


def _params(act: nn.Module | None) -> SnakeParams | None:
    assert act is None or isinstance(act, SnakeBase)
    if act is None:
        return None
    return act.cached_params or act.params()


def state_columns(codec: nn.Module) -> dict[str, Column]:
    """Name the state of every causal module in `codec` and return the columns that hold it for one
    stream."""
    columns: dict[str, Column] = {}
    for name, module in codec.named_modules():
        if isinstance(module, CausalModule) and module.tail:
            module.key = name
            columns[name] = Column((module.tail, module.channels), module.weight.dtype)
    return columns


def state_size(columns: Mapping[str, Column]) -> int:
    """Elements of a stream's state in one tensor."""
    return sum(math.prod(column.shape) for column in columns.values())


def split_state(joined: Tensor, columns: Mapping[str, Column]) -> State:
    """The state of each module, views of what `join_state` returned for streams [B, state_size]."""
    state: State = {}
    start = 0
    for name, column in columns.items():
        size = math.prod(column.shape)
        values = joined[:, start : start + size]
        state[name] = values.view(len(joined), *column.shape)
        start += size
    return state


def join_state(state: State, columns: Mapping[str, Column]) -> Tensor:
    """The states of all modules in one tensor [B, state_size], so that one copy carries it on."""
    return torch.cat([state[name].flatten(1) for name in columns], dim=1)


def context_steps(*parts: nn.Module) -> int:
    """Input steps at most on which the state after them depends, in causal modules that run in this
    order."""
    modules = [module for part in parts for module in part.modules()]
    steps = 0
    for module in reversed(modules):
        if not isinstance(module, CausalModule):
            continue
        if isinstance(module, CausalConvTranspose1d):
            steps = math.ceil(steps / module.stride)
        steps += module.tail
    return steps


def cast_codec(codec: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights of a decoder or an encoder to `dtype`, and those of periodic activations to
    float32 at least.

    Weights of convolutions are laid out in memory as the fused kernels read them. Their shape
    stays. A codec on the meta device is cast again once its weights are in.
    """
    for module in codec.modules():
        if isinstance(module, SnakeBase):
            wide = torch.promote_types(dtype, torch.float32)
        else:
            wide = dtype
        for p in module.parameters(recurse=False):
            p.data = p.data.to(wide)
        if isinstance(module, SnakeBase) and not any(p.is_meta for p in module.parameters()):
            # sums on the meta device would import torch._dynamo, which takes 1.4 s
            module.cache_params()
        if isinstance(module, CausalModule) and kernels.wants_channels_last(dtype):
            order, back = _memory_order(module)
            laid_out = module.weight.data.permute(order).contiguous()
            module.weight.data = laid_out.permute(back)


def _memory_order(conv: CausalModule) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dimensions of a weight in memory, outermost first, and the way back. The inputs that are
    summed over lie side by side: for every tap and output, or for every output where the taps are
    read as one row."""
    if isinstance(conv, CausalConvTranspose1d):
        return (2, 1, 0), (2, 1, 0)
    if isinstance(conv, CausalConv1d) and conv.reads_rows:
        return (0, 2, 1), (0, 2, 1)
    return (2, 0, 1), (1, 2, 0)
