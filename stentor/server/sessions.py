"""A connection on which a client sends messages while speech is sent to it: deadlines, slow clients, and the end.

Each protocol has a subclass of `Session`: `ws/` and `doors/`.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stentor.errors import InvalidRequest
from stentor.server.backpressure import Disconnected, SlowClient
from stentor.server.config import MIB
from stentor.server.errors import ApiError, shutting_down, translate
from stentor.server.limits import LIMITS

if TYPE_CHECKING:
    from stentor.server.state import Server

MAX_ERRORS = LIMITS.ws_errors  # refused messages, after which the session is closed
FLUSH_SECONDS = LIMITS.flush_seconds  # for the last events to a client that does not read


class CloseSession(Exception):
    """Ends the session with a close code (RFC 6455) and, if there is one, an error event before it."""

    def __init__(self, code: int, error: ApiError | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.code, self.error = code, error
        self.reason = reason or ("" if error is None else error.code or error.message)


class Outbox:
    """Frames in order on their way to a client. Adding one raises SlowClient when they exceed `max_bytes`.

    `send` raises Disconnected when the client has left."""

    def __init__(self, send: Callable[[str | bytes], Awaitable[None]], max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._send = send
        self._frames: deque[tuple[str | bytes, bool]] = deque()  # frame, whether it is audio
        self._ready = asyncio.Event()

    def put(self, frame: str | bytes, audio: bool = False) -> None:
        """Queue a frame."""
        if self.size and self.size + len(frame) > self.max_bytes:
            raise SlowClient
        self.size += len(frame)
        self._frames.append((frame, audio))
        self._ready.set()

    def drop_audio(self) -> None:
        """Drop audio that has not been sent. A frame that is being sent still counts."""
        self.size -= sum(len(f) for f, audio in self._frames if audio)
        self._frames = deque(f for f in self._frames if not f[1])

    async def run(self) -> None:
        """Send frames until cancelled."""
        while True:
            await self.flush()
            self._ready.clear()
            await self._ready.wait()

    async def flush(self) -> None:
        """Send all queued frames."""
        while self._frames:
            frame = self._frames.popleft()[0]
            try:
                await self._send(frame)
            finally:
                self.size -= len(frame)


def refusal(server: Server) -> ApiError | None:
    """Why no further session can begin now. None: it can."""
    if server.counts.total("sessions") < server.most_sessions and not server.drain.is_set():
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
        self.server, self.config, self.id = server, server.config, id
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
    @abstractmethod
    def patience(self) -> tuple[float, str]:
        """Seconds of silence after which the session is closed while it is not busy, and the code of that error."""

    @abstractmethod
    async def open(self) -> None:
        """Accept the connection."""

    @abstractmethod
    async def receive(self) -> Any:
        """The next message. CloseSession: the client has left."""

    @abstractmethod
    async def handle(self, message: Any) -> None:
        """Do what a message asks for. ApiError or InvalidRequest refuses it, CloseSession ends the session."""

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

    def begin(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a job beside the session. It is cancelled with the session, and a failure of it ends the session."""
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
        tasks = [asyncio.create_task(part) for part in (self._read(), self._drained(), *self.parts())]
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
            why = CloseSession(1008, ApiError(408, "audio was not read fast enough", code="slow_client"))
        if not isinstance(why, CloseSession):
            why = CloseSession(1011, translate(why))
        try:
            async with asyncio.timeout(self.config.request_timeout if why.error is None else FLUSH_SECONDS):
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
        """Tell the client what is wrong with a message. CloseSession: there were too many."""
        self.errors += 1
        if self.errors > MAX_ERRORS:
            raise CloseSession(1008, ApiError(400, "too many refused messages", code="too_many_errors"))
        self.server.metrics.count_refusal(error)
        self.report(error)

    async def _next(self) -> Any:
        """The next message. CloseSession: the client has left, or was silent for too long while nothing was spoken."""
        while True:
            limit, code = self.patience
            left = self.last_active + limit - time.monotonic()
            if left <= 0 and not self.busy:
                raise CloseSession(1008, ApiError(408, f"no message within {limit:g} s", code=code))
            try:
                async with asyncio.timeout(left if left > 0 else limit):
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
        raise CloseSession(1001, shutting_down() if self.busy else None, reason="the server is shutting down")
