"""Rows of requests, and the step that plans all frames of a piece.

A piece has one step. Its report is that of a request which has ended, with all of its frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, TypeVar

import numpy as np

from stentor.engine.on_host import HostStep, Workers
from stentor.engine.scheduling.sequence import RUNNING, STOPPED, Sequence
from stentor.models.base import Prompt
from stentor.models.codec_timing import PieceTiming
from stentor.models.piece_model import PieceModel, PieceRow

T = TypeVar("T")


class PieceModelRunner:
    """Implements engine.side.ModelRunner. `rows` are of the slots."""

    def __init__(
        self, model: PieceModel, timing: PieceTiming, slots: int, workers: Workers
    ) -> None:
        self.model = model
        self.timing = timing
        self.workers = workers
        self.rows: list[PieceRow | None] = [None] * slots
        self.moved_on = False

    def row(self, seq: Sequence) -> PieceRow:
        row = self.rows[seq.slot]
        assert row is not None, "a row is written before it is launched"
        return row

    def admit(self, new: list[tuple[Sequence, Prompt, int]]) -> None:
        for seq, prompt, seed in new:
            self.rows[seq.slot] = PieceRow(prompt, seed)

    def covering_evals(self, num_evals: int) -> int:
        return num_evals

    def extend(self, seq: Sequence, name: str, start: int, values: np.ndarray) -> None:
        raise NotImplementedError("a family without steps needs the complete text")

    def save(self, seq: Sequence) -> PieceRow:
        row = self.row(seq)
        self.rows[seq.slot] = None
        return row

    def restore(self, seq: Sequence, saved: PieceRow) -> None:
        self.rows[seq.slot] = saved

    def set_pages(self, sequences: list[Sequence]) -> None:
        """Rows hold all that they need. Pages only bound the text that is planned at once."""

    def fill_pages(self, seq: Sequence, prompt: Prompt) -> None:
        raise NotImplementedError("a family without steps has no keys and values")

    def prefill(self, group: list[tuple[Sequence, Prompt]]) -> HostStep:
        """Plan the rows whose prompts end here, those of similar lengths together."""
        launched_at = time.monotonic()
        self.moved_on = True
        rows = [self.row(seq) for seq, _ in group if seq.emits]
        self.workers.each(self._plan, similar(rows, _positions, self.timing, 0))
        return self._step([seq for seq, _ in group], launched_at, True)

    def decode(self, sequences: list[Sequence]) -> HostStep:
        """Report again: all frames of a planned row exist."""
        return self._step(sequences, time.monotonic(), False)

    def _plan(self, rows: list[PieceRow]) -> None:
        for row, planned in zip(rows, self.model.plan(rows), strict=True):
            row.planned = planned

    def _step(self, sequences: list[Sequence], launched_at: float, prefill: bool) -> HostStep:
        generated = [0] * len(self.rows)
        stop = [STOPPED] * len(self.rows)
        for slot, row in enumerate(self.rows):
            if row is None:
                continue
            if row.planned is None:
                stop[slot] = RUNNING
            else:
                generated[slot] = len(row.planned.frames)
        return HostStep.ran(sequences, (generated, stop), prefill, launched_at)


def similar(
    items: Seq[T],
    length: Callable[[Any], int],
    bounds: PieceTiming,
    total: int,
) -> list[list[T]]:
    """Put items of similar lengths together, shortest first.

    bounds: of the rows of a call, and of its padding. total: lengths of a call with padding at
    most. 0: any.
    """
    groups: list[list[T]] = []
    shortest = 0
    sum_of_lengths = 0
    for item in sorted(items, key=length):
        longest = length(item)
        group = groups[-1] if groups else []
        padded = longest * (len(group) + 1)
        padding = padded - longest - sum_of_lengths
        is_similar = longest <= bounds.similar * shortest or padding <= bounds.padding
        fits = len(group) < bounds.rows and (not total or padded <= total)
        if group and is_similar and fits:
            group.append(item)
            sum_of_lengths += longest
        else:
            groups.append([item])
            shortest = longest
            sum_of_lengths = longest
    return groups


def _positions(row: PieceRow) -> int:
    return row.prompt.length
