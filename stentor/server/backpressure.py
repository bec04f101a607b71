"""Clients that disconnect or read too slowly: bounded buffers, and work that ends with the
connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import WebSocket
from starlette.types import Receive
from starlette.websockets import WebSocketDisconnect

from stentor.server.errors import shutting_down
from stentor.server.wire_json import json_bytes

T = TypeVar("T")


class SlowClient(Exception):
    """The client has left more data unread than the server allows."""


class Disconnected(Exception):
    """The client has closed the connection."""


class SendBuffer:
    """Bytes that the client has not yet taken. `put` raises SlowClient when they exceed
    `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self._parts: deque[bytes] = deque()
        self._ready = asyncio.Event()
        self._closed = False

    def put(self, part: bytes) -> None:
        """Add bytes to send."""
        if self.size and self.size + len(part) > self.max_bytes:  # a single part may be larger
            raise SlowClient
        self.size += len(part)
        self._parts.append(part)
        self._ready.set()

    def close(self) -> None:
        """Mark the end of the bytes."""
        self._closed = True
        self._ready.set()

    @property
    def finished(self) -> bool:
        """Whether get() has returned everything and nothing will follow."""
        return self._closed and not self._parts

    async def get(self) -> bytes | None:
        """All bytes that are there. It waits for some, and returns None after the end."""
        while not self._parts:
            if self._closed:
                return None
            self._ready.clear()
            await self._ready.wait()
        joined = b"".join(self._parts)
        self._parts.clear()
        return joined

    def sent(self, count: int) -> None:
        """Note that the client has taken `count` bytes."""
        self.size -= count


class Outbox:
    """Frames in order on their way to a client. Adding one raises SlowClient when they exceed
    `max_bytes`.

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


class SocketOutbox(Outbox):
    """Frames on their way to a client of a WebSocket."""

    def __init__(self, ws: WebSocket, max_bytes: int) -> None:
        async def send(frame: str | bytes) -> None:
            try:
                await (ws.send_bytes(frame) if isinstance(frame, bytes) else ws.send_text(frame))
            except WebSocketDisconnect as e:
                raise Disconnected from e

        super().__init__(send, max_bytes)

    def json(self, value: Any, audio: bool = False) -> None:
        """Queue a value as a text frame."""
        self.put(json_bytes(value).decode(), audio)


async def run_while_connected(
    work: Coroutine[Any, Any, T], receive: Receive, limit: float, ended: asyncio.Event
) -> T:
    """Await `work`, and cancel it when the client disconnects, after `limit` seconds, or when the
    server has `ended`.

    Raises Disconnected, TimeoutError, ApiError 503, or what the work raises.
    """
    task = asyncio.create_task(work)
    tasks: list[asyncio.Future[Any]] = [task]
    try:
        # work that waits for nothing is done then: watching would cost more than it
        await asyncio.sleep(0)
        if task.done():
            return task.result()
        tasks += [
            watch := asyncio.ensure_future(_disconnected(receive)),
            end := asyncio.ensure_future(ended.wait()),
        ]
        await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.done():
            raise Disconnected
        raise shutting_down() if end.done() else TimeoutError
    finally:
        if len(tasks) > 1 or not task.done():
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        elif not task.cancelled():
            # asyncio logs one that nobody has looked at, as this call may have been cancelled
            task.exception()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass
