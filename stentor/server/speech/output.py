"""A request on its way to a client, the same for HTTP and WebSocket: encoded audio, metrics,
outcome, final report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.errors import EngineError
from stentor.output.effects import EffectChain
from stentor.output.encode import CONTAINERS, Encoder, encoder, serial_number
from stentor.server.backpressure import Disconnected, SlowClient
from stentor.server.errors import ApiError, translate
from stentor.server.speech.outcomes import (
    OK_SECONDS,
    ClientPlayback,
    Outcome,
    Timing,
    timing_as_dict,
    word_as_dict,
)
from stentor.server.speech.run import SpeechRun
from stentor.speech.subtitles import FORMATS as SUBTITLES
from stentor.speech.timing import words_of

if TYPE_CHECKING:
    from stentor.server.speech.plan import Output, SpeechPlan
    from stentor.server.state import Server

# encoded on the event loop: a thread switch would cost more
CHEAP_FORMATS = ("pcm", "wav", "ulaw", "alaw")


class RunningRequest:
    """One request from its plan to its end. It encodes the audio, and records metrics and the
    outcome once."""

    def __init__(
        self, server: Server, plan: SpeechPlan, timing: Timing, traceparent: str | None = None
    ) -> None:
        """traceparent: the header of that name, to which its spans belong."""
        self.server = server
        self.plan = plan
        self.traceparent = traceparent
        self.run = SpeechRun(plan, timing, server.traces is not None)
        self.playback = ClientPlayback(
            timing.received, self.run.spec.sample_rate * plan.output.speed
        )
        self.outcome = Outcome(plan.id, plan.host.name, seed=plan.request.seed)
        self.ended = False  # its ending has been recorded
        self._traced = server.traces is None  # its spans have been made, if any are wanted
        server.outcomes.add(self.outcome)

    def pipeline(self, whole: bool, text: str) -> OutputPipeline:
        """Effects and encoder for audio of `text`. whole: one file at the end in place of a
        stream."""
        output = self.plan.output
        cheap = output.format in CHEAP_FORMATS and output.marks.watermark is None
        if cheap:
            pool = None
        else:
            pool = self.server.encoders
        if CONTAINERS[output.format].muxer == "ogg":
            serial = serial_number(self.plan.request.seed, text)
        else:
            serial = 1
        return OutputPipeline(output, self.run.spec.sample_rate, whole, pool, serial)

    async def bytes(self, whole: bool) -> AsyncGenerator[bytes, None]:
        """The container's bytes as they are made. If `whole`, or if all audio is held back, all of
        them at the end."""
        pipeline: OutputPipeline | None = None
        pieces: list[np.ndarray] = []
        text = " ".join(segment.text for segment in self.plan.segments)
        live = self.server.metrics.live
        if self.plan.streaming:
            live[self.playback] = self.plan.host.name
        try:
            async with aclosing(self.run.audio()) as blocks:
                async for samples in blocks:
                    pieces.append(samples)
                    if self.run.usage.frames < self.plan.hold_frames:
                        continue
                    joined = np.concatenate(pieces)
                    pieces = []
                    self.playback.add(joined)
                    pipeline = pipeline or self.pipeline(whole, text)
                    if data := await pipeline.feed(joined):
                        self.encoded()
                        yield data
            # nothing has been sent: the length is known
            pipeline = pipeline or self.pipeline(whole=True, text=text)
            for samples in pieces:
                self.playback.add(samples)
                if data := await pipeline.feed(samples):
                    self.encoded()
                    yield data
            data = await pipeline.finish()
            self.encoded()
            yield data
        finally:
            live.pop(self.playback, None)

    def encoded(self) -> None:
        """Bytes of the container were made. Only the first count."""
        timing = self.run.timing
        timing.encoded = timing.encoded or time.monotonic()

    def left(self) -> None:
        """Bytes were passed to the connection. Only the first count."""
        timing = self.run.timing
        timing.flushed = timing.flushed or time.monotonic()
        self._trace()

    def _trace(self) -> None:
        """Make the spans, once the request has ended and its first bytes, if there are any, have
        left."""
        timing = self.run.timing
        traces = self.server.traces
        complete = self.ended and (timing.flushed is not None or self.outcome.status != "completed")
        if complete and not self._traced and traces is not None:
            self._traced = True
            traces.record(self.outcome, timing, self.traceparent)

    def completed(self) -> None:
        """Record success. Call it before the last bytes are sent: a client that has them may
        request the outcome."""
        run = self.run
        m = self.server.metrics
        name = self.plan.host.name
        assert run.finish is not None
        total = (run.timing.ended or run.timing.received) - run.timing.received
        m.success.labels(name, run.finish).inc()
        m.e2e.labels(name).observe(total)
        m.duration.labels(name).observe(run.duration)
        if run.duration:
            m.rtf.labels(name).observe(total / run.duration)
        if self.plan.streaming:
            m.streams_completed.labels(name).inc()
            m.underrun.labels(name).observe(self.playback.underrun)
            if self.playback.underrun <= OK_SECONDS:
                m.continuous.labels(name, str(int(OK_SECONDS * 1000))).inc()
        self.plan.host.note_duration(total)
        self._record("completed", run.finish)

    def failed(self, error: BaseException) -> ApiError | None:
        """Record an ending other than success. Returns the error for the client, or None if no
        client is left."""
        if self.ended:
            return None  # all audio was made, but the client did not take the last bytes
        m = self.server.metrics
        name = self.plan.host.name
        if isinstance(error, Disconnected | asyncio.CancelledError):
            m.streams_aborted.labels(
                name, "cancelled" if isinstance(error, Disconnected) else "closed"
            ).inc()
            self._record("cancelled", "cancelled")
            return None
        if isinstance(error, SlowClient):
            m.streams_aborted.labels(name, "slow_client").inc()
            self._record("cancelled", "slow_client")
            return None
        api_error = translate(error, self.plan.host.retry_after)
        if api_error.status >= 500 and api_error.code != "queue_full":
            m.failed.labels(name).inc()
        else:
            m.count_refusal(api_error)
        alive = (h := self.plan.host.health) is not None and h.alive
        dead = isinstance(error, EngineError) and not alive
        if api_error.status == 504:
            reason = "timeout"
        elif dead:
            reason = "engine_dead"
        else:
            reason = "error"
        m.streams_aborted.labels(name, reason).inc()
        self.outcome.error = api_error.body["error"]
        self._record("failed", "timeout" if api_error.status == 504 else "error")
        return api_error

    def _record(self, status: str, finish: str) -> None:
        run = self.run
        o = self.outcome
        m = self.server.metrics
        name = self.plan.host.name
        self.ended = True
        o.status = status
        o.finish_reason = finish
        o.seed = run.seed
        o.duration = round(run.duration, 4)
        o.usage = run.usage.as_dict()
        o.segments = run.timings
        self.server.outcomes.note_end(o)
        m.prompt_tokens.labels(name).inc(run.usage.input_tokens)
        m.generation_tokens.labels(name).inc(run.usage.frames)
        m.audio_frames.labels(name).inc(run.speaking.joined.samples)
        for action in run.guarded:
            m.guard.labels(name, action).inc()
        t = run.timing
        if t.submitted is not None:
            m.queue.labels(name).observe(t.submitted - t.received)
        if t.first is not None:
            m.ttfp.labels(name).observe(t.first - t.received)
        if self.playback.audible is not None:
            m.audible.labels(name).observe(self.playback.audible)
        self._trace()


class OutputPipeline:
    """Samples to bytes: speed, rate and watermark, then the encoder. It runs in `pool` if there is
    one."""

    def __init__(
        self,
        output: Output,
        rate: int,
        whole: bool,
        pool: ThreadPoolExecutor | None,
        serial: int,
    ) -> None:
        self.chain = EffectChain(rate, output.rate, output.speed, output.marks.watermark)
        self.encoder: Encoder = encoder(
            output.format, output.rate, whole, output.bit_rate, output.marks.comment, serial
        )
        self.pool = pool

    async def feed(self, samples: np.ndarray) -> bytes:
        """float32 samples [n] at the model's rate -> the bytes that are final now."""
        return await self._do(lambda: self.encoder.feed(self.chain.feed(samples)))

    async def finish(self) -> bytes:
        """The remaining bytes of the container."""
        return await self._do(
            lambda: self.encoder.feed(self.chain.finish()) + self.encoder.finish()
        )

    async def _do(self, work: Callable[[], bytes]) -> bytes:
        if self.pool is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


def final_report(request: RunningRequest, timestamps: str) -> dict[str, Any]:
    """Usage, finish reason, seed, length and (unless `timestamps` is "none") segment times of a
    finished request."""
    run = request.run
    body: dict[str, Any] = {
        "usage": run.usage.as_dict(),
        "finish_reason": run.finish,
        "seed": run.seed,
        "duration": round(run.duration, 4),
        "sample_rate": request.plan.output.rate,
        "request_id": request.plan.id,
        **request.plan.output.marks.as_json(),
        **request.plan.ignored.as_json(),
    }
    if timestamps != "none":
        body["segments"] = [timing_as_dict(t) for t in run.timings]
    if request.plan.words:
        body["words"] = [word_as_dict(w) for w in words_of(run.timings)]
    if timestamps in SUBTITLES:
        body["subtitles"] = SUBTITLES[timestamps](run.timings, request.plan.marked_words)
    return body
