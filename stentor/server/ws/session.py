"""WS /v1/audio/speech/stream: text in as it is written, audio out as it is spoken, cancel with what was heard.

docs/serving.md holds the protocol; message names are those of vLLM-Omni, with SGLang-Omni's commit and nari's cancel.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from stentor.errors import InvalidRequest
from stentor.server.backpressure import SlowClient
from stentor.server.config import MIB
from stentor.server.errors import ApiError, translate
from stentor.server.json_sse import json_response
from stentor.server.speech.plan import Plan
from stentor.server.ws.messages import (
    Append,
    Cancel,
    Close,
    Commit,
    Configure,
    Done,
    Hangup,
    Message,
    Outgoing,
    parse,
)
from stentor.server.ws.utterance import Utterance

if TYPE_CHECKING:
    from stentor.server.app import Server

router = APIRouter()

CONFIG_SECONDS = 10.0  # for the first message
MOST_WAITING = 8  # utterances written ahead of the one that is spoken
MOST_MISTAKES = 32  # refused messages, after which the session is closed
FLUSH_SECONDS = 5.0  # for last words to a client that does not read


@router.websocket("/v1/audio/speech/stream")
async def stream(ws: WebSocket) -> None:
    """One session; see docs/serving.md."""
    server: Server = ws.app.state.server
    sessions = server.metrics.sessions
    if len(sessions) >= server.config.ws_max_sessions or server.drain.is_set():
        refused = ApiError(503, "no more WebSocket sessions now", code="too_many_sessions", retry_after=5)
        server.metrics.rejected.labels("too_many_sessions").inc()
        await ws.send_denial_response(json_response(refused.body, refused.status, refused.headers))
        return
    session = Session(ws, server)
    sessions.add(session)
    try:
        await session.run()
    finally:
        sessions.discard(session)


class Session:
    """A connection: one configuration at a time, utterances spoken in the order they were written."""

    def __init__(self, ws: WebSocket, server: Server) -> None:
        self.ws, self.server, self.config = ws, server, server.config
        self.id: str = ws.state.request_id
        self.out = Outgoing(ws, int(server.config.max_buffered_mb * MIB))
        self.configured: tuple[Plan, Configure] | None = None
        self.count = self.mistakes = 0
        self.writing: Utterance | None = None  # takes the text that comes
        self.last: Utterance | None = None  # spoken, or being spoken
        self.waiting: asyncio.Queue[Utterance | None] = asyncio.Queue()  # None: hang up
        self.speaking: asyncio.Task[None] | None = None
        self.touched = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether something is being spoken, or could be without another message."""
        if self.speaking is not None:
            return self.last is None or not self.last.starving
        return not self.waiting.empty()

    async def run(self) -> None:
        """Until the client leaves, misbehaves, or the server ends."""
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
        await self._leave(ends)

    async def _leave(self, why: BaseException | None) -> None:
        """Last words and the closing handshake, if there is still someone."""
        if why is None or isinstance(why, WebSocketDisconnect) or self.ws.client_state is not WebSocketState.CONNECTED:
            return
        if isinstance(why, SlowClient):
            self.out.drop_audio()
            why = Hangup(1008, ApiError(408, "audio was not read fast enough", code="slow_client"))
        if not isinstance(why, Hangup):
            why = Hangup(1011, translate(why))
        try:
            async with asyncio.timeout(self.config.request_timeout if why.error is None else FLUSH_SECONDS):
                if why.error is not None:
                    self.server.metrics.rejected.labels(why.error.code or "websocket").inc()
                    self.out.error(why.error)
                await self.out.flush()
                await self.ws.close(why.code, why.reason[:120])
        except (TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            return  # it has gone, or reads nothing; the server drops the connection

    # -- what comes in --

    async def _read(self) -> None:
        while True:
            try:
                message = parse(await self._next())
                await self._obey(message)
            except (ApiError, InvalidRequest) as e:
                self._refuse(translate(e))
            await asyncio.sleep(0)  # a client that floods us takes turns with the others

    def _refuse(self, error: ApiError) -> None:
        self.mistakes += 1
        if self.mistakes > MOST_MISTAKES:
            raise Hangup(1008, ApiError(400, "too many refused messages", code="too_many_errors"))
        self.server.metrics.rejected.labels(error.code or f"invalid_{error.param}"[:40]).inc()
        self.out.error(error)

    async def _next(self) -> dict[str, Any]:
        """The next message. Hangup when the client is silent for too long while nothing is spoken, or has gone."""
        while True:
            limit = CONFIG_SECONDS if self.configured is None else self.config.ws_idle_seconds
            left = self.touched + limit - time.monotonic()
            if left <= 0 and not self.busy:
                code = "config_timeout" if self.configured is None else "idle_timeout"
                raise Hangup(1008, ApiError(408, f"no message within {limit:g} s", code=code))
            try:
                async with asyncio.timeout(left if left > 0 else limit):
                    message: dict[str, Any] = dict(await self.ws.receive())
            except TimeoutError:
                continue
            if message["type"] == "websocket.disconnect":
                raise Hangup(1000)
            self.touched = time.monotonic()
            return message

    async def _obey(self, message: Message) -> None:
        match message:
            case Configure():
                await self._configure(message)
            case Close():
                await self._close()
            case _ if self.configured is None:
                raise Hangup(1008, ApiError(400, "type: the first message must be session.config", code="no_config"))
            case Append():
                self._append(message)
            case Commit():
                if self.writing is not None:
                    self.writing.feed.flush()
                self.out.event("input.committed", utterance_index=self._index)
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
        plan = await self.server.planner.live(settings, self.id, settings.word_timestamps)
        self.configured = plan, settings
        self.out.event(
            "session.configured",
            session_id=self.id,
            model=plan.host.name,
            response_format=plan.output.format,
            sample_rate=plan.output.rate,
            channels=1,
        )

    def _append(self, message: Append) -> None:
        most = self.config.max_input_chars
        size = 0 if self.writing is None else len(self.writing.feed.text)
        if size + len(message.text) > most:
            raise ApiError(
                400, f"text: the utterance has more than {most} characters", param="text", code="text_too_long"
            )
        self._open().feed.write(message.text)
        if message.sequence is not None:
            self.out.event("input.ack", sequence=message.sequence, utterance_index=self._index)

    def _open(self) -> Utterance:
        """The utterance that takes text now."""
        if self.writing is None:
            assert self.configured is not None
            if self.waiting.qsize() >= MOST_WAITING:
                raise ApiError(429, f"{MOST_WAITING} utterances are waiting already", code="too_many_utterances")
            self.writing = Utterance(self.server, self.out, *self.configured, self.count)
            self.count += 1
            self.waiting.put_nowait(self.writing)
        return self.writing

    async def _cancel(self, message: Cancel) -> None:
        """Forget what is written, stop what is spoken, and say how much of it was heard."""
        while not self.waiting.empty():
            self.waiting.get_nowait()
        self.writing = None
        if self.speaking is not None:
            self.speaking.cancel()
            await asyncio.wait([self.speaking])
        self.out.drop_audio()
        heard = {} if self.last is None else self.last.heard(message.played_ms)
        self.out.event("response.cancelled", **heard)

    async def _close(self) -> None:
        """End what was written; hang up when it has been spoken."""
        if self.writing is not None:
            self.writing.feed.end()
            self.writing = None
        self.waiting.put_nowait(None)

    # -- what goes out --

    async def _speak(self) -> None:
        while True:
            utterance = await self.waiting.get()
            if utterance is None:
                raise Hangup(1000)
            self.last = utterance
            self.speaking = asyncio.create_task(utterance.speak())
            try:
                await asyncio.wait([self.speaking])
                if not self.speaking.cancelled():
                    self.speaking.result()
            finally:
                if self.speaking.done():
                    self.speaking = None
                self.touched = time.monotonic()

    async def _drained(self) -> None:
        """Ends the session once the server is ending and nothing is spoken."""
        await self.server.drain.wait()
        while self.busy:
            await asyncio.sleep(0.05)
        raise Hangup(1001, reason="the server is shutting down")
