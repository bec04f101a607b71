"""Calls that make the samples of whole pieces, beside the engine's thread."""

from __future__ import annotations

from functools import partial

import numpy as np

from stentor.engine.on_host import Arrays, HostAudio, Workers
from stentor.engine.running_pieces.model_runner import PieceModelRunner, similar
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence
from stentor.models.base import Prompt
from stentor.models.codec_timing import CodecTiming, PieceTiming
from stentor.models.info import ATTENDED_WIDTH, REACH
from stentor.models.piece_model import PieceModel, PieceRow, Planned


class PieceCodecRunner:
    """Implements engine.side.CodecRunner. A codec of whole pieces has no state."""

    def __init__(
        self,
        model: PieceModel,
        timing: PieceTiming,
        rows: PieceModelRunner,
        workers: Workers,
    ) -> None:
        self.model = model
        self.timing: CodecTiming = timing
        self._bounds = timing
        self.rows = rows
        self.workers = workers
        self.moved_on = False

    def admit(self, new: list[tuple[Sequence, Prompt]]) -> None:
        """Nothing is kept by slot."""

    def save(self, seq: Sequence) -> None:
        """The plan goes with the row."""

    def restore(self, seq: Sequence, saved: None) -> None:
        """Nothing was saved."""

    def decode_first_frames(self, sequences: list[Sequence]) -> None:
        """A plan has been made when its step returns, so its piece is due at once."""

    def has_first_frame(self, seq: Sequence) -> bool:
        return False

    def launched_first(self, jobs: list[AudioJob]) -> tuple[list[HostAudio], list[AudioJob]]:
        return [], jobs

    def parts(self, jobs: list[AudioJob]) -> list[list[AudioJob]]:
        """Calls in the order of their most urgent piece."""
        bounds = self._bounds
        order = {job.seq.id: at for at, job in enumerate(jobs)}

        def urgency(call: list[AudioJob]) -> int:
            return min(order[job.seq.id] for job in call)

        calls = similar(jobs, _frames, bounds, bounds.frames)
        return sorted(calls, key=urgency)

    def launch(self, jobs: list[AudioJob]) -> HostAudio:
        rows = [self.rows.row(job.seq) for job in jobs]
        future = self.workers.start(partial(self._speak, rows))
        return HostAudio(jobs, future)

    def _speak(self, rows: list[PieceRow]) -> Arrays:
        """Samples [n * hop], frames [n, *frame] and text positions of whole pieces."""
        samples = self.model.speak(rows)
        plans = [planned_of(row) for row in rows]
        return samples, [plan.frames for plan in plans], [attended(plan) for plan in plans]


def planned_of(row: PieceRow) -> Planned:
    """The plan of a row, which a step has made."""
    assert row.planned is not None, "a piece is due once its step has been read"
    return row.planned


def attended(plan: Planned) -> np.ndarray:
    """The text position of each frame as alignment heads would report it, with all attention on
    it: float32 [n, ATTENDED_WIDTH]."""
    shape = (len(plan.places), ATTENDED_WIDTH)
    rows = np.zeros(shape, np.float32)
    rows[:, 0] = plan.places
    rows[:, 1 + REACH] = 1.0
    return rows


def _frames(job: AudioJob) -> int:
    return job.count
