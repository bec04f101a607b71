"""Audio on its way from the codec to the streams of its requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from stentor.engine.requests import OpenRequests, Request
from stentor.engine.scheduling.audio_scheduler import AudioJob
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.side import InFlightAudio, InFlightStep
from stentor.engine.stream import Chunk, LoopNotifier
from stentor.errors import EngineError
from stentor.models.base import ModelSpec

POLL_SECONDS = 1e-4
FIRST_POLL_SECONDS = 3e-5
"""How often audio is looked for while a step runs, and while a first chunk is under way. A sleep
takes some 50 us more."""


class AudioDelivery:
    """Owns the codec calls in flight. Used from the engine's thread only. `spec`: of the model."""

    def __init__(
        self,
        scheduler: Scheduler,
        requests: OpenRequests,
        notifier: LoopNotifier,
        spec: ModelSpec,
        lose: Callable[[list[AudioJob], Exception], None],
    ) -> None:
        """lose: ends the requests of a call that has failed."""
        self.scheduler = scheduler
        self.requests = requests
        self.notifier = notifier
        self.hop = spec.hop
        self.skip = spec.codec_skip
        self.late = spec.codec_timing.late
        self._lose = lose
        self._in_flight: deque[InFlightAudio] = deque()

    def add(self, calls: Iterable[InFlightAudio]) -> None:
        self._in_flight.extend(calls)

    @property
    def empty(self) -> bool:
        return not self._in_flight

    def ready(self) -> None:
        """Deliver the audio that is complete, in launch order."""
        while self._in_flight and self._in_flight[0].finished.ready():
            self._deliver(self._in_flight.popleft())
        self.notifier.flush()

    def until(self, step: InFlightStep) -> None:
        """Deliver audio that is complete before `step` is: a first chunk must not wait for it.

        CUDA has no wait for two streams at once, so both are polled.
        """
        while self._in_flight and not step.finished.ready():
            first = any(job.start == 0 for call in self._in_flight for job in call.jobs)
            time.sleep(FIRST_POLL_SECONDS if first else POLL_SECONDS)
            self.ready()

    def _deliver(self, call: InFlightAudio) -> None:
        call.finished.wait_host()
        now = time.monotonic()
        try:
            samples, frames, attended = call.arrays()
        except Exception as e:
            self._lose(call.jobs, e)
            return
        for job, row in zip(call.jobs, call.rows, strict=True):
            self.scheduler.audio.on_audio(job, now)
            self.requests.stats.frames += job.count
            # With late samples a row begins that much before its first frame.
            begin = 0 if job.start else self.late
            end = job.count * self.hop + (self.late if job.last else 0)
            chunk = Chunk(
                samples[row][begin:end],
                frames[row][: job.count],
                None,
                attended[row][: job.count],
            )
            self._put(self.requests.of(job.seq), job, chunk)

    def _put(self, request: Request, job: AudioJob, chunk: Chunk) -> None:
        """Deliver a chunk to its request, without the silence that is to be trimmed."""
        if not np.isfinite(chunk.samples).all() and not request.closed:
            self.requests.cancel(
                request, EngineError("the codec produced samples that are not finite")
            )
        trim = request.silent_frames(chunk.samples, self.hop)
        count = len(chunk.frames)
        start = max(trim * self.hop, self.skip if request.frames == 0 else 0)
        request.frames += count
        if request.closed:
            return
        continues = request.prompt.continuation is not None
        if job.last and not continues:
            finish = request.finish
        else:
            finish = None
        try:
            if continues:
                frames = [chunk.frames.copy()]
            else:
                frames = []
            part = Chunk(chunk.samples[start:], chunk.frames[trim:], finish, chunk.attended[trim:])
            # A view keeps the pinned buffer of the whole codec call alive.
            if request.outbox.keeps_arrays:
                part = part.copied()
        except MemoryError:
            self.requests.cancel(request, EngineError("the host has no memory for the audio"))
            return
        request.delivered_frames += frames
        if finish is not None:
            self.requests.end(request)  # first, so that whoever has the last chunk finds it counted
        if trim < count or finish is not None:
            request.outbox.put(part)
