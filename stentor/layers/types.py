"""Types that the layers share with the families and the engine. Importing them does not import
torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
"""Tensors [B, ...] that a codec carries from one call to the next, by name."""


class CodecCall(NamedTuple):
    """Place of a codec call in each stream. A causal codec need not know.

    start: [B] int64, the stream's first frame whose audio the call makes.
    stop: [B] int64, the frame behind the last one.
    end: [B] int64, the number of the stream's frames where it has ended, and otherwise NO_END.
    decodes: frames whose audio the call makes, in the row that has most of them.
    silent: whether the audio is discarded, so that only the state counts. A codec may return less
    audio then.
    """

    start: Tensor
    stop: Tensor
    end: Tensor
    decodes: int
    silent: bool = False


NO_END = 1 << 40


DType: TypeAlias = "str | torch.dtype"
"""A dtype of torch, or its name: a spec can be made where torch is not installed."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of a spec's `DType`."""
    import torch

    if isinstance(dtype, str):
        value: torch.dtype = getattr(torch, dtype)
        return value
    return dtype


def dtype_name(dtype: DType) -> str:
    """The name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Column:
    """One tensor of the slot table: `shape` and `dtype` of a single row, and the value of a fresh
    row."""

    shape: tuple[int, ...] = ()
    dtype: DType = "float32"
    fill: float = 0

    def rows(self, count: int, device: torch.device | None = None) -> Tensor:
        """Return `count` fresh rows."""
        import torch

        dtype = torch_dtype(self.dtype)
        return torch.full((count, *self.shape), self.fill, dtype=dtype, device=device)


ADAPTER = "adapter"
"""The column with the number of each row's LoRA adapter, 0 for none, in a model that takes
adapters."""


class Launch(Protocol):
    """launch(fn, *inputs) is fn(*inputs), perhaps from a graph. Such results are valid until the
    next call.

    columns: output columns of the largest window that is launched, where a recording is taken a
    window at a time.
    """

    @property
    def columns(self) -> int: ...
    def __call__(
        self, fn: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class Eager:
    """The Launch that calls, by default in windows that take little memory."""

    columns: int = 256

    def __call__(
        self, fn: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        return fn(*inputs)


eager = Eager()
