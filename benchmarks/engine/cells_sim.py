"""First audio and throughput of CosyVoice3's cells, simulated: the scheduler on two streams of work that take time.

Run: python benchmarks/engine/cells_sim.py
Needs: nothing but stentor. Time is virtual, so a busy machine changes nothing.

Milliseconds of steps and codec calls are those of an H200 (docs/log.md). While both streams work, each has a share of
its speed, fitted to the measured seconds of 1, 16 and 64 requests that start together. What is not modelled: the
host's own work beyond 0.15 ms per step, and calls of several lengths.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.engine.simulated_device import Timeline, Work
from stentor.config import Policy
from stentor.engine.audio_scheduler import AudioJob
from stentor.engine.codec_runner import rows_of_call
from stentor.engine.device import CODEC, LANGUAGE_MODEL
from stentor.engine.page_allocator import PageAllocator
from stentor.engine.scheduler import Scheduler
from stentor.engine.sequence import LENGTH, RUNNING, Sequence
from stentor.models.codec_timing import CodecTiming

TIMING = CodecTiming(25, 3, 3, whole=True, window=20, chunk_pages=2)
STEP = {1: 0.54, 2: 0.55, 4: 0.58, 8: 0.63, 16: 0.67, 32: 0.69, 64: 0.82}  # ms by rows
CALL = {1: 10.5, 2: 12.0, 4: 14.0, 8: 19.0, 16: 29.0, 32: 47.0, 64: 84.7}
PAIRS = {1: 13.5, 2: 15.0, 4: 18.0, 8: 27.0, 16: 44.3, 32: 77.0}  # of two cells of each row
PREFILL, PREFILL_TOKEN, HOST, LAUNCH = 3.0, 0.0045, 0.15, 0.1  # ms
SHARES = {LANGUAGE_MODEL: 0.6, CODEC: 0.6}  # of a stream's speed while both work
PROMPT, VOICE, FRAMES, HOP = 130, 100, 250, 0.04
SLOTS, TICK = 64, 0.02


@dataclass(eq=False)
class Launched(Work):
    """A step of `rows`, or a codec call of `jobs`."""

    rows: list[Sequence] = field(default_factory=list)
    jobs: list[AudioJob] = field(default_factory=list)
    prefill: bool = False
    at: float = 0.0  # ms


class Simulation:
    """`gap`: ms between two requests, of which there are `count`."""

    def __init__(self, count: int, gap: float) -> None:
        self.count, self.gap, self.now = count, gap, 0.0
        self.scheduler = Scheduler(SLOTS, PageAllocator(1 << 14, 16), Policy(), 100, TIMING)
        self.line = Timeline(SHARES, lambda: self.now / 1e3)
        self.model, self.codec = self.line.stream(LANGUAGE_MODEL), self.line.stream(CODEC)
        self.steps: deque[Launched] = deque()
        self.calls: deque[Launched] = deque()
        self.made = dict.fromkeys(range(count), 0)
        self.first: dict[int, float] = {}

    def pass_time(self, ms: float) -> None:
        self.now += ms
        self.line.advance()
        while self.calls and self.calls[0].done:
            for job in self.calls.popleft().jobs:
                if self.scheduler.audio.on_audio(job, self.now / 1e3):
                    self.first.setdefault(job.seq.id, self.now - self.gap * job.seq.id)

    def decode_audio(self, jobs: list[AudioJob]) -> None:
        for pages, times in enumerate((CALL, PAIRS), 1):
            equal = [job for job in jobs if TIMING.on_grid(job.count) == pages * TIMING.grid]
            while equal:
                rows = rows_of_call(len(equal), pages * TIMING.grid, set(times))
                size = list(times)[bisect_left(list(times), rows)]
                work = Launched(times[size] / 1e3, jobs=equal[:rows])
                with self.codec.active():
                    self.line.put(work)
                self.calls.append(work)
                equal = equal[rows:]
                self.pass_time(LAUNCH)

    def launch(self, rows: list[Sequence], prefill: bool) -> None:
        tokens = sum(len(seq.piece) for seq in rows)
        step = STEP[list(STEP)[bisect_left(list(STEP), len(rows))]]
        ms = PREFILL + PREFILL_TOKEN * tokens if prefill else step
        work = Launched(ms / 1e3, rows, [], prefill, self.now)
        with self.model.active():
            self.line.put(work)
        self.steps.append(work)

    def observe(self, work: Launched) -> None:
        while not work.done:
            self.pass_time(TICK)
        if work.prefill:
            self.scheduler.prefills.took((self.now - work.at) / 1e3)
        for seq in work.rows:
            self.made[seq.id] += 1
            status = LENGTH if self.made[seq.id] >= FRAMES else RUNNING
            self.scheduler.observe(seq, self.made[seq.id], status)

    def run(self) -> None:
        s, asked, ended = self.scheduler, 0, 0
        while ended < self.count:
            while asked < self.count and asked * self.gap <= self.now:
                seq = Sequence(asked, PROMPT, FRAMES, 0, TIMING.offset(VOICE), HOP, True)
                seq.audio_scheduled, seq.held_frames = TIMING.start(VOICE, True), TIMING.held
                seq.window_end = TIMING.window_end(VOICE)
                s.add(seq, self.now / 1e3)
                asked += 1
            plan = s.plan(self.now / 1e3)
            self.decode_audio(plan.audio)
            for group, prefill in ((plan.prefill, True), (plan.decode, False)):
                if group:
                    self.launch(group, prefill)
            self.pass_time(HOST)
            while len(self.steps) > 1 or (self.steps and plan.empty):
                self.observe(self.steps.popleft())
                self.decode_audio(s.plan_audio(self.now / 1e3))
            ended += len(s.finished())


def main() -> None:
    print("requests, ms apart: ms to first audio (soonest, median, latest), audio-s/s")
    for count in (1, 16, 64):
        for gap in (0.3, 5.0, 20.0, 40.0) if count > 1 else (0.3,):
            sim = Simulation(count, gap)
            sim.run()
            firsts = sorted(sim.first.values())
            shown = [round(firsts[i]) for i in (0, count // 2, -1)]
            print(f"{count}, {gap}: {shown}, {count * FRAMES * HOP / (sim.now / 1e3):.0f}")


if __name__ == "__main__":
    main()
