"""From a plan to launches. A launch that fails ends the requests that it names, and no others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from stentor.engine.requests import OpenRequests, SavedRow
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.prefill import StepPlan, by_num_evals, by_prefill
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import Phase, Sequence
from stentor.engine.side import CodecRunner, InFlightAudio, InFlightStep, ModelRunner, RunningSide
from stentor.errors import EngineError

log = logging.getLogger("stentor.engine")

T = TypeVar("T")
R = TypeVar("R")


class Launcher:
    """Used from the engine's thread only."""

    def __init__(
        self, side: RunningSide, scheduler: Scheduler, requests: OpenRequests, hides_frames: bool
    ) -> None:
        """hides_frames: whether some frames have no audio."""
        self.side = side
        self.runner = side.runner
        self.codec = side.codec
        self.hides_frames = hides_frames
        self.scheduler = scheduler
        self.requests = requests

    def write(self, plan: StepPlan) -> None:
        """Copy what the steps of `plan` read to the device: rows and page tables."""
        self._park(plan.parked)
        resumed = [s for s in plan.resumed if s not in plan.unparked]
        ready = (
            self._each(plan.admitted, self._write_rows)
            + self._each(plan.unparked, self._restore_rows)
            + resumed
        )
        for seq in plan.unparked:
            self.requests.of(seq).saved = None
        self._each(self._each(ready, self.runner.set_pages), self._write_given)
        self._each(plan.regrown, self.runner.set_pages)

    def step(self, plan: StepPlan) -> list[InFlightStep]:
        """Launch what `plan` has for the language model, after `write`."""
        steps: list[InFlightStep] = []
        stats = self.requests.stats
        group = [seq for seq in plan.prefill if not seq.cancelled]
        if len(group) < len(plan.prefill):  # the pages of one that has failed are not written
            group = self._put_back(group, plan.dependent)
        if group:
            stats.prefills += 1
            self._count_tokens(group)
            for rows in by_prefill(group):
                steps += self._prefill(rows, plan.dependent)
            if steps:
                self._decode_first_frames([s for s in group if s.emits and not s.cancelled])
        decode = [s for s in plan.decode if not s.cancelled]
        if decode:
            stats.steps += 1
            for rows in by_num_evals(decode):
                steps += self._launch(self.runner, rows, self.runner.decode, self._fail)
        return steps

    def audio(self, jobs: list[AudioJob]) -> list[InFlightAudio]:
        """Launch codec calls for these chunks."""
        if not jobs:
            return []
        first, rest = self.codec.launched_first(jobs)
        calls = list(first)
        for part in self.codec.parts(rest):
            calls += self._codec_call(part)
        return calls

    def _codec_call(self, jobs: list[AudioJob]) -> list[InFlightAudio]:
        def fail(job: AudioJob, error: Exception) -> None:
            self._fail(job.seq, error, job.reads)

        for job in [j for j in jobs if j.seq.cancelled]:  # its chunk before this one failed
            error = self.requests.of(job.seq).error or EngineError("cancelled")
            self._fail(job.seq, error, job.reads)
        jobs = [j for j in jobs if not j.seq.cancelled]
        if not jobs:
            return []
        return self._launch(self.codec, jobs, self.codec.launch, fail)

    def lose(self, jobs: list[AudioJob], error: Exception) -> None:
        """End the requests of a codec call that was launched and has failed."""
        self.survive(error)
        for job in jobs:
            self._fail(job.seq, error, job.reads)

    def _park(self, parked: list[Sequence]) -> None:
        """Save the rows of requests whose slots others get. A request whose row cannot be saved
        ends."""
        for seq in parked:
            request = self.requests.of(seq)
            try:
                request.saved = SavedRow(self.runner.save(seq), self.codec.save(seq))
            except Exception as e:
                self.survive(e)
                self.requests.cancel(request, e)

    def _restore_rows(self, sequences: list[Sequence]) -> None:
        """Write saved rows into their new slots, with the text that has come since."""
        for seq in sequences:
            request = self.requests.of(seq)
            assert request.saved is not None
            self.runner.restore(seq, request.saved.row)
            self.codec.restore(seq, request.saved.codec)
            if request.prompt.live is not None:
                column = request.prompt.live.column
                self.runner.extend(seq, column, 0, request.prompt.columns[column])

    def _write_rows(self, sequences: list[Sequence]) -> None:
        requests = [self.requests.of(seq) for seq in sequences]
        self.runner.admit([(r.seq, r.prompt, r.seed) for r in requests])
        self.codec.admit([(r.seq, r.prompt) for r in requests])

    def _write_given(self, sequences: list[Sequence]) -> None:
        """Fill pages with the keys and values that prompts bring, where others have not."""
        for seq in [s for s in sequences if s.num_cached < s.num_given]:
            self.runner.fill_pages(seq, self.requests.of(seq).prompt)

    def _put_back(self, sequences: list[Sequence], dependent: list[Sequence]) -> list[Sequence]:
        """Have those that share pages which will not be written try again. Returns the others."""
        for seq in [s for s in sequences if s in dependent]:
            self.scheduler.undo(seq)
        return [s for s in sequences if s not in dependent]

    def _count_tokens(self, group: list[Sequence]) -> None:
        """Count tokens of prompts: those of each piece, and with the first one those that are in
        pages already."""
        stats = self.requests.stats
        for seq in [s for s in group if not s.replays]:
            if seq.piece.start == seq.first_computed:
                cached = seq.first_computed
            else:
                cached = 0
            stats.cached_tokens += cached
            stats.prompt_tokens += cached + len(seq.piece)

    def _each(
        self, sequences: list[Sequence], write: Callable[[list[Sequence]], None]
    ) -> list[Sequence]:
        """Write something of all at once. If that fails, one by one, so that a prompt that cannot
        be written ends only its own request. Returns those that were written."""
        if not sequences:
            return []
        try:
            write(sequences)
            return sequences
        except Exception as e:
            self.survive(e)
        for seq in sequences:
            try:
                write([seq])
            except Exception as e:
                self.survive(e)
                self._fail(seq, e)
        return [seq for seq in sequences if not seq.cancelled]

    def _decode_first_frames(self, admitted: list[Sequence]) -> None:
        """Send first frames to the codec before the host has read that they exist, if most running
        requests are new.

        Otherwise the codec's next chunks for older requests would wait for this prefill.
        """
        audio = self.scheduler.audio
        live = self.scheduler.live
        first = [
            s for s in admitted if s.phase is Phase.RUNNING and s.streaming and not s.trim_frames
        ]
        at_once = audio.chunks.starts_at_once and not self.hides_frames
        if first and at_once and 2 * len(first) >= len(live) and not audio.busy:
            try:
                self.codec.decode_first_frames(first)
            except Exception as e:
                self.survive(
                    e
                )  # chunks whose state has not moved on are tried again when they are due
                for seq in [
                    s for s in first if self.codec.moved_on and not self.codec.has_first_frame(s)
                ]:
                    self.requests.cancel(self.requests.of(seq), e)

    def _prefill(self, sequences: list[Sequence], dependent: list[Sequence]) -> list[InFlightStep]:
        """Prefill. Rows that share pages which this launch was to write are put back before its
        halves are tried."""

        def launch(rows: list[Sequence]) -> InFlightStep:
            return self.runner.prefill([(seq, self.requests.of(seq).prompt) for seq in rows])

        return self._launch(
            self.runner, sequences, launch, self._fail, lambda rows: self._put_back(rows, dependent)
        )

    def _launch(
        self,
        owner: ModelRunner | CodecRunner,
        rows: list[T],
        launch: Callable[[list[T]], R],
        fail: Callable[[T, Exception], None],
        before_halves: Callable[[list[T]], list[T]] = lambda rows: rows,
    ) -> list[R]:
        """Launch. Where memory has run out and nothing has moved on, try each half once. The rows
        of what fails end."""
        owner.moved_on = False
        try:
            return [launch(rows)]
        except Exception as e:
            self.survive(e)
            error = e
        if owner.moved_on or not self.side.out_of_memory(error):
            for row in rows:
                fail(row, error)
            return []
        launched = []
        rows = before_halves(rows)
        half = len(rows) // 2
        for part in [p for p in (rows[:half], rows[half:]) if p]:
            try:
                launched.append(launch(part))
            except Exception as e:
                self.survive(e)
                for row in part:
                    fail(row, e)
        return launched

    def survive(self, error: Exception) -> None:
        """Log a failed launch or call. An error that has broken the device is raised again and ends
        the engine."""
        if self.side.is_fatal(error):
            raise error
        log.error("a launch failed: %s", error, exc_info=error)
        if self.side.out_of_memory(error):
            self.side.release_cached()

    def _fail(self, seq: Sequence, error: BaseException, codec_frames: int = 0) -> None:
        self.scheduler.fail(seq, codec_frames)
        self.requests.cancel(self.requests.of(seq), error)
