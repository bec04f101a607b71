"""A connection on which a client sends messages while speech is sent to it: deadlines, slow
clients, and the end.

Each protocol has a subclass of `Session`: `ws/` and `doors/`.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from stentor.errors import InvalidRequest
from stentor.server.backpressure import (
    Disconnected,
    Outbox,
    SlowClient,
    SocketOutbox,
    run_while_connected,
)
from stentor.server.errors import ApiError, invalid, shutting_down, translate
from stentor.server.limits import LIMITS, MIB
from stentor.server.schemas import Shared
from stentor.server.speech.plan import SpeechPlan, WordTimes
from stentor.server.state import Server, server
from stentor.server.wire_json import json_response, loads

MAX_ERRORS = LIMITS.ws_errors  # refused messages, after which the session is closed
FLUSH_SECONDS = LIMITS.flush_seconds  # for the last events to a client that does not read
# of any message. A replica's uvicorn, which Ray starts, takes more
MAX_CONFIG_BYTES = LIMITS.ws_config_mb << 20
MAX_AHEAD_BYTES = LIMITS.ws_ahead_kib << 10  # of what is read during a session.config
MAX_MESSAGE_BYTES = LIMITS.ws_message_kib << 10  # of a message other than session.config


class CloseSession(Exception):
    """Ends the session with a close code (RFC 6455) and, if there is one, an error event before
    it."""

    def __init__(self, code: int, error: ApiError | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.error = error
        self.reason = reason or ("" if error is None else error.code or error.message)


def refusal(server: Server) -> ApiError | None:
    """Why no further session can begin now. None: it can."""
    if server.counts.total("sessions") < server.max_sessions and not server.drain.is_set():
        return None
    refused = ApiError(503, "no more sessions now", code="too_many_sessions", retry_after=5)
    server.metrics.count_refusal(refused)
    return refused


@contextmanager
def counted(server: Server, session: Session) -> Iterator[None]:
    """Count a session while it lasts."""
    server.metrics.sessions.add(session)
    server.counts.add("sessions", 1)
    try:
        yield
    finally:
        server.metrics.sessions.discard(session)
        server.counts.add("sessions", -1)


class Session(ABC):
    """One connection. `run` it once."""

    out: Outbox

    def __init__(self, server: Server, id: str) -> None:
        self.server = server
        self.config = server.config
        self.id = id
        self.errors = 0
        self.last_active = time.monotonic()
        self._jobs: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- what a protocol says --

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether something is being spoken, or will be without another message."""

    @property
    def patience(self) -> tuple[float, str]:
        """Seconds of silence after which the session is closed while it is not busy, and the code
        of that error."""
        return self.config.ws_idle_seconds, "idle_timeout"

    @abstractmethod
    async def open(self) -> None:
        """Accept the connection."""

    @abstractmethod
    async def receive(self) -> Any:
        """The next message. CloseSession: the client has left."""

    @abstractmethod
    async def handle(self, message: Any) -> None:
        """Handle a message. ApiError or InvalidRequest refuses it, CloseSession ends the
        session."""

    @abstractmethod
    def report(self, error: ApiError) -> None:
        """Queue an error for the client."""

    @abstractmethod
    async def hang_up(self, code: int, reason: str) -> None:
        """Close the connection."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the client is still there."""

    def parts(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Further work of the session, each as long as it lasts."""
        return ()

    # -- what all share --

    @property
    def max_buffered(self) -> int:
        """Bytes that a client may leave unread."""
        return int(self.config.max_buffered_mb * MIB)

    def check_length(self, text: str) -> None:
        """ApiError for a text that is too long."""
        limit = self.config.max_input_chars
        if len(text) > limit:
            raise invalid("text", f"has {len(text)} characters, at most {limit}", "text_too_long")

    def begin(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a job beside the session. It is cancelled with the session, and a failure of it ends
        the session."""
        task = asyncio.create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._job_ended)
        return task

    def stop(self, why: BaseException) -> None:
        """End the session. The first call counts."""
        if not self._broken.done():
            self._broken.set_exception(why)
            self._broken.exception()  # asyncio logs one that nobody has looked at

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        self.last_active = time.monotonic()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error)

    async def run(self) -> None:
        """Serve until the client leaves, breaks a limit, or the server shuts down."""
        await self.open()
        sender = asyncio.create_task(self.out.run())
        tasks = [
            asyncio.create_task(part) for part in (self._read(), self._drained(), *self.parts())
        ]
        watched: list[asyncio.Future[None]] = [sender, *tasks, self._broken]
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            ends = next(t.exception() for t in watched if t.done())
        finally:
            tasks += self._jobs
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            sender.cancel()
            self._broken.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        await self._close(ends)

    async def _close(self, why: BaseException | None) -> None:
        """Send the last events and hang up, if the client is still connected."""
        if why is None or isinstance(why, Disconnected) or not self.connected:
            return
        if isinstance(why, SlowClient):
            self.out.drop_audio()
            why = CloseSession(
                1008, ApiError(408, "audio was not read fast enough", code="slow_client")
            )
        if not isinstance(why, CloseSession):
            why = CloseSession(1011, translate(why))
        try:
            async with asyncio.timeout(
                self.config.request_timeout if why.error is None else FLUSH_SECONDS
            ):
                if why.error is not None:
                    self.server.metrics.count_refusal(why.error)
                    self.report(why.error)
                await self.out.flush()
                await self.hang_up(why.code, why.reason[:120])
        except (TimeoutError, RuntimeError, OSError, Disconnected):
            return  # the client is gone or reads nothing, so the server drops the connection

    async def _read(self) -> None:
        while True:
            try:
                await self.handle(await self._next())
            except (ApiError, InvalidRequest, TimeoutError) as e:
                self.refuse(translate(e))
            self.last_active = time.monotonic()  # a message may wait for a model or a reference
            await asyncio.sleep(0)  # a client that sends without pause must not block the others

    def refuse(self, error: ApiError) -> None:
        """Report an invalid message to the client. CloseSession: there were too many."""
        self.errors += 1
        if self.errors > MAX_ERRORS:
            raise CloseSession(
                1008, ApiError(400, "too many refused messages", code="too_many_errors")
            )
        self.server.metrics.count_refusal(error)
        self.report(error)

    async def _next(self) -> Any:
        """The next message. CloseSession: the client has left, or was silent for too long while
        nothing was spoken."""
        while True:
            limit, code = self.patience
            seconds = self.last_active + limit - time.monotonic()
            if seconds <= 0 and not self.busy:
                raise CloseSession(1008, ApiError(408, f"no message within {limit:g} s", code=code))
            try:
                async with asyncio.timeout(seconds if seconds > 0 else limit):
                    message = await self.receive()
            except TimeoutError:
                continue
            self.last_active = time.monotonic()
            return message

    async def _drained(self) -> None:
        """End the session once the server shuts down and nothing is being spoken."""
        await self.server.drain.wait()
        while self.busy and not self.server.ended.is_set():
            await asyncio.sleep(0.05)
        raise CloseSession(
            1001, shutting_down() if self.busy else None, reason="the server is shutting down"
        )


async def serve(ws: WebSocket, make: Callable[[WebSocket, Server], SocketSession]) -> None:
    """Run the session that `make` returns, or refuse the handshake where there is no room for
    it."""
    s = server(ws)
    if (refused := refusal(s)) is not None:
        await ws.send_denial_response(json_response(refused.body, refused.status, refused.headers))
        return
    session = make(ws, s)
    with counted(s, session):
        await session.run()


def read_json(message: Mapping[str, Any]) -> Any:
    """The JSON value of a text frame. Raises ApiError if it is invalid. CloseSession 1009: it is
    too large."""
    text = message.get("text")
    if text is None:
        raise ApiError(400, "messages must be JSON in text frames", code="invalid_message")
    if len(text) > MAX_CONFIG_BYTES:
        raise CloseSession(
            1009,
            ApiError(
                413,
                f"the message is larger than {LIMITS.ws_config_mb} MiB",
                code="message_too_large",
            ),
        )
    try:
        return loads(text)
    except json.JSONDecodeError:
        raise ApiError(400, "the message is not valid JSON", code="invalid_json") from None


def check_size(message: Mapping[str, Any], what: str) -> None:
    """CloseSession 1009 for a message that is larger than those with text are."""
    if len(message["text"]) > MAX_MESSAGE_BYTES:
        raise CloseSession(
            1009,
            ApiError(
                413,
                f"{what} is larger than {MAX_MESSAGE_BYTES >> 10} KiB",
                code="message_too_large",
            ),
        )


class MessageReader:
    """Passes on a client's messages in order. Some of it may be read before it is wanted."""

    def __init__(self, ws: WebSocket) -> None:
        self.ws = ws
        self._ahead: deque[MutableMapping[str, Any]] = deque()

    async def next(self) -> MutableMapping[str, Any]:
        """The next message of ASGI."""
        if self._ahead:
            return self._ahead.popleft()
        return await self.ws.receive()

    async def ahead(self) -> MutableMapping[str, Any]:
        """Read a message, such as that the client has left, and keep it for `next`. Waits for ever
        while `MAX_AHEAD_BYTES` are kept."""
        if (
            sum(max(1024, len(m.get("text") or m.get("bytes") or ())) for m in self._ahead)
            >= MAX_AHEAD_BYTES
        ):
            await asyncio.Event().wait()
        message = await self.ws.receive()
        self._ahead.append(message)
        return message


class SocketSession(Session):
    """A session over WebSocket."""

    out: SocketOutbox
    subprotocol: str | None = None  # of those that the client offers

    def __init__(self, ws: WebSocket, server: Server) -> None:
        super().__init__(server, ws.state.request_id)
        self.ws = ws
        self.traceparent = ws.headers.get("traceparent")
        self.incoming = MessageReader(ws)
        self.out = SocketOutbox(ws, self.max_buffered)

    async def open(self) -> None:
        await self.ws.accept(self.subprotocol)

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self.incoming.next()
        if message["type"] == "websocket.disconnect":
            raise CloseSession(1000)
        return message

    async def planned(
        self, body: Shared, words: WordTimes, voices: Sequence[str] = ()
    ) -> SpeechPlan:
        """The plan for text that arrives later. It may wait for a model. Messages are read ahead
        meanwhile. voices: of a dialogue."""
        planned = self.server.planner.live(body, self.id, words, voices)
        return await run_while_connected(
            planned, self.incoming.ahead, self.config.request_timeout, self.server.ended
        )

    async def hang_up(self, code: int, reason: str) -> None:
        with suppress(WebSocketDisconnect):
            await self.ws.close(code, reason)

    @property
    def connected(self) -> bool:
        return self.ws.client_state is WebSocketState.CONNECTED
