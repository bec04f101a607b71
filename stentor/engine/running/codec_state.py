"""The codec's state of every slot: rows that are reset, read and written at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.errors import EngineError
from stentor.layers.types import NO_END, CodecCall, Column, State, torch_dtype

WORD = 8  # bytes
ROW_ALIGN = 128


class CodecStateTable:
    """Columns whose rows lie one after the other, [rows, words] of 8 bytes, so that whole rows are
    read and written.

    `columns[name]` [rows, *shape] are views.
    """

    def __init__(self, columns: Mapping[str, Column], rows: int, device: torch.device) -> None:
        self._specs = columns
        self._slices = {}
        end = 0
        for name, c in columns.items():
            words = (
                -(-math.prod(c.shape) * torch_dtype(c.dtype).itemsize // ROW_ALIGN)
                * ROW_ALIGN
                // WORD
            )
            self._slices[name] = slice(end, end + words)
            end += words
        self.data = torch.zeros(rows, end, dtype=torch.int64, device=device)
        self.columns = self._views(self.data)
        for name, c in columns.items():
            self.columns[name].fill_(c.fill)
        self.fresh = self.data[:1].clone()

    def _views(self, data: Tensor) -> State:
        """The columns of data [n, words]."""
        views = {}
        for name, c in self._specs.items():
            count = math.prod(c.shape)
            values = data[:, self._slices[name]].view(torch_dtype(c.dtype))[:, :count]
            views[name] = values.view(len(data), *c.shape)
        return views

    def gather(self, rows: Tensor) -> State:
        """A copy of the columns of `rows` [k], in one kernel launch."""
        return self._views(self.data[rows])

    def store(self, rows: Tensor, state: State) -> None:
        """Write every column of `rows` in two kernel launches: one concatenates the columns, one
        stores the rows. EngineError names a column that is missing, or is none."""
        if wrong := state.keys() ^ self._specs.keys():
            raise EngineError(
                f"codec.decode must give the columns of codec.columns: {min(wrong)!r} is in one of them only"
            )
        parts = [part for name in self._specs for part in self._words(name, state)]
        if parts:
            self.data.index_copy_(0, rows, torch.cat(parts, dim=1))

    def _words(self, name: str, state: State) -> list[Tensor]:
        """A column [k, *shape] as words, then its padding. No copy is made if the values already
        lie as words."""
        c = self._specs[name]
        words_slice = self._slices[name]
        values = state[name].to(torch_dtype(c.dtype)).reshape(len(state[name]), -1)
        per_word = WORD // torch_dtype(c.dtype).itemsize
        layout = (values.shape[1], values.stride(0), values.storage_offset())
        if values.stride(1) != 1 or any(n % per_word for n in layout):
            values = F.pad(
                values, (0, (words_slice.stop - words_slice.start) * per_word - values.shape[1])
            )
        words = values.view(torch.int64)
        rest = words_slice.stop - words_slice.start - words.shape[1]
        if rest:
            return [words, self.fresh[:, :1].expand(len(words), rest)]
        return [words]

    def reset(self, rows: Tensor) -> None:
        """Set every column of `rows` [k] to its fill."""
        self.data.index_copy_(0, rows, self.fresh.expand(len(rows), -1))

    def fill(self, rows: Tensor, state: Tensor) -> None:
        """Set each of `rows` [k] to one row [words], which may be on the host. Nothing waits for
        the copy."""
        row = state.to(self.data.device, non_blocking=True)
        self.data.index_copy_(0, rows, row.expand(len(rows), -1))


def one_row(device: torch.device, count: int) -> CodecCall:
    """The call of one row of `count` frames at the beginning of a stream that goes on."""
    start, stop, end = torch.tensor([[0], [count], [NO_END]], device=device)
    return CodecCall(start, stop, end, count)
