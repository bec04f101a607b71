"""Rows of requests, and the steps that make their frames.

Every row runs by itself, and a prompt in one piece: products in 8 bits have one scale per call, so
what shares a call depends on its neighbours. Audio is therefore the same bytes with other requests,
streamed, and after preemption. A preempted row keeps its keys and values. Pages only bound how many
positions run.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from stentor.engine.on_host import HostStep, Workers
from stentor.engine.running_onnx.alignment import attended, text_masks
from stentor.engine.scheduling.sequence import BROKEN, LENGTH, RUNNING, STOPPED, Sequence
from stentor.graphs.rng import uniform
from stentor.models.base import Prompt
from stentor.models.graph_model import GraphModel, GraphRow


class GraphModelRunner:
    """Implements engine.side.ModelRunner. `rows` are of the slots."""

    def __init__(self, model: GraphModel, slots: int, workers: Workers) -> None:
        self.model = model
        self.workers = workers
        self.rows: list[GraphRow | None] = [None] * slots
        self.moved_on = False

    def row(self, seq: Sequence) -> GraphRow:
        row = self.rows[seq.slot]
        assert row is not None, "a row is written before it is launched"
        return row

    def admit(self, new: list[tuple[Sequence, Prompt, int]]) -> None:
        silence = np.zeros(self.model.spec.frame.shape)
        for seq, prompt, seed in new:
            columns = {
                "max_frames": prompt.max_frames,
                "min_frames": prompt.min_frames,
                **prompt.columns,
            }
            previous = np.asarray(columns.pop("prev", silence), np.float32)
            memory = self.model.silence()
            self.rows[seq.slot] = GraphRow(prompt, seed, previous, columns, memory)

    def covering_evals(self, num_evals: int) -> int:
        return num_evals

    def extend(self, seq: Sequence, name: str, start: int, values: np.ndarray) -> None:
        columns = self.row(seq).columns
        unchanged = columns[name][:start]
        columns[name] = np.concatenate((unchanged, values))

    def save(self, seq: Sequence) -> GraphRow:
        row = self.row(seq)
        self.rows[seq.slot] = None
        return row

    def restore(self, seq: Sequence, saved: GraphRow) -> None:
        self.rows[seq.slot] = saved

    def set_pages(self, sequences: list[Sequence]) -> None:
        """Rows hold their own keys and values."""

    def fill_pages(self, seq: Sequence, prompt: Prompt) -> None:
        raise NotImplementedError("no family with graphs brings keys and values")

    # -- steps --

    def prefill(self, group: list[tuple[Sequence, Prompt]]) -> HostStep:
        """Run the prompts that end here. Earlier pieces and replayed frames need nothing."""
        launched_at = time.monotonic()
        self.moved_on = True
        sequences = [seq for seq, _ in group]
        rows = [self.row(seq) for seq in sequences if seq.emits]
        self.workers.each(self._first_frame, rows)
        return self._step(sequences, launched_at, True)

    def decode(self, sequences: list[Sequence]) -> HostStep:
        launched_at = time.monotonic()
        self.moved_on = True
        rows = [self.row(seq) for seq in sequences]
        self.workers.each(self._next_frame, rows)
        return self._step(sequences, launched_at, False)

    def _step(self, sequences: list[Sequence], launched_at: float, prefill: bool) -> HostStep:
        generated = [0] * len(self.rows)
        stop = [STOPPED] * len(self.rows)
        for slot, row in enumerate(self.rows):
            if row is not None:
                generated[slot] = row.step
                stop[slot] = row.stop
        return HostStep.ran(sequences, (generated, stop), prefill, launched_at)

    def _first_frame(self, row: GraphRow) -> None:
        positions = row.prompt.length
        masks = text_masks(self.model.spec.alignment, row, positions)
        read = partial(self.model.read_prompt, row, masks.inside)
        self._emit(row, read, positions)

    def _next_frame(self, row: GraphRow) -> None:
        if row.stop != RUNNING:
            return
        positions = row.positions + 1
        masks = text_masks(self.model.spec.alignment, row, positions)
        read = partial(self.model.read_frame, row, masks)
        self._emit(row, read, positions)

    def _emit(self, row: GraphRow, read: Any, positions: int) -> None:
        """Make a frame and commit it, as `SlotTable.commit` does for rows of a table."""
        spec = self.model.spec
        reading = read()
        draws = uniform(row.seed, row.step, spec.draws)
        emitted = self.model.emit(row, reading, draws)
        row.memory = reading.memory
        row.positions = positions
        if not np.isfinite(emitted.frame).all():
            row.stop = BROKEN
            return
        stops = emitted.stop and row.step >= row.columns["min_frames"]
        if not stops or spec.stop_keeps_frame:
            where = attended(spec.alignment, row, reading.attention)
            row.frames.append(emitted.frame)
            row.attended.append(where)
            row.text_place = 0
            if len(where):
                row.text_place = int(where[0])
            row.previous = emitted.frame
            row.step += 1
        if stops:
            row.stop = STOPPED
        elif row.step >= row.columns["max_frames"]:
            row.stop = LENGTH
