"""Types that the layers share with the families and the engine. Importing them does not import
torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
"""Tensors [B, ...] that a codec carries from one call to the next, by name."""


class CodecPageTable(NamedTuple):
    """Pages of codec state that grow with each row's stream, as one call sees them.

    pool: by name, [pages, *shape]. table: [B, window] int64, the pages of each row. filled: [B]
    int64. table[b, : filled[b]] are of chunks before, to be read. Those of the call follow, one for
    each grid of its frames. They are written, in place.
    """

    pool: Mapping[str, Tensor]
    table: Tensor
    filled: Tensor


class CodecCall(NamedTuple):
    """Place of a codec call in each stream. A causal codec need not know.

    start: [B] int64, the stream's frame that comes first. Negative where a first chunk begins
    inside the codec prefix. end: [B] int64, the number of the stream's frames where it has ended,
    and otherwise NO_END. pages: empty where the codec has no pages. whole: whether each row is an
    utterance as a whole, from the first frame of its codec prefix on. silent: whether nobody hears
    the audio, so that only the state counts. A codec may return less audio then.
    """

    start: Tensor
    end: Tensor
    pages: CodecPageTable
    whole: bool = False
    silent: bool = False


NO_END = 1 << 40


DType: TypeAlias = "str | torch.dtype"
"""A dtype of torch, or its name: a spec can be made where torch is not installed."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """The dtype of torch that a spec means."""
    import torch

    if isinstance(dtype, str):
        named: torch.dtype = getattr(torch, dtype)
        return named
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


NO_PAGES: Mapping[str, Column] = MappingProxyType({})
"""Pages of a codec whose state does not grow: none."""

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
    """The Launch that calls, in windows that take little memory unless larger ones are asked for."""

    columns: int = 256

    def __call__(
        self, fn: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        return fn(*inputs)


eager = Eager()
