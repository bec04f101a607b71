"""Getting work to a client that may leave, or read too slowly."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable

from starlette.types import Receive


class SlowClient(Exception):
    """The client has left more unread than it may."""


class Disconnected(Exception):
    """The client has gone."""


class Outbox:
    """Bytes made and not yet taken by the client; SlowClient when they are too many."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._parts: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, part: bytes) -> None:
        if self.size and self.size + len(part) > self.most:  # one part alone is never too much
            raise SlowClient
        self.size += len(part)
        self._parts.append(part)
        self._ready.set()

    def close(self) -> None:
        self._closed = True
        self._ready.set()

    @property
    def finished(self) -> bool:
        """Whether get() has given everything there will ever be."""
        return self._closed and not self._parts

    async def get(self) -> bytes | None:
        """All that is there, waiting for something; None after the end."""
        while not self._parts:
            if self._closed:
                return None
            self._ready.clear()
            await self._ready.wait()
        joined = b"".join(self._parts)
        self._parts.clear()
        return joined

    def sent(self, count: int) -> None:
        """The client has taken what get() gave."""
        self.size -= count


async def attended(work: Awaitable[None], receive: Receive, limit: float) -> None:
    """Do `work` while the client stays and time lasts. Disconnected, TimeoutError, or what the work raises."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, watch), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Disconnected if watch.done() else TimeoutError
    finally:
        for t in (task, watch):
            t.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
