"""Responses of POST /v1/audio/speech: a whole file, a stream of bytes, or server-sent events.

The work and the client are watched together. When the client disconnects, the work is cancelled at
once. A client that reads too slowly is cut off. The status and headers are sent with the first
audio, so that an earlier failure still gets its own status.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stentor.output.encode import CONTAINERS
from stentor.server.backpressure import Disconnected, SendBuffer, run_while_connected
from stentor.server.errors import ApiError, translate
from stentor.server.limits import LIMITS, MIB
from stentor.server.speech.outcomes import Timing, timing_as_dict, word_as_dict
from stentor.server.speech.output import RunningRequest, final_report
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server, server
from stentor.server.wire_json import event, json_bytes
from stentor.speech.timing import words_of

log = logging.getLogger("stentor.server")

FLUSH_SECONDS = LIMITS.flush_seconds  # for the last event to a client that does not read


async def begun(
    request: Request, planned: Coroutine[Any, Any, SpeechPlan]
) -> RunningRequest | None:
    """The request of a plan, which may wait for a model or a reference. None: the client has left
    meanwhile. ApiError if it is refused."""
    s = server(request)
    timing = Timing()
    watched = run_while_connected(planned, request.receive, s.config.request_timeout, s.ended)
    try:
        plan = await plan_or_reject(s, watched)
    except Disconnected:
        return None
    request.state.body.release()  # the plan holds what it needs, decoded
    return RunningRequest(s, plan, timing, request.headers.get("traceparent"))


async def plan_or_reject(s: Server, planned: Awaitable[SpeechPlan]) -> SpeechPlan:
    """Await a plan. A refusal is counted and raised as an ApiError. Disconnected: there is nobody
    to refuse."""
    try:
        return await planned
    except Disconnected:
        raise
    except Exception as e:
        error = translate(e)
        s.metrics.count_refusal(error)
        raise error from e


class SpeechResponse(Response):
    """One speech request as an ASGI response: events if `sse`, else bytes, streamed if the plan
    streams."""

    def __init__(self, request: RunningRequest, sse: bool, timestamps: str) -> None:
        self.request = request
        self.sse = sse
        if request.plan.words and timestamps == "none":
            self.timestamps = "json"
        else:
            self.timestamps = timestamps
        if sse:
            self.media = "text/event-stream"
        else:
            self.media = CONTAINERS[request.plan.output.format].media_type
        self.background = None
        self.started = False
        self.reported = 0  # segments whose times have been sent
        self.told = 0  # segments of which it has been said that they cannot be spoken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self.request
        server = request.server
        if request.plan.streaming:
            work = self._streamed
        else:
            work = self._whole
        try:
            await run_while_connected(
                work(send), receive, server.config.request_timeout, server.ended
            )
        except BaseException as e:
            error = request.failed(e)
            if isinstance(e, asyncio.CancelledError):
                raise
            if error is None:
                return
            if not self.started:
                raise error from e
            log.warning("request %s broke off: %s", request.plan.id, error.message)
            if self.sse:
                await self._tell(send, error)
            return  # raw audio ends without its last chunk, so the client notices

    async def _tell(self, send: Send, error: ApiError) -> None:
        """Send the error as the last event. A client that does not read it loses the connection."""
        body = {"error": error.body["error"], "partial_audio": True, "action": "discard"}
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                chunk = event("speech.audio.error", body)
                # no last chunk follows: some clients take a clean end for success
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _whole(self, send: Send) -> None:
        request = self.request
        async with aclosing(request.bytes(whole=True)) as parts:
            data = b"".join([p async for p in parts])
        data, media = self.whole(data)
        request.completed()
        await self._start(send, media, {**headers(request), "Content-Length": str(len(data))})
        await send({"type": "http.response.body", "body": data})
        request.left()

    def whole(self, data: bytes) -> tuple[bytes, str]:
        """The body for a whole file, and its media type."""
        if self.timestamps == "none":
            return data, self.media
        report = {
            "object": "audio.speech",
            "audio": base64.b64encode(data).decode(),
            "response_format": self.request.plan.output.format,
            **final_report(self.request, self.timestamps),
        }
        return json_bytes(report), "application/json"

    async def _streamed(self, send: Send) -> None:
        request = self.request
        buffer = SendBuffer(int(request.server.config.max_buffered_mb * MIB))
        fill = asyncio.create_task(self._fill(buffer))
        try:
            while (part := await buffer.get()) is not None:
                if not self.started:
                    await self._start(
                        send, self.media, {**headers(request), "X-Accel-Buffering": "no"}
                    )
                last = buffer.finished and await self._succeeded(fill)
                await self._send_part(send, part, fill, last)
                request.left()
                if last:
                    return
                buffer.sent(len(part))
            await self._succeeded(fill)
            fill.result()
            if not self.started:  # no audio was made: a successful response with an empty body
                await self._start(send, self.media, headers(request))
            await send({"type": "http.response.body", "body": b""})
        finally:
            fill.cancel()
            await asyncio.gather(fill, return_exceptions=True)

    async def _succeeded(self, fill: asyncio.Task[None]) -> bool:
        """Wait for the work to end and record success. A failure is recorded later, once all audio
        has been sent."""
        if not fill.done():
            await asyncio.wait([fill])
        if fill.exception() is not None:
            return False
        if not self.request.ended:
            self.request.completed()
        return True

    async def _send_part(
        self, send: Send, part: bytes, fill: asyncio.Task[None], last: bool
    ) -> None:
        """Send, or stop waiting for a slow client once the work has failed."""
        try:
            # a task for each part would cost more than to send it
            async with asyncio.timeout(None) as waiting:
                stop = partial(_stop_waiting, waiting)
                fill.add_done_callback(stop)
                try:
                    await send({"type": "http.response.body", "body": part, "more_body": not last})
                finally:
                    fill.remove_done_callback(stop)
        except TimeoutError:
            if waiting.expired():
                fill.result()
            raise

    async def _fill(self, buffer: SendBuffer) -> None:
        request = self.request
        try:
            async with aclosing(request.bytes(whole=False)) as parts:
                async for data in parts:
                    if data:
                        buffer.put(self.part(data))
            if rest := self.rest():
                buffer.put(rest)
        finally:
            buffer.close()

    def part(self, data: bytes) -> bytes:
        """The part of a body for some audio. Of events: those of the segments that have ended, then
        the audio."""
        if not self.sse:
            return data
        body = {
            "audio": base64.b64encode(data).decode(),
            "response_format": self.request.plan.output.format,
        }
        return self._ended() + event("speech.audio.delta", body)

    def rest(self) -> bytes:
        """The part of a body after all audio."""
        if not self.sse:
            return b""
        return self._ended() + event(
            "speech.audio.done", final_report(self.request, self.timestamps)
        )

    def _ended(self) -> bytes:
        """The events for segments that have ended since the last call."""
        run = self.request.run
        unspoken = run.unspoken[self.told :]
        self.told += len(unspoken)
        events = b"".join(event("speech.audio.ignored", timing_as_dict(t)) for t in unspoken)
        if self.timestamps != "none":
            fresh = run.timings[self.reported :]
            self.reported += len(fresh)
            events += b"".join(event("speech.audio.segment", timing_as_dict(t)) for t in fresh)
            events += b"".join(event("speech.audio.word", word_as_dict(w)) for w in words_of(fresh))
        return events

    async def _start(self, send: Send, media: str, known: dict[str, str]) -> None:
        self.started = True
        raw = [(b"content-type", media.encode())]
        raw += [(k.lower().encode(), v.encode("latin-1")) for k, v in known.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})


class NoResponse(Response):
    """For a client that has left."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return


def _stop_waiting(waiting: asyncio.Timeout, fill: asyncio.Task[None]) -> None:
    """The work has ended while a part is sent. If it has failed, nobody waits for the client."""
    if not fill.cancelled() and fill.exception() is not None:
        with suppress(RuntimeError):  # the part was sent at once
            waiting.reschedule(asyncio.get_running_loop().time())


def headers(request: RunningRequest) -> dict[str, str]:
    """Response headers with what is known when the first audio leaves."""
    run = request.run
    output = request.plan.output
    fields = {
        "X-Seed": str(run.seed),
        "X-Sample-Rate": str(output.rate),
        "X-Channels": "1",
        "X-Bit-Depth": str(CONTAINERS[output.format].bits),
        "Server-Timing": run.timing.header(),
        "Cache-Control": "no-store",
        **request.plan.ignored.header(),
    }
    if output.marks.comment is not None:
        fields["X-Provenance"] = output.marks.comment
    if run.finish is not None:
        usage = run.usage.as_dict()
        fields["X-Finish-Reason"] = run.finish
        fields["X-Audio-Duration"] = f"{run.duration:.4f}"
        fields |= {
            f"X-Usage-{k.replace('_', '-').title()}": str(v)
            for k, v in usage.items()
            if isinstance(v, int)
        }
    return fields
