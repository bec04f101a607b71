"""WS /v1/audio/speech/stream: text arrives while audio is sent, and a cancel reports how much was played.

The protocol is in docs/serving.md. Message names are those of vLLM-Omni, with SGLang-Omni's commit and nari's cancel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from stentor.errors import InvalidRequest
from stentor.server.backpressure import SlowClient, run_while_connected
from stentor.server.config import MIB
from stentor.server.errors import ApiError, shutting_down, translate
from stentor.server.ignored import Ignored
from stentor.server.json_sse import json_response
from stentor.server.limits import LIMITS
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server, server
from stentor.server.ws.messages import (
    Append,
    Cancel,
    Close,
    CloseSession,
    Commit,
    Configure,
    Done,
    Message,
    MessageReader,
    MessageSender,
    parse,
)
from stentor.server.ws.utterance import Utterance

router = APIRouter()

CONFIG_SECONDS = LIMITS.ws_config_seconds  # for the first message
MAX_WAITING = LIMITS.ws_waiting  # utterances that wait for the one that is being spoken
MAX_ERRORS = LIMITS.ws_errors  # refused messages, after which the session is closed
FLUSH_SECONDS = LIMITS.flush_seconds  # for the last events to a client that does not read


@router.websocket("/v1/audio/speech/stream")
async def stream(ws: WebSocket) -> None:
    """One session, as docs/serving.md describes it."""
    s = server(ws)
    sessions = s.metrics.sessions
    if len(sessions) >= s.config.ws_max_sessions or s.drain.is_set():
        refused = ApiError(503, "no more WebSocket sessions now", code="too_many_sessions", retry_after=5)
        s.metrics.count_refusal(refused)
        await ws.send_denial_response(json_response(refused.body, refused.status, refused.headers))
        return
    session = Session(ws, s)
    sessions.add(session)
    try:
        await session.run()
    finally:
        sessions.discard(session)


@router.websocket("/{path:path}")
async def nothing(ws: WebSocket, path: str) -> None:
    """404 for a WebSocket elsewhere. It would be a 403, as for a page of another origin."""
    error = ApiError(404, f"there is no WebSocket at /{path[:80]}; it is at /v1/audio/speech/stream")
    await ws.send_denial_response(json_response(error.body, error.status, error.headers))


class Session:
    """A connection. It has one configuration at a time and speaks utterances in the order they were written."""

    def __init__(self, ws: WebSocket, server: Server) -> None:
        self.ws, self.server, self.config = ws, server, server.config
        self.id: str = ws.state.request_id
        self.incoming = MessageReader(ws)
        self.out = MessageSender(ws, int(server.config.max_buffered_mb * MIB))
        self.configured: tuple[SpeechPlan, Configure] | None = None
        self.count = self.errors = 0
        self.writing: Utterance | None = None  # takes the text that arrives
        self.last: Utterance | None = None  # being spoken, or spoken last
        self.waiting: asyncio.Queue[Utterance | None] = asyncio.Queue()  # None: close the session
        self.speaking: asyncio.Task[None] | None = None
        self.last_active = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether something is being spoken, or will be without another message."""
        if self.speaking is not None:
            return self.last is None or not self.last.waiting_for_text
        return not self.waiting.empty()

    async def run(self) -> None:
        """Serve until the client leaves, breaks a limit, or the server shuts down."""
        await self.ws.accept()
        tasks = [asyncio.create_task(part) for part in (self._read(), self._speak(), self.out.run(), self._drained())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ends = next(t.exception() for t in tasks if t.done())
        finally:
            if self.speaking is not None:
                tasks.append(self.speaking)
            sender = tasks.pop(2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not sender.done():
                sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        await self._close_connection(ends)

    async def _close_connection(self, why: BaseException | None) -> None:
        """Send the last events and the closing handshake, if the client is still connected."""
        if why is None or isinstance(why, WebSocketDisconnect) or self.ws.client_state is not WebSocketState.CONNECTED:
            return
        if isinstance(why, SlowClient):
            self.out.drop_audio()
            why = CloseSession(1008, ApiError(408, "audio was not read fast enough", code="slow_client"))
        if not isinstance(why, CloseSession):
            why = CloseSession(1011, translate(why))
        try:
            async with asyncio.timeout(self.config.request_timeout if why.error is None else FLUSH_SECONDS):
                if why.error is not None:
                    self.server.metrics.count_refusal(why.error)
                    self.out.error(why.error)
                await self.out.flush()
                await self.ws.close(why.code, why.reason[:120])
        except (TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            return  # the client is gone or reads nothing, so the server drops the connection

    # -- from the client --

    async def _read(self) -> None:
        while True:
            try:
                message = parse(await self._next())
                await self._handle(message)
            except (ApiError, InvalidRequest, TimeoutError) as e:
                self._refuse(translate(e))
            self.last_active = time.monotonic()  # a configuration may wait for a model or a reference
            await asyncio.sleep(0)  # a client that sends without pause must not block the others

    def _refuse(self, error: ApiError) -> None:
        self.errors += 1
        if self.errors > MAX_ERRORS:
            raise CloseSession(1008, ApiError(400, "too many refused messages", code="too_many_errors"))
        self.server.metrics.count_refusal(error)
        self.out.error(error)

    async def _next(self) -> MutableMapping[str, Any]:
        """The next message. CloseSession: the client has left, or was silent for too long while nothing was spoken."""
        while True:
            limit = CONFIG_SECONDS if self.configured is None else self.config.ws_idle_seconds
            left = self.last_active + limit - time.monotonic()
            if left <= 0 and not self.busy:
                code = "config_timeout" if self.configured is None else "idle_timeout"
                raise CloseSession(1008, ApiError(408, f"no message within {limit:g} s", code=code))
            try:
                async with asyncio.timeout(left if left > 0 else limit):
                    message = await self.incoming.next()
            except TimeoutError:
                continue
            if message["type"] == "websocket.disconnect":
                raise CloseSession(1000)
            self.last_active = time.monotonic()
            return message

    async def _handle(self, message: Message) -> None:
        if not isinstance(message, Configure):
            _note_unknown(message, Ignored(self.config.strict))
        match message:
            case Configure():
                await self._configure(message)
            case Close():
                await self._close()
            case _ if self.configured is None:
                raise CloseSession(
                    1008, ApiError(400, "type: the first message must be session.config", code="no_config")
                )
            case Append():
                self._append(message)
            case Commit():
                if self.writing is not None:
                    self.writing.feed.flush()
                given = {} if message.commit_id is None else {"commit_id": message.commit_id}
                self.out.event("input.committed", utterance_index=self._index, **given)
            case Done():
                self._open().feed.end()
                self.writing = None
            case Cancel():
                await self._cancel(message)

    @property
    def _index(self) -> int:
        return self.count if self.writing is None else self.writing.index

    async def _configure(self, settings: Configure) -> None:
        if self.writing is not None or self.speaking is not None or not self.waiting.empty():
            raise ApiError(409, "session.config: wait for session.done, or cancel", code="session_busy")
        planned = self.server.planner.live(settings, self.id, settings.word_timestamps)
        limit, ended = self.config.request_timeout, self.server.ended
        plan = await run_while_connected(planned, self.incoming.ahead, limit, ended)
        self.configured = plan, settings
        self.out.event(
            "session.configured",
            session_id=self.id,
            model=plan.host.name,
            response_format=plan.output.format,
            sample_rate=plan.output.rate,
            channels=1,
            stream_audio=settings.streams(plan.output.format),
            split_granularity=settings.split_granularity,
            **plan.ignored.as_json(),
        )

    def _append(self, message: Append) -> None:
        limit = self.config.max_input_chars
        size = 0 if self.writing is None else len(self.writing.feed.text)
        if size + len(message.text) > limit:
            raise ApiError(
                400, f"text: the utterance has more than {limit} characters", param="text", code="text_too_long"
            )
        utterance = self._open()
        _note_unknown(message, utterance.plan.ignored)
        utterance.feed.write(message.text)
        if message.sequence is not None:
            self.out.event("input.ack", sequence=message.sequence, utterance_index=self._index)

    def _open(self) -> Utterance:
        """The utterance that takes text now."""
        if self.writing is None:
            assert self.configured is not None
            if self.waiting.qsize() >= MAX_WAITING:
                raise ApiError(429, f"{MAX_WAITING} utterances are waiting already", code="too_many_utterances")
            self.writing = Utterance(self.server, self.out, *self.configured, self.count)
            self.count += 1
            self.waiting.put_nowait(self.writing)
        return self.writing

    async def _cancel(self, message: Cancel) -> None:
        """Drop waiting utterances, stop the current one, and report how much of it was played. A session.close that was
        sent before still counts."""
        closes = False
        while not self.waiting.empty():
            closes |= self.waiting.get_nowait() is None
        self.writing = None
        if self.speaking is not None:
            self.speaking.cancel()
            await asyncio.wait([self.speaking])
        self.out.drop_audio()
        report = {} if self.last is None else self.last.played_report(message.played_ms)
        self.out.event("response.cancelled", **report)
        if closes:
            self.waiting.put_nowait(None)

    async def _close(self) -> None:
        """End the utterance that is being written, and close the session once everything has been spoken."""
        if self.writing is not None:
            self.writing.feed.end()
            self.writing = None
        self.waiting.put_nowait(None)

    # -- to the client --

    async def _speak(self) -> None:
        while True:
            utterance = await self.waiting.get()
            if utterance is None:
                raise CloseSession(1000)
            self.last = utterance
            self.speaking = asyncio.create_task(utterance.speak())
            try:
                await asyncio.wait([self.speaking])
                if not self.speaking.cancelled():
                    self.speaking.result()
            finally:
                if self.speaking.done():
                    self.speaking = None
                self.last_active = time.monotonic()

    async def _drained(self) -> None:
        """End the session once the server shuts down and nothing is being spoken."""
        await self.server.drain.wait()
        while self.busy and not self.server.ended.is_set():
            await asyncio.sleep(0.05)
        raise CloseSession(1001, shutting_down() if self.busy else None, reason="the server is shutting down")


def _note_unknown(message: Message, ignored: Ignored) -> None:
    """Note the fields of a message that are not known. ApiError in a strict server."""
    for name in message.model_extra or {}:
        ignored.field(name, f"is not a field of {message.type}")
