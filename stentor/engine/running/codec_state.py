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
        width = 0
        for name, column in columns.items():
            dtype = torch_dtype(column.dtype)
            count = math.prod(column.shape)
            num_bytes = count * dtype.itemsize
            padded_bytes = -(-num_bytes // ROW_ALIGN) * ROW_ALIGN
            end = width + padded_bytes // WORD
            self._slices[name] = slice(width, end)
            width = end
        self.data = torch.zeros(rows, width, dtype=torch.int64, device=device)
        self.columns = self._views(self.data)
        for name, column in columns.items():
            self.columns[name].fill_(column.fill)
        self.fresh = self.data[:1].clone()

    def _views(self, data: Tensor) -> State:
        """The columns of data [n, words]."""
        views = {}
        for name, column in self._specs.items():
            words = data[:, self._slices[name]]
            dtype = torch_dtype(column.dtype)
            count = math.prod(column.shape)
            values = words.view(dtype)
            values = values[:, :count]
            views[name] = values.view(len(data), *column.shape)
        return views

    def gather(self, rows: Tensor) -> State:
        """A copy of the columns of `rows` [k], in one kernel launch."""
        return self._views(self.data[rows])

    def store(self, rows: Tensor, state: State) -> None:
        """Write every column of `rows` in two kernel launches: one concatenates the columns, one
        stores the rows. EngineError names a column that is missing, or is none."""
        wrong = state.keys() ^ self._specs.keys()
        if wrong:
            raise EngineError(
                f"codec.decode must give the columns of codec.columns: {min(wrong)!r} is in one of them only"
            )
        parts: list[Tensor] = []
        for name in self._specs:
            parts += self._words(name, state[name])
        if parts:
            words = torch.cat(parts, dim=1)
            self.data.index_copy_(0, rows, words)

    def _words(self, name: str, column: Tensor) -> list[Tensor]:
        """A column [k, *shape] as words, then its padding. No copy is made if the values already
        lie as words."""
        dtype = torch_dtype(self._specs[name].dtype)
        per_word = WORD // dtype.itemsize
        place = self._slices[name]
        width = place.stop - place.start

        values = column.to(dtype).reshape(len(column), -1)
        count = values.shape[1]
        row_stride, stride = values.stride()
        layout = (count, row_stride, values.storage_offset())
        is_split = any(number % per_word for number in layout)
        if stride != 1 or is_split:
            missing = width * per_word - count
            values = F.pad(values, (0, missing))

        words = values.view(torch.int64)
        rest = width - words.shape[1]
        if not rest:
            return [words]
        padding = self.fresh[:, :1].expand(len(words), rest)
        return [words, padding]

    def reset(self, rows: Tensor) -> None:
        """Set every column of `rows` [k] to its fill."""
        fresh = self.fresh.expand(len(rows), -1)
        self.data.index_copy_(0, rows, fresh)

    def fill(self, rows: Tensor, state: Tensor) -> None:
        """Set each of `rows` [k] to one row [words], which may be on the host. Nothing waits for
        the copy."""
        row = state.to(self.data.device, non_blocking=True)
        copies = row.expand(len(rows), -1)
        self.data.index_copy_(0, rows, copies)


def one_row(device: torch.device, count: int) -> CodecCall:
    """The call of one row of `count` frames at the beginning of a stream that goes on."""
    bounds = [[0], [count], [NO_END]]
    start, stop, end = torch.tensor(bounds, device=device)
    return CodecCall(start, stop, end, count)
