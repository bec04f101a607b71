"""The clock of a segment's words in a thread, as what hears words must not keep the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from stentor.speech.words import Span, WordClock

if TYPE_CHECKING:
    from stentor.engine.stream import Chunk
    from stentor.text.sentences import Segment


class ThreadedClock:
    """A WordClock in the one thread of `pool`, which does what it is given in order."""

    def __init__(self, pool: ThreadPoolExecutor, make: Callable[[], WordClock]) -> None:
        """make: makes the clock, in the thread."""
        self._pool = pool
        self._clock = pool.submit(make)
        self._added: list[Future[None]] = []

    def add(self, chunk: Chunk) -> None:
        """Have the next chunk of the segment added."""
        self._added.append(self._pool.submit(self._add, chunk))

    async def spans(self, segment: Segment) -> list[Span | None]:
        """When each word of the segment is spoken in what was added. EngineError if an aligner failed."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._spans, segment)

    def _add(self, chunk: Chunk) -> None:
        self._clock.result().add(chunk)

    def _spans(self, segment: Segment) -> list[Span | None]:
        for added in self._added:
            added.result()  # raises what it raised
        return self._clock.result().spans(segment)
