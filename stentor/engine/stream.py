"""What a caller holds while its request is served: audio as it comes, from any thread or from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stentor.errors import EngineError


@dataclass(frozen=True)
class Chunk:
    """Audio of some frames. `samples` float32 [n * hop], `frames` [n, *frame].

    `finish` is None until the last chunk: then "stop" (the model ended), "length" (max_frames) or "cancelled".
    """

    samples: np.ndarray
    frames: np.ndarray
    finish: str | None


Event = Chunk | BaseException


class Bells:
    """Wakes event loops: each once for all of its streams that have news. A wake-up is a system call that hands the
    interpreter lock over, so one per stream would let a busy loop hold up the engine's thread as often."""

    def __init__(self) -> None:
        self._rung: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}

    def ring(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> None:
        self._rung.setdefault(loop, []).append(ready)

    def flush(self) -> None:
        """Wake everyone rung for since the last time."""
        while self._rung:
            loop, ready = self._rung.popitem()
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(_set, ready)


def _set(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()


class Stream:
    """Chunks of one request, in order. Iterate once, plainly or with `async for`; a failure is raised there."""

    def __init__(
        self, seed: int, cancel: Callable[[], None], append: Callable[[str, bool], None], bells: Bells
    ) -> None:
        self.seed = seed
        self._cancel, self._append, self._bells = cancel, append, bells
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waker: Callable[[], None] | None = None

    def put(self, event: Event) -> None:
        """Engine only, which flushes the bells soon. The last event is a chunk with `finish`, or an exception."""
        self._events.put(event)
        waker = self._waker
        if waker is not None:
            waker()

    def append(self, text: str, last: bool = False) -> None:
        """More text of a live request, from one thread at a time; nothing follows the `last`, which may be empty.

        InvalidRequest if the request is not live, has had its last text, or takes no more of it.
        """
        self._append(text, last)

    def cancel(self) -> None:
        """Stop the request and free what it holds; safe at any time, from any thread."""
        self._cancel()

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            chunk = _checked(self._events.get())
            yield chunk
            if chunk.finish is not None:
                return

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        self._waker = lambda: self._bells.ring(loop, ready)
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


def _checked(event: Event) -> Chunk:
    if isinstance(event, Chunk):
        return event
    if isinstance(event, EngineError):
        raise event
    raise EngineError(f"the request failed while it was being served: {event}") from event
