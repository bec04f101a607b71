"""A caller's handle of its request: audio as it is generated, for any thread or for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stentor.errors import EngineError, InvalidRequest
from stentor.models.base import LiveText


@dataclass(frozen=True)
class Chunk:
    """Audio of some frames: `samples` float32 [n * hop], `frames` [n, *frame].

    `finish` is None until the last chunk. Then it is "stop" (the model ended), "length" (max_frames) or "cancelled".
    """

    samples: np.ndarray
    frames: np.ndarray
    finish: str | None


StreamEvent = Chunk | BaseException


@dataclass(frozen=True)
class Cancel:
    """Message to the engine: end the request of `stream`."""

    stream: AudioStream


@dataclass(frozen=True, eq=False)
class AppendText:
    """Message to the engine: text of a live request has arrived. `values` [m] extend `column` of its row."""

    stream: AudioStream
    column: str
    values: np.ndarray
    last: bool


class LoopNotifier:
    """Wakes event loops, each once for all of its streams that have new events.

    A wake-up is a system call that hands over the interpreter lock. With one per stream, a busy event loop would stop
    the engine's thread as often.
    """

    def __init__(self) -> None:
        self._pending: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}

    def notify(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
        """Set `ready` in its loop at the next `flush`."""
        self._pending.setdefault(loop, []).append(ready)

    def flush(self) -> None:
        """Wake every loop that was notified since the last time."""
        while self._pending:
            loop, ready = self._pending.popitem()
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(_set, ready)


def _set(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()


class AudioStream:
    """Chunks of one request, in order. Iterate once, with `for` or `async for`. A failure is raised there.

    live: how text is added, None for a request that has its whole text. send: hands a message to the engine.
    """

    def __init__(
        self, seed: int, live: LiveText | None, send: Callable[[Cancel | AppendText], None], notifier: LoopNotifier
    ) -> None:
        self.seed = seed
        self._live, self._send, self._notifier = live, send, notifier
        self._events: queue.SimpleQueue[StreamEvent] = queue.SimpleQueue()
        self._wake: Callable[[], None] | None = None
        self._process = os.getpid()

    def put(self, event: StreamEvent) -> None:
        """For the engine, which flushes the notifier soon. The last event is a chunk with `finish`, or an exception."""
        self._events.put(event)
        wake = self._wake
        if wake is not None:
            wake()

    def append(self, text: str, last: bool = False) -> None:
        """Give a live request more text, from one thread at a time. The `last` text may be empty. Nothing follows it.

        InvalidRequest if the request is not live, has had its last text, or takes no more of it. EngineError if the
        engine has stopped.
        """
        if self._live is None:
            raise InvalidRequest("live", "the request was given its whole text")
        self._send(AppendText(self, self._live.column, self._live.more(text, last), last))

    def cancel(self) -> None:
        """Stop the request and free its slot and pages. Safe at any time, from any thread."""
        with contextlib.suppress(EngineError):  # the engine has stopped, and with it the request
            self._send(Cancel(self))

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            self._check_process()
            chunk = _checked(self._events.get())
            yield chunk
            if chunk.finish is not None:
                return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        self._check_process()
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: self._notifier.notify(loop, ready)
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                await ready.wait()
                ready.clear()
                continue
            chunk = _checked(event)
            yield chunk
            if chunk.finish is not None:
                return

    def _check_process(self) -> None:
        """Nothing would ever arrive in a forked child."""
        if os.getpid() != self._process:
            raise EngineError("this stream belongs to the process that submitted it, and this is a forked child")


def _checked(event: StreamEvent) -> Chunk:
    if isinstance(event, Chunk):
        return event
    if isinstance(event, EngineError):
        raise event
    raise EngineError(f"the request failed while it was being served: {event}") from event
