"""The slot table: every per-request tensor, as a struct of arrays [slots + 1, ...]. The last row is
padding.

Numbers of one dtype lie in one tensor [numbers, slots + 1], so that a step gathers all of them at
once and an admission writes all of them at once. Nothing here is allocated after start, so a
captured step and an eager one use the same memory. The codec's state is elsewhere (codec_state.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor import kernels
from stentor.engine.columns import engine_columns
from stentor.engine.running.device import Device, Shape, StagingBuffer, host_values, zeros
from stentor.engine.scheduling.sequence import BROKEN, LENGTH, RUNNING, STOPPED
from stentor.errors import EngineError
from stentor.kernels.buffers import empty_aligned
from stentor.kernels.types import RowRef, RowStatus
from stentor.layers.types import Column, torch_dtype
from stentor.models.base import Emit, FrameKV, ModelSpec
from stentor.models.info import ATTENDED_WIDTH

PROGRESS = ("step", "stop", "pos", "emitted")  # the first numbers, written by every step
STATES = RowStatus(RUNNING=RUNNING, STOPPED=STOPPED, LENGTH=LENGTH, BROKEN=BROKEN)
GATHERED = (torch.int64, torch.float32)  # dtypes of numbers that a kernel gathers
SLOTS = ""  # their part of a staging buffer: no column has this name
Row = tuple[int, Mapping[str, Any]]
"""A slot and values of its columns: numbers, or arrays no longer than the column."""


class SlotTable:
    """Owns the columns. Rows `0 .. slots - 1` hold requests. Row `slots` absorbs what padding
    writes.

    `table[name]` is a view [slots + 1, ...] of a column. Columns of numbers are the rows of
    `numbers[dtype]`.
    """

    def __init__(self, spec: ModelSpec, slots: int, max_frames: int, device: torch.device) -> None:
        self.slots = slots
        self.max_frames = max_frames
        self.keeps_frame = spec.stop_keeps_frame
        self.columns: Mapping[str, Column] = {**engine_columns(spec), **spec.columns}
        self.own = tuple(spec.columns)
        self.names: dict[torch.dtype, list[str]] = {}  # of the numbers, in their order
        self.arrays: list[str] = []
        self.table: dict[str, Tensor] = {}
        for name, column in self.columns.items():
            if column.shape:
                self.arrays.append(name)
                self.table[name] = column.rows(slots + 1, device)
            else:
                dtype = torch_dtype(column.dtype)
                self.names.setdefault(dtype, []).append(name)

        self.numbers: dict[torch.dtype, Tensor] = {}
        for dtype, names in self.names.items():
            numbers = self._numbers(names, device)
            self.numbers[dtype] = numbers
            self.table.update(zip(names, numbers, strict=True))

        frames_shape = (slots + 1, max_frames, *spec.frame.shape)
        self.frames = zeros(frames_shape, torch_dtype(spec.frame.dtype), device)
        self.hides_frames = spec.hides_frames
        emitted_shape: tuple[int, ...] = (0,)
        if spec.hides_frames:
            emitted_shape = (slots + 1, max_frames)
        # the steps of a row's emitted frames
        self.emitted_at = torch.zeros(emitted_shape, dtype=torch.int64, device=device)
        if spec.alignment:
            width = ATTENDED_WIDTH
        else:
            width = 0
        # where in the text each frame is
        self.attended = torch.zeros(slots + 1, max_frames, width, device=device)
        # of a prompt's last token, until frame 0
        self.hidden = tuple(c.rows(slots + 1, device) for c in spec.hidden)
        num_progress = sum(name in self.columns for name in PROGRESS)
        self.progress = self.numbers[torch.int64][:num_progress]
        # what the host reads after a step
        if spec.hides_frames:
            self.reported = self.progress
        else:
            self.reported = self.progress[:2]
        self.fused_gather = bool(spec.frame.shape)
        """Whether one kernel gathers last frames and numbers: frames must lie in a tensor of their
        own."""
        self.report = self.progress[:2].T  # (step, stop) per slot

    def _numbers(self, names: list[str], device: torch.device) -> Tensor:
        fills = [self.columns[name].fill for name in names]
        first = self.columns[names[0]]
        one_row = torch.tensor(fills, dtype=torch_dtype(first.dtype), device=device)
        return one_row[:, None].repeat(1, self.slots + 1)

    def admit(self, rows: Seq[Row], device: Device) -> None:
        """Write fresh rows: these values, and the fill of every other column."""
        count = len(rows)
        parts: dict[str, Shape] = {SLOTS: ((count,), torch.int64)}
        for dtype, names in self.names.items():
            parts[str(dtype)] = ((len(names), count), dtype)
        for name in self.arrays:
            column = self.columns[name]
            parts[name] = ((count, *column.shape), torch_dtype(column.dtype))

        buffer = StagingBuffer(parts, device)
        self._fill(buffer.host, rows)
        new = buffer.send()
        idx = new[SLOTS]
        for dtype, numbers in self.numbers.items():
            numbers.index_copy_(1, idx, new[str(dtype)])
        for name in self.arrays:
            self.table[name].index_copy_(0, idx, new[name])

    def _fill(self, host: Mapping[str, np.ndarray], rows: Seq[Row]) -> None:
        host[SLOTS][:] = [slot for slot, _ in rows]
        for dtype, names in self.names.items():
            numbers = []
            for name in names:
                fill = self.columns[name].fill
                numbers.append([row.get(name, fill) for _, row in rows])
            host[str(dtype)][:] = host_values(numbers, dtype)

        for name in self.arrays:
            column = self.columns[name]
            dtype = torch_dtype(column.dtype)
            host[name][:] = host_values(column.fill, dtype)
            for target, (_, row) in zip(host[name], rows, strict=True):
                if name not in row:
                    continue
                value = host_values(row[name], dtype)
                if value.ndim:
                    target[: len(value)] = value
                else:
                    target[:] = value

    def save(self, slot: int, frames: int, device: Device) -> list[Tensor]:
        """Host copies of a row and of its first frames. They are complete once later work on this
        stream has begun."""
        return [device.download(part) for part in self._parts(slot, frames)]

    def restore(self, slot: int, frames: int, saved: list[Tensor]) -> None:
        """Write a row with `frames` frames that `save` returned into any slot."""
        for part, value in zip(self._parts(slot, frames), saved, strict=True):
            part.copy_(value, non_blocking=True)

    def _parts(self, slot: int, frames: int) -> list[Tensor]:
        """Views of everything that the table has of a slot."""
        parts = [numbers[:, slot] for numbers in self.numbers.values()]
        parts += [self.table[name][slot] for name in self.arrays]
        if self.hides_frames:
            parts.append(self.emitted_at[slot, :frames])
        parts.append(self.attended[slot, :frames])
        parts.append(self.frames[slot, :frames])
        return parts

    def emitted_frames(self, idx: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Emitted frames [B, n, *frame] of slots idx [B], by their numbers at [B, n], and their
        places in the text [B, n, ATTENDED_WIDTH or 0]. Frames that do not exist are arbitrary."""
        rows = idx[:, None]
        at = at.clamp(0, self.max_frames - 1)
        if self.hides_frames:
            at = self.emitted_at[rows, at]
        return self.frames[rows, at], self.attended[rows, at]

    def rows(
        self, idx: Tensor, num_evals: int, frame_kv: FrameKV | None = None, first: bool = False
    ) -> SlotRows:
        """The rows `idx` [B]. A column is gathered when it is first read. frame_kv: page sets by
        frame, for `emit`."""
        return SlotRows(self, idx, num_evals, {}, frame_kv, first)

    def past(self, idx: Tensor, step: Tensor) -> SlotRows:
        """Rows as they were when frame `step - 1` was the last frame of `idx` (both [N]), to replay
        frames."""
        last_frames = self.frames[idx, step - 1]
        history = {"step": step, "prev": last_frames}
        return SlotRows(self, idx, 0, history, replays=True)

    def keep_hidden(self, idx: Tensor, hidden: tuple[Tensor, ...], length: Tensor) -> None:
        """Keep what the backbone gave for the last tokens of prompts of `length` [B] tokens, each
        [B, ...]."""
        for column, new in zip(self.hidden, hidden, strict=True):
            column.index_copy_(0, idx, new)
        self.table["pos"].index_copy_(0, idx, length)

    def hidden_of(self, idx: Tensor) -> tuple[Tensor, ...]:
        """Hidden states that `keep_hidden` has kept for slots idx [B]."""
        return tuple(column.index_select(0, idx) for column in self.hidden)

    def commit(
        self, rows: SlotRows, out: Emit, length: Tensor | None, attended: Tensor | None = None
    ) -> None:
        """Record one frame per running row, and that its key-value cache holds `length` [B] tokens
        (None: one more).

        A stopped row does not change. attended: where in the text each frame is [B,
        ATTENDED_WIDTH]. EngineError names a value that does not fit the family's spec.
        """
        self._check(out)
        if kernels.slot_kernels_enabled(rows.idx.device):
            self._commit_fused(rows, out, length, attended)
            return
        if length is None:
            pos = rows["pos"] + 1
        else:
            pos = length
        running = rows["stop"] == RUNNING
        step = rows["step"]
        if out.frame.is_floating_point():
            valid = out.frame.isfinite()
        else:
            valid = out.frame >= 0
        finite = valid.flatten(1).all(1)
        stop = out.stop & (step >= rows["min_frames"])
        keep = running & finite & (~stop | self.keeps_frame)
        num_frames = step + keep
        is_full = num_frames >= rows["max_frames"]
        unstopped = torch.where(is_full, LENGTH, RUNNING)
        ended = torch.where(stop, STOPPED, unstopped)
        ended = torch.where(finite, ended, BROKEN)
        status = torch.where(running, ended, rows["stop"])

        at = step.clamp_max(self.max_frames - 1)
        frames = _choose(keep, out.frame, self.frames[rows.idx, at])
        new_columns = {"prev": out.frame, **out.columns}
        new = {name: _choose(keep, value, rows[name]) for name, value in new_columns.items()}
        positions = _choose(running, pos, rows["pos"])
        counted = [num_frames, status, positions]
        if out.emitted is not None:
            emitted = keep & out.emitted
            counted.append(rows["emitted"] + emitted)
            emitted_as = rows["emitted"].clamp_max(self.max_frames - 1)
            old_steps = self.emitted_at[rows.idx, emitted_as]
            self.emitted_at[rows.idx, emitted_as] = _choose(emitted, step, old_steps)
        if attended is not None:
            old_places = self.attended[rows.idx, at]
            self.attended[rows.idx, at] = _choose(keep, attended, old_places)
        progress = torch.stack(counted)
        # All memory has been allocated: a step that runs out of it has changed nothing.
        self.frames[rows.idx, at] = frames
        for name, value in new.items():
            self.table[name][rows.idx] = value
        self.progress.index_copy_(1, rows.idx, progress)

    def _check(self, out: Emit) -> None:
        shape = tuple(out.frame.shape[1:])
        expected = self.columns["prev"].shape
        if shape != expected:
            raise EngineError(f"emit gives frames of shape {shape}, and spec.frame says {expected}")
        names = out.columns.keys() - set(self.own)
        if names:
            raise EngineError(f"emit gives the column {min(names)!r}, which is not in spec.columns")

    def _commit_fused(
        self, rows: SlotRows, out: Emit, length: Tensor | None, attended: Tensor | None
    ) -> None:
        """`commit` in one kernel launch, and one more for each of the family's columns and for
        `attended`."""
        names = ("step", "stop", "pos", "max_frames", "min_frames")
        arguments = (rows.idx, *(rows[name] for name in names))
        table = (self.progress, self.frames, self.table["prev"])
        new = {}
        for name, value in out.columns.items():
            new[name] = value.to(self.table[name].dtype)
        if out.emitted is None:
            hidden = None
        else:
            hidden = (out.emitted, rows["emitted"], self.emitted_at)
        written = kernels.slot_table.commit(
            arguments, length, out.stop, out.frame, table, STATES, self.keeps_frame, hidden
        )
        for name, value in new.items():
            kernels.slot_table.masked_write(rows.idx, written, value, self.table[name])
        if attended is not None:
            step = rows["step"].clamp_max(self.max_frames - 1)
            at = rows.idx * self.max_frames + step
            places = self.attended.flatten(0, 1)
            kernels.slot_table.masked_write(at, written, attended, places)


class SlotRows:
    """Some rows of the table during one step (implements models.base.Rows)."""

    def __init__(
        self,
        slots: SlotTable,
        idx: Tensor,
        num_evals: int,
        history: dict[str, Tensor],
        frame_kv: FrameKV | None = None,
        first: bool = False,
        replays: bool = False,
    ) -> None:
        """history: columns that are already known."""
        self.idx = idx
        self.num_evals = num_evals
        self.first = first
        self.replays = replays
        self._slots = slots
        self._frame_kv = frame_kv
        self._seen = history

    @property
    def frame_kv(self) -> FrameKV:
        assert self._frame_kv is not None, "only emit sees page sets by frame through rows"
        return self._frame_kv

    def __getitem__(self, name: str) -> Tensor:
        if not self._seen and self._is_fused:
            self._gather_fused()
        if name not in self._seen:
            self._gather(name)
        return self._seen[name]

    @property
    def _is_fused(self) -> bool:
        return self._slots.fused_gather and kernels.slot_kernels_enabled(self.idx.device)

    def _gather_fused(self) -> None:
        """Gather all numbers and the last frames in one kernel launch."""
        slots = self._slots
        ints, floats = (slots.numbers[dtype] for dtype in GATHERED)
        gathered = kernels.slot_table.gather(self.idx, ints, floats, slots.table["prev"])
        numbers = (gathered.ints, gathered.floats)
        for dtype, values in zip(GATHERED, numbers, strict=True):
            names = slots.names[dtype]
            self._seen.update(zip(names, values, strict=True))
        self._seen["prev"] = gathered.frames

    def _gather(self, name: str) -> None:
        """Gather a column. Numbers come with all others of their dtype."""
        slots = self._slots
        column = slots.columns[name]
        if column.shape:
            self._seen[name] = slots.table[name][self.idx]
            return

        dtype = torch_dtype(column.dtype)
        numbers = slots.numbers[dtype]
        gathered = empty_aligned(len(numbers), len(self.idx), dtype, numbers.device)
        torch.index_select(numbers, 1, self.idx, out=gathered)
        for other, values in zip(slots.names[dtype], gathered, strict=True):
            self._seen.setdefault(other, values)

    def place(self) -> Tensor:
        """Where in its text each row's last frame is [B] float32. 0 before frame 0."""
        step = self["step"]
        places = self._slots.attended[self.idx, step - 1, 0]
        return places * (step > 0)

    def lookup(self, name: str, index: Tensor) -> Tensor:
        return self._slots.table[name][self.idx, index]

    def recent(self, count: int) -> tuple[Tensor, Tensor]:
        back = torch.arange(1, count + 1, device=self.idx.device)
        at = self["step"][:, None] - back
        rows = self.idx[:, None]
        frames = self._slots.frames[rows, at.clamp_min(0)]
        return frames, at >= 0

    def made(self) -> Tensor:
        slots = self._slots
        step = self["step"].clamp_max(slots.max_frames - 1)
        return slots.frames[self.idx, step]

    def column(self, name: str) -> RowRef:
        return RowRef(self._slots.table[name], self.idx)

    def history(self) -> RowRef:
        return RowRef(self._slots.frames, self.idx)


def _choose(keep: Tensor, new: Tensor, old: Tensor) -> Tensor:
    ones = [1] * (new.ndim - 1)
    mask = keep.view(-1, *ones)
    return torch.where(mask, new.to(old.dtype), old)
