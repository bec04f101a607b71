"""A caller's handle of its request: audio as it is generated, for any thread or for asyncio.

The engine holds the `Outbox` of a request, and its caller the `AudioStream`. A stream that nobody
holds any more is therefore collected, and cancels its request.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stentor.arguments import not_unicode, shown
from stentor.errors import EngineError, InvalidRequest, request_failed

if TYPE_CHECKING:
    import asyncio

    from stentor.models.base import LiveText


@dataclass(frozen=True)
class Chunk:
    """Audio of some frames: `samples` float32 [n * hop], `frames` [n, *frame].

    `finish` is None until the last chunk. Then it is "stop" (the model ended), "length"
    (max_frames) or "cancelled". attended: float32 [n, ATTENDED_WIDTH], where in the text each frame
    is, or [n, 0] without alignment.
    """

    samples: np.ndarray
    frames: np.ndarray
    finish: str | None
    attended: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def copied(self) -> Chunk:
        """Return the chunk with arrays of its own."""
        samples = self.samples.copy()
        frames = self.frames.copy()
        attended = self.attended.copy()
        return Chunk(samples, frames, self.finish, attended)


StreamEvent = Chunk | BaseException


@dataclass(frozen=True)
class Cancel:
    """Message to the engine: end the request of `outbox`."""

    outbox: EventSink


@dataclass(frozen=True, eq=False)
class AppendText:
    """Message to the engine: text of a live request has arrived. `values` [m] extend `column` of
    its row."""

    outbox: EventSink
    column: str
    values: np.ndarray
    last: bool


class LoopNotifier:
    """Wakes event loops, each once for all of its streams that have new events.

    A wake-up is a system call that hands over the interpreter lock. With one per stream, a busy
    event loop would stop the engine's thread as often.
    """

    def __init__(self) -> None:
        self._pending: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
        self.on_flush: list[Callable[[], None]] = []  # called at each flush

    def notify(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
        """Set `ready` in its loop at the next `flush`."""
        self._pending.setdefault(loop, []).append(ready)

    def flush(self) -> None:
        """Wake every loop that was notified since the last time."""
        while self._pending:
            loop, ready = self._pending.popitem()
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(_set, ready)
        for call in self.on_flush:
            call()


def _set(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()


class EventSink(Protocol):
    """Where the engine puts the events of one request."""

    @property
    def keeps_arrays(self) -> bool:
        """Whether it holds the arrays of a chunk for longer than until the next flush."""
        ...

    def put(self, event: StreamEvent) -> None:
        """Take an event. The engine flushes its notifier soon."""
        ...


class Outbox:
    """Events of one request on their way from the engine's thread to one reader."""

    keeps_arrays = True

    def __init__(self, notifier: LoopNotifier) -> None:
        self.ended = False  # the reader has had the last event
        self._notifier = notifier
        self._events: queue.SimpleQueue[StreamEvent] = queue.SimpleQueue()
        self._wake: Callable[[], None] | None = None

    @property
    def empty(self) -> bool:
        return self._events.empty()

    def put(self, event: StreamEvent) -> None:
        """For the engine, which flushes the notifier soon. The last event is a chunk with `finish`,
        or an exception."""
        self._events.put(event)
        wake = self._wake
        if wake is not None:
            wake()

    def wake_in(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """An event of `loop` that is set whenever something has been put."""
        import asyncio

        ready = asyncio.Event()
        self._wake = lambda: self._notifier.notify(loop, ready)
        return ready

    def take(self, wait: bool) -> Chunk:
        """The next chunk. Without `wait`, queue.Empty if there is none. EngineError if the request
        failed."""
        event = self._events.get(wait)
        self.ended = not isinstance(event, Chunk) or event.finish is not None
        if not isinstance(event, Chunk):
            raise event if isinstance(event, EngineError) else request_failed(event)
        return event


class RequestHandle:
    """Handle of a caller on its request, whose events go to `outbox`.

    live: how text is added, None for a request that has its whole text. send: hands a message to
    the engine.
    """

    def __init__(
        self,
        outbox: EventSink,
        live: LiveText | None,
        send: Callable[[Cancel | AppendText], None],
    ) -> None:
        self._outbox = outbox
        self._live = live
        self._send = send

    def append(self, text: str, last: bool = False) -> None:
        """Append text to a live request, from one thread at a time. The `last` text may be empty.
        Nothing follows it.

        InvalidRequest if the request is not live, has had its last text, or takes no more of it,
        and for what is no text. The request goes on. EngineError if the engine has stopped.
        """
        if self._live is None:
            raise InvalidRequest("live", "the request already has its complete text")
        values = self._live.more(checked_text(text, last), last)
        self._send(AppendText(self._outbox, self._live.column, values, last))

    def cancel(self) -> None:
        """Stop the request and free its slot and pages. Safe at any time, from any thread."""
        with contextlib.suppress(EngineError):  # the engine has stopped, and with it the request
            self._send(Cancel(self._outbox))


class AudioStream(RequestHandle):
    """Chunks of one request, in order, by `for` or `async for` in one reader. A failure is raised
    there. A stream that has ended yields nothing more.

    A request is cancelled when nobody holds its stream any more.
    """

    def __init__(
        self,
        seed: int,
        outbox: Outbox,
        live: LiveText | None,
        send: Callable[[Cancel | AppendText], None],
    ) -> None:
        super().__init__(outbox, live, send)
        self.seed = seed
        self.outbox = outbox
        self._process = os.getpid()

    def __del__(self) -> None:
        if not self.outbox.ended:
            self.cancel()

    def __iter__(self) -> Iterator[Chunk]:
        while not self.outbox.ended:
            self._check_process()
            yield self.outbox.take(wait=True)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        self._check_process()
        import asyncio  # no other caller needs it, and it takes 12 ms

        ready = self.outbox.wake_in(asyncio.get_running_loop())
        while not self.outbox.ended:
            try:
                chunk = self.outbox.take(wait=False)
            except queue.Empty:
                await ready.wait()
                ready.clear()
                continue
            yield chunk

    def _check_process(self) -> None:
        """Nothing would ever arrive in a forked child."""
        if os.getpid() != self._process:
            raise EngineError(
                "this stream belongs to the process that submitted it, and this is a forked child"
            )


def checked_text(text: object, last: object) -> str:
    """Check the text that is added to a live request. InvalidRequest names what is wrong with
    it."""
    if not isinstance(text, str):
        raise InvalidRequest("text", f"must be a string, got {type(text).__name__}")
    if not isinstance(last, bool):
        raise InvalidRequest("last", f"must be true or false, got {shown(last)}")
    if (wrong := not_unicode(text)) is not None:
        raise InvalidRequest("text", wrong)
    return text
