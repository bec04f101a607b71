"""Codec calls of the rows, each by itself on a worker thread, beside the steps that make the next
frames."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import numpy as np

from stentor.engine.on_host import Arrays, HostAudio, Workers
from stentor.engine.running_onnx.model_runner import GraphModelRunner
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.sequence import Sequence
from stentor.models.base import Prompt
from stentor.models.graph_model import GraphModel, GraphRow


class GraphCodecRunner:
    """Implements engine.side.CodecRunner. A row's histories are in the row."""

    def __init__(
        self,
        model: GraphModel,
        rows: GraphModelRunner,
        workers: Workers,
    ) -> None:
        self.model = model
        self.rows = rows
        self.workers = workers
        self.timing = model.spec.codec_timing
        self.moved_on = False
        self._last: dict[int, Future[Arrays]] = {}  # by slot: calls of one row run in order

    def admit(self, new: list[tuple[Sequence, Prompt]]) -> None:
        for seq, _ in new:
            self._last.pop(seq.slot, None)

    def save(self, seq: Sequence) -> None:
        """The histories go with the row, once its last call has run."""
        last = self._last.pop(seq.slot, None)
        if last is not None:
            last.exception()

    def restore(self, seq: Sequence, saved: None) -> None:
        self._last.pop(seq.slot, None)

    def decode_first_frames(self, sequences: list[Sequence]) -> None:
        """A step has run when it returns, so first chunks are due at once."""

    def has_first_frame(self, seq: Sequence) -> bool:
        return False

    def launched_first(self, jobs: list[AudioJob]) -> tuple[list[HostAudio], list[AudioJob]]:
        return [], jobs

    def parts(self, jobs: list[AudioJob]) -> list[list[AudioJob]]:
        return [[job] for job in jobs]

    def launch(self, jobs: list[AudioJob]) -> HostAudio:
        (job,) = jobs
        self.moved_on = True
        row = self.rows.row(job.seq)
        chunk = slice(job.start, job.start + job.count)
        frames = row.frames[chunk]
        attended = row.attended[chunk]
        before = self._last.get(job.seq.slot)
        future = self.workers.start(partial(self._decode, row, frames, attended, before))
        self._last[job.seq.slot] = future
        return HostAudio(jobs, future)

    def _decode(
        self,
        row: GraphRow,
        frames: list[np.ndarray],
        attended: list[np.ndarray],
        before: Future[Arrays] | None,
    ) -> Arrays:
        """Samples [1, n * hop], frames [1, n, *frame] and text positions of a chunk, after the
        row's last call."""
        if before is not None:
            before.result()
        samples, row.codec = self.model.decode(frames, row.codec)
        return samples[None], np.stack(frames)[None], np.stack(attended)[None]
