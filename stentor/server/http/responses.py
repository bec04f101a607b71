"""Answers of POST /v1/audio/speech: a whole file, a stream of bytes, or server-sent events.

Work and client are watched together: a client that leaves ends the work at once, one that reads too slowly is cut off,
and headers wait for the first audio, so that a failure before it is a proper status.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stentor.errors import EngineError
from stentor.server.audio.effects import Chain
from stentor.server.audio.encode import CONTAINERS, Encoder, encoder
from stentor.server.audio.playback import OK_SECONDS, Playback
from stentor.server.backpressure import Disconnected, Outbox, SlowClient, attended
from stentor.server.config import MIB, ServerConfig
from stentor.server.errors import ApiError, translate
from stentor.server.json_sse import event, json_bytes
from stentor.server.metrics import Metrics
from stentor.server.speech.outcomes import Outcome, Outcomes, srt, vtt
from stentor.server.speech.plan import Output, Plan
from stentor.server.speech.run import Run, Timing

log = logging.getLogger("stentor.server")

INLINE = ("pcm", "wav")  # cheap enough to encode on the event loop


class Kitchen:
    """What every answer is made with."""

    def __init__(self, config: ServerConfig, metrics: Metrics, outcomes: Outcomes, pool: ThreadPoolExecutor) -> None:
        self.config, self.metrics, self.outcomes, self.pool = config, metrics, outcomes, pool


class Voicing:
    """A run on its way to a client: encoded, counted, and recorded when it ends."""

    def __init__(self, kitchen: Kitchen, plan: Plan, timing: Timing) -> None:
        self.kitchen, self.plan, self.output = kitchen, plan, plan.output
        self.run = Run(plan, timing)
        self.playback = Playback(timing.asked, self.run.spec.sample_rate * plan.output.speed)
        self.outcome = Outcome(plan.id, plan.host.name, seed=plan.seed)
        self.ended = False  # its ending has been recorded
        kitchen.outcomes.add(self.outcome)

    async def bytes(self, whole: bool) -> AsyncGenerator[bytes, None]:
        """The container's bytes; if `whole`, all of them at the end."""
        out = self.output
        line = Line(out, self.run.spec.sample_rate, whole, None if out.format in INLINE else self.kitchen.pool)
        held: list[np.ndarray] = []
        live = self.kitchen.metrics.live
        if self.plan.streaming:
            live[self.playback] = self.plan.host.name
        try:
            async with aclosing(self.run.audio()) as blocks:
                async for samples in blocks:
                    held.append(samples)
                    if self.run.tally.frames < self.plan.hold_frames:
                        continue
                    joined, held = np.concatenate(held), []
                    self.playback.add(joined)
                    if data := await line.feed(joined):
                        yield data
            for samples in held:
                self.playback.add(samples)
                if data := await line.feed(samples):
                    yield data
            yield await line.finish()
        finally:
            live.pop(self.playback, None)

    # -- how it ended --

    def completed(self) -> None:
        """Record success. Before the last bytes leave: a client that has them may ask for the outcome at once."""
        run, m, name = self.run, self.kitchen.metrics, self.plan.host.name
        assert run.finish is not None
        total = (run.timing.done or run.timing.asked) - run.timing.asked
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
        """Record an ending other than success; what to tell the client, if there is still one."""
        if self.ended:
            return None  # all of it was made, and only its last bytes were not taken
        m, name = self.kitchen.metrics, self.plan.host.name
        if isinstance(error, Disconnected | asyncio.CancelledError):
            m.streams_aborted.labels(name, "cancelled" if isinstance(error, Disconnected) else "closed").inc()
            self._record("cancelled", "cancelled")
            return None
        if isinstance(error, SlowClient):
            m.streams_aborted.labels(name, "slow_client").inc()
            self._record("cancelled", "slow_client")
            return None
        known = translate(error, self.plan.host.retry_after)
        if known.status >= 500 and known.code != "queue_full":
            m.failed.labels(name).inc()
        else:
            m.rejected.labels(known.code or "invalid").inc()
        alive = (h := self.plan.host.health) is not None and h.alive
        dead = isinstance(error, EngineError) and not alive
        reason = "timeout" if known.status == 504 else "engine_dead" if dead else "error"
        m.streams_aborted.labels(name, reason).inc()
        self.outcome.error = known.body["error"]
        self._record("failed", "timeout" if known.status == 504 else "error")
        return known

    def _record(self, status: str, finish: str) -> None:
        run, o, m, name = self.run, self.outcome, self.kitchen.metrics, self.plan.host.name
        self.ended = True
        o.status, o.finish_reason, o.seed = status, finish, run.seed
        o.duration, o.usage, o.segments = round(run.duration, 4), run.tally.usage(), run.segments
        m.prompt_tokens.labels(name).inc(run.tally.input_tokens)
        m.generation_tokens.labels(name).inc(run.tally.frames)
        m.audio_frames.labels(name).inc(run.tally.samples)
        for action in run.guarded:
            m.guard.labels(name, action).inc()
        t = run.timing
        if t.submitted is not None:
            m.queue.labels(name).observe(t.submitted - t.asked)
        if t.first is not None:
            m.ttfp.labels(name).observe(t.first - t.asked)
        if self.playback.audible is not None:
            m.audible.labels(name).observe(self.playback.audible)

    def headers(self) -> dict[str, str]:
        """What is known when the first audio leaves."""
        head = {
            "X-Seed": str(self.run.seed),
            "X-Sample-Rate": str(self.output.rate),
            "X-Channels": "1",
            "X-Bit-Depth": "16",
            "Server-Timing": self.run.timing.header(),
            "Cache-Control": "no-store",
        }
        if self.run.finish is not None:
            usage = self.run.tally.usage()
            head["X-Finish-Reason"] = self.run.finish
            head["X-Audio-Duration"] = f"{self.run.duration:.4f}"
            head |= {f"X-Usage-{k.replace('_', '-').title()}": str(v) for k, v in usage.items() if isinstance(v, int)}
        return head


class Line:
    """Effects and encoder of one answer, in a thread where they cost something."""

    def __init__(self, output: Output, rate: int, whole: bool, pool: ThreadPoolExecutor | None) -> None:
        self.chain = Chain(rate, output.rate, output.speed)
        self.encoder: Encoder = encoder(output.format, output.rate, whole)
        self.pool = pool

    async def feed(self, samples: np.ndarray) -> bytes:
        return await self._do(lambda: self.encoder.feed(self.chain.feed(samples)))

    async def finish(self) -> bytes:
        return await self._do(lambda: self.encoder.feed(self.chain.finish()) + self.encoder.finish())

    async def _do(self, work: Callable[[], bytes]) -> bytes:
        if self.pool is None:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)


class SpeechAnswer(Response):
    """One spoken request as an ASGI response. `sse`: events; otherwise bytes, streamed if the plan says so."""

    def __init__(self, voicing: Voicing, sse: bool, timestamps: str) -> None:
        self.voicing, self.sse, self.timestamps = voicing, sse, timestamps
        self.background = None
        self.started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        v = self.voicing
        config = v.kitchen.config
        work = self._whole if not v.plan.streaming else self._streamed
        try:
            await attended(work(send), receive, config.request_timeout)
        except BaseException as e:
            error = v.failed(e)
            if isinstance(e, asyncio.CancelledError):
                raise
            if error is None:
                return
            if not self.started:
                raise error from e
            log.warning("request %s broke off: %s", v.plan.id, error.message)
            if self.sse:  # the error was the last event
                await send({"type": "http.response.body", "body": b""})
            return  # raw audio ends without the last chunk: a client can tell

    async def _whole(self, send: Send) -> None:
        v = self.voicing
        async with aclosing(v.bytes(whole=True)) as parts:
            data = b"".join([p async for p in parts])
        media = CONTAINERS[v.output.format].media_type
        headers = v.headers()
        if self.timestamps != "none":
            data, media = json_bytes(described(v, data, self.timestamps)), "application/json"
        v.completed()
        await self._start(send, media, {**headers, "Content-Length": str(len(data))})
        await send({"type": "http.response.body", "body": data})

    async def _streamed(self, send: Send) -> None:
        v = self.voicing
        outbox = Outbox(int(v.kitchen.config.max_buffered_mb * MIB))
        fill = asyncio.create_task(self._fill(outbox))
        try:
            while (part := await outbox.get()) is not None:
                if not self.started:
                    media = "text/event-stream" if self.sse else CONTAINERS[v.output.format].media_type
                    await self._start(send, media, {**v.headers(), "X-Accel-Buffering": "no"})
                if outbox.finished:
                    await self._note(fill)
                await self._sent(send, part, fill)
                outbox.sent(len(part))
            await self._note(fill)
            fill.result()
            if not self.started:  # nothing was audible: an empty answer, but an answer
                await self._start(send, CONTAINERS[v.output.format].media_type, v.headers())
            await send({"type": "http.response.body", "body": b""})
        finally:
            fill.cancel()
            await asyncio.gather(fill, return_exceptions=True)

    async def _note(self, fill: asyncio.Task[None]) -> None:
        """Record the success of work that has ended; a failure is told after what there is has been sent."""
        await asyncio.wait([fill])
        if not self.voicing.ended and fill.exception() is None:
            self.voicing.completed()

    async def _sent(self, send: Send, part: bytes, fill: asyncio.Task[None]) -> None:
        """Send, or stop waiting for a slow client once the work has failed."""
        sending = asyncio.ensure_future(send({"type": "http.response.body", "body": part, "more_body": True}))
        try:
            await asyncio.wait((sending, fill), return_when=asyncio.FIRST_COMPLETED)
            if fill.done() and not sending.done() and fill.exception() is not None:
                fill.result()
            await sending
        finally:
            sending.cancel()

    async def _fill(self, outbox: Outbox) -> None:
        v = self.voicing
        try:
            async with aclosing(v.bytes(whole=False)) as parts:
                async for data in parts:
                    if not self.sse:
                        outbox.put(data)
                    elif data:
                        outbox.put(self._delta(data))
            if self.sse:
                outbox.put(event("speech.audio.done", done(v, self.timestamps)))
        except (SlowClient, asyncio.CancelledError):
            raise
        except Exception as e:
            if not self.sse or v.run.timing.first is None:
                raise
            error = translate(e, v.plan.host.retry_after)
            body = {"error": error.body["error"], "partial_audio": True, "action": "discard"}
            outbox.put(event("speech.audio.error", body))
            raise
        finally:
            outbox.close()

    def _delta(self, data: bytes) -> bytes:
        body = {"audio": base64.b64encode(data).decode(), "response_format": self.voicing.output.format}
        new = ""
        if self.timestamps != "none":
            fresh = self.voicing.run.segments[self._told :]
            self._told += len(fresh)
            new = "".join(event("speech.audio.segment", _segment(s)).decode() for s in fresh)
        return new.encode() + event("speech.audio.delta", body)

    _told = 0

    async def _start(self, send: Send, media: str, headers: dict[str, str]) -> None:
        self.started = True
        raw = [(b"content-type", media.encode())]
        raw += [(k.lower().encode(), v.encode("latin-1")) for k, v in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})


def done(v: Voicing, timestamps: str) -> dict[str, Any]:
    """Body of the last event of a stream."""
    run = v.run
    body: dict[str, Any] = {
        "usage": run.tally.usage(),
        "finish_reason": run.finish,
        "seed": run.seed,
        "duration": round(run.duration, 4),
        "sample_rate": v.output.rate,
        "request_id": v.plan.id,
    }
    if timestamps != "none":
        body["segments"] = [_segment(s) for s in run.segments]
    if timestamps in ("srt", "vtt"):
        body["subtitles"] = (srt if timestamps == "srt" else vtt)(run.segments)
    return body


def described(v: Voicing, data: bytes, timestamps: str) -> dict[str, Any]:
    """A whole answer as JSON: the audio and everything about it."""
    return {
        "object": "audio.speech",
        "audio": base64.b64encode(data).decode(),
        "response_format": v.output.format,
        **done(v, timestamps),
    }


def _segment(s: Any) -> dict[str, Any]:
    return {
        "index": s.index,
        "text": s.text,
        "start": round(s.start, 4),
        "end": round(s.end, 4),
        "start_char": s.start_char,
        "end_char": s.end_char,
    }
