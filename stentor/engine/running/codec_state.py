"""The codec's state of every slot: rows that are reset, read and written whole, and pages of what grows with a stream.

A page is of as many frames as the codec's grid has. Those of a voice's prefix are shared between its streams and stay.
Of its own a stream keeps the last, so that there are `CodecTiming.window` in all. So every slot always finds its pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.engine.running.device import Device
from stentor.engine.scheduling.pages import PageAllocator
from stentor.errors import EngineError
from stentor.layers.types import NO_END, CodecCall, CodecPageTable, Column, State, torch_dtype
from stentor.models.codec_timing import CodecTiming

WORD = 8  # bytes
ROW_ALIGN = 128


class CodecStateTable:
    """Columns whose rows lie one after the other, [rows, words] of 8 bytes, so that whole rows are read and written.

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
        """Write every column of `rows` in two kernel launches: one concatenates the columns, one stores the rows.
        EngineError names a column that is missing, or is none."""
        if wrong := state.keys() ^ self._specs.keys():
            raise EngineError(
                f"codec.decode must give the columns of codec.columns: {min(wrong)!r} is in one of them only"
            )
        parts = [part for name in self._specs for part in self._words(name, state)]
        if parts:
            self.data.index_copy_(0, rows, torch.cat(parts, dim=1))

    def _words(self, name: str, state: State) -> list[Tensor]:
        """A column [k, *shape] as words, then its padding. No copy is made if the values already lie as words."""
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
        """Set each of `rows` [k] to one row [words], which may be on the host. Nothing waits for the copy."""
        row = state.to(self.data.device, non_blocking=True)
        self.data.index_copy_(0, rows, row.expand(len(rows), -1))


@dataclass
class SlotPages:
    """Pages of one slot: those of the prefix, and pages of its own, chunk by chunk. The last ones replace the first.

    offset: frames of the prefix that are decoded with the stream's first chunks.
    """

    offset: int = 0
    prefix: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)

    @property
    def all(self) -> list[int]:
        return self.prefix + self.own


@dataclass(frozen=True)
class SavedCodec:
    """The codec's state of a request without a slot, on the host: its row and then its pages, as words."""

    words: Tensor
    pages: SlotPages


class CodecPages:
    """Owns the pool. `pool[name]` is [pages + 1, *shape]. Padding writes into the last page."""

    def __init__(
        self, columns: Mapping[str, Column], timing: CodecTiming, slots: int, device: Device
    ) -> None:
        if not timing.window:
            columns = {}
        self.columns = columns
        self.timing = timing
        self.device = device
        # pages that a call is told of each row
        if columns:
            self.width = timing.window
        else:
            self.width = 0
        self.padding = slots * self.width
        self.pages = PageAllocator(self.padding, timing.grid)
        self.pool = make_pool(columns, self.padding, device.torch)
        self.words = {
            name: math.prod(c.shape) * torch_dtype(c.dtype).itemsize // WORD
            for name, c in columns.items()
        }
        self._held: dict[int, SlotPages] = {}

    def enter(self, slot: int, prefix: int, key: str, saved: Tensor) -> None:
        """A stream with a codec prefix of so many frames begins. saved: `save` of the pages of its whole chunks."""
        count = self.timing.num_chunks(prefix)
        if not self.columns:
            return
        self.leave(slot)
        keys = [f"{key} {i}".encode() for i in range(count)]
        found = self.pages.find(keys)
        self.pages.hold(found)
        if len(found) < count:
            self.pages.free(found)
            found = self._load(count, saved)
            self.pages.publish(found, keys)
        self._held[slot] = SlotPages(self.timing.offset(prefix), found)

    def leave(self, slot: int) -> None:
        """Free the slot's pages. `enter` also does this, so it is safe to call twice."""
        if slot in self._held:
            self.pages.free(self._held.pop(slot).all)

    def row(self, slot: int, start: int, count: int) -> tuple[list[int], int]:
        """The pages [width] of a slot's chunk of `count` frames from frame `start`, and how many are before its own,
        which it writes. A chunk of several pages ends before the window does: the first would read what the last
        replaces.
        """
        held = self._held[slot]
        grid = self.timing.grid
        room = self.timing.window - len(held.prefix)
        own = -(-count // grid)
        end = (start + held.offset) // grid + own
        assert own == 1 or end <= room, "pages of a chunk would be cut"
        held.own += self._allocate(max(0, min(end, room) - len(held.own)))
        pages = held.prefix + [held.own[i % room] for i in range(max(0, end - room), end)]
        return pages + [self.padding] * (self.width - len(pages)), len(pages) - own

    def save(self, slot: int) -> list[Tensor]:
        """Copy the slot's pages into words on the device."""
        pages = self.device.upload(np.array(self.held(slot).all, np.int64))
        return [tensor[pages].flatten().view(torch.int64) for tensor in self.pool.values()]

    def held(self, slot: int) -> SlotPages:
        return self._held.get(slot, SlotPages())

    def restore(self, slot: int, held: SlotPages, saved: Tensor) -> None:
        """Load what `save` has given of a slot that held `held` into any slot, whose pages nobody shares."""
        if not self.columns:
            return
        self.leave(slot)
        pages = self._load(len(held.all), saved)
        count = len(held.prefix)
        self._held[slot] = SlotPages(held.offset, pages[:count], pages[count:])

    def _load(self, count: int, saved: Tensor) -> list[int]:
        """New pages with these words, which may be on the host. Nothing waits for the copy."""
        pages = self._allocate(count)
        at = 0
        try:
            where = self.device.upload(np.array(pages, np.int64))
            for name, c in self.columns.items():
                size = count * self.words[name]
                values = (
                    saved[at : at + size]
                    .to(self.device.torch, non_blocking=True)
                    .view(torch_dtype(c.dtype))
                )
                self.pool[name].index_copy_(0, where, values.view(count, *c.shape))
                at += size
        except BaseException:
            self.pages.free(pages)
            raise
        return pages

    def _allocate(self, count: int) -> list[int]:
        pages = self.pages.allocate(count)
        assert pages is not None, "every slot has pages for a window"
        return pages


def make_pool(columns: Mapping[str, Column], pages: int, device: torch.device) -> dict[str, Tensor]:
    """Pages, and one more for padding."""
    return {
        name: torch.zeros(pages + 1, *c.shape, dtype=torch_dtype(c.dtype), device=device)
        for name, c in columns.items()
    }


def one_row(pool: Mapping[str, Tensor], width: int, device: torch.device) -> CodecCall:
    """The call of one row at the beginning of a stream that goes on. width: pages that it is told of."""
    start, end, filled = torch.tensor([[0], [NO_END], [0]], device=device)
    table = torch.zeros(1, width, dtype=torch.int64, device=device)
    return CodecCall(start, end, CodecPageTable(pool, table, filled))
