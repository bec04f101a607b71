"""A scheduler on plain data, and a fake device that makes one frame per launch."""

from collections import deque

from stentor.config import Policy
from stentor.engine.scheduling.pages import PageAllocator
from stentor.engine.scheduling.prefill import StepPlan
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import LENGTH, RUNNING, STOPPED, Sequence
from stentor.models.codec_timing import CAUSAL, CodecTiming
from tests.helpers.invariants import check


class FakeDevice:
    """Rows that stop after `stops[id]` frames. Reports come `overlap_steps` steps late. A step takes
    `step_s` seconds."""

    def __init__(self, scheduler: Scheduler, overlap_steps: int = 0, step_s: float = 0.01) -> None:
        self.scheduler = scheduler
        self.overlap_steps = overlap_steps
        self.step_s = step_s
        self.now = 0.0
        self.stops: dict[int, int] = {}
        self.rows: dict[int, tuple[int, int]] = {}
        self.in_flight: deque[list[tuple[Sequence, int, int]]] = deque()
        self.done: list[Sequence] = []
        self.chunks: dict[int, list[tuple[int, int]]] = {}

    def add(
        self,
        id: int,
        length: int,
        limit: int,
        stop: int | None = None,
        streaming: bool = True,
        trim_frames: int = 0,
    ) -> Sequence:
        seq = Sequence(id, length, limit, 0, trim_frames, 0.08, streaming)
        self.stops[id] = limit + 1 if stop is None else stop
        self.scheduler.add(seq, self.now)
        return seq

    def step(self) -> StepPlan:
        self.now += self.step_s
        plan = self.scheduler.plan(self.now)
        check(self.scheduler)
        for group in (plan.prefill, plan.decode):
            if group:
                self.in_flight.append(
                    [(s, *self._step(s, group is plan.decode or s.emits)) for s in group]
                )
        while self.in_flight and (len(self.in_flight) > self.overlap_steps or plan.empty):
            for seq, made, status in self.in_flight.popleft():
                self.scheduler.observe(seq, made, status)
        for job in plan.audio:
            self.chunks.setdefault(job.seq.id, []).append((job.start, job.count))
            self.scheduler.audio.on_audio(job, self.now)
        self.release()
        check(self.scheduler)
        return plan

    def release(self) -> None:
        """Release the requests that are complete."""
        complete = self.scheduler.complete()
        self.scheduler.release(complete)
        self.done += complete

    def _step(self, seq: Sequence, emits: bool) -> tuple[int, int]:
        made, status = self.rows.get(seq.id, (0, RUNNING))
        if status == RUNNING and emits:
            made += 1
            status = (
                STOPPED
                if made >= self.stops[seq.id]
                else LENGTH
                if made >= seq.max_frames
                else RUNNING
            )
        self.rows[seq.id] = (made, status)
        return made, status

    def run(self, steps: int = 2000) -> None:
        for _ in range(steps):
            if self.scheduler.idle and not self.in_flight:
                return
            self.step()
        raise AssertionError("requests did not finish")


class SlowCodec(FakeDevice):
    """Audio comes back only when the test says so."""

    def __init__(self, scheduler: Scheduler, step_s: float = 0.01) -> None:
        super().__init__(scheduler, step_s=step_s)
        self.given: deque = deque()

    def step(self) -> StepPlan:
        self.now += self.step_s
        plan = self.scheduler.plan(self.now)
        for group in (plan.prefill, plan.decode):
            for seq in group:
                self.scheduler.observe(seq, *self._step(seq, group is plan.decode or seq.emits))
        self.given += plan.audio
        for job in plan.audio:
            self.chunks.setdefault(job.seq.id, []).append((job.start, job.count))
        return plan

    def answer(self, count: int) -> None:
        for _ in range(count):
            job = self.given.popleft()
            self.scheduler.audio.on_audio(job, self.now)


def scheduler(
    slots: int = 4,
    pages: int = 64,
    size: int = 4,
    max_parked: int = 100,
    timing: CodecTiming = CAUSAL,
    **policy: object,
) -> Scheduler:
    return Scheduler(
        slots,
        PageAllocator(pages, size),
        Policy(**{"reserve_tokens": 8, **policy}),
        max_parked,
        timing,
    )


def all_free(s: Scheduler, slots: int) -> bool:
    return s.pages.available == s.pages.count and sorted(s.free_slots) == list(range(slots))
