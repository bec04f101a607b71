"""The slot table: every per-request tensor, as a struct of arrays [slots + 1, ...]. The last row is padding.

Nothing here is allocated after start, so a captured step and an eager one read and write the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stentor.engine.sequence import BROKEN, LENGTH, RUNNING, STOPPED
from stentor.models.base import Column, Emit, ModelSpec


def engine_columns(spec: ModelSpec) -> dict[str, Column]:
    """Columns that every family has. `step` frames are made; `pos` tokens are in the KV cache."""
    i64 = torch.int64
    return {
        "pos": Column(dtype=i64),
        "step": Column(dtype=i64),
        "seed": Column(dtype=i64),
        "limit": Column(dtype=i64),
        "min_frames": Column(dtype=i64),
        "stop": Column(dtype=i64, fill=STOPPED),
        "temperature": Column(),
        "top_k": Column(dtype=i64),
        "top_p": Column(fill=1.0),
        "prev": spec.frame,
    }


class SlotTable:
    """Owns the columns. Rows `0 .. slots - 1` hold requests; row `slots` absorbs what padding writes."""

    def __init__(self, spec: ModelSpec, slots: int, max_frames: int, device: torch.device) -> None:
        self.slots, self.max_frames, self.keeps_frame = slots, max_frames, spec.stop_keeps_frame
        self.columns: Mapping[str, Column] = {**engine_columns(spec), **spec.columns}
        self.own = tuple(spec.columns)
        self.table = {name: self._filled(slots + 1, c, device) for name, c in self.columns.items()}
        self.frames = torch.zeros(slots + 1, max_frames, *spec.frame.shape, dtype=spec.frame.dtype, device=device)
        self.report = torch.zeros(slots + 1, 2, dtype=torch.int64, device=device)  # (step, stop) per slot

    @staticmethod
    def _filled(rows: int, c: Column, device: torch.device) -> Tensor:
        return torch.full((rows, *c.shape), c.fill, dtype=c.dtype, device=device)

    def rows(self, idx: Tensor, work: int) -> SlotRows:
        """The rows `idx` [B], gathered when first read."""
        return SlotRows(self, idx, work, {})

    def past(self, idx: Tensor, step: Tensor, work: int) -> SlotRows:
        """Rows as they were when `step - 1` was the last frame of `idx` (both [N]), for replaying frames."""
        return SlotRows(self, idx, work, {"step": step, "prev": self.frames[idx, step - 1]})

    def commit(self, rows: SlotRows, out: Emit, pos: Tensor) -> None:
        """Record one frame per running row, and `pos` [B] tokens in its KV. A stopped row keeps what it had."""
        running = rows["stop"] == RUNNING
        step = rows["step"]
        finite = out.frame.isfinite().flatten(1).all(1) if out.frame.is_floating_point() else torch.ones_like(running)
        stop = out.stop & (step >= rows["min_frames"])
        keep = running & finite & (~stop | self.keeps_frame)
        made = step + keep
        ended = torch.where(stop, STOPPED, torch.where(made >= rows["limit"], LENGTH, RUNNING))
        ended = torch.where(finite, ended, BROKEN)
        at = step.clamp_max(self.max_frames - 1)
        self.frames[rows.idx, at] = _choose(keep, out.frame, self.frames[rows.idx, at])
        new = {"prev": out.frame, **out.columns}
        for name, value in new.items():
            self.table[name][rows.idx] = _choose(keep, value, rows[name])
        status = torch.where(running, ended, rows["stop"])
        self.table["pos"][rows.idx] = _choose(running, pos, rows["pos"])
        self.table["step"][rows.idx] = made
        self.table["stop"][rows.idx] = status
        self.report[rows.idx] = torch.stack((made, status), dim=-1)


class SlotRows:
    """Some rows of the table during one step (implements models.base.Rows)."""

    def __init__(self, slots: SlotTable, idx: Tensor, work: int, seen: dict[str, Tensor]) -> None:
        """`seen`: columns that are known already."""
        self.idx, self.work = idx, work
        self._slots = slots
        self._seen = seen

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._seen:
            self._seen[name] = self._slots.table[name][self.idx]
        return self._seen[name]

    def lookup(self, name: str, index: Tensor) -> Tensor:
        return self._slots.table[name][self.idx, index]

    def recent(self, count: int) -> tuple[Tensor, Tensor]:
        at = self["step"][:, None] - torch.arange(1, count + 1, device=self.idx.device)
        return self._slots.frames[self.idx[:, None], at.clamp_min(0)], at >= 0


def _choose(keep: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(keep.view(-1, *[1] * (new.ndim - 1)), new.to(old.dtype), old)
