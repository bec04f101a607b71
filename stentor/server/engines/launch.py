"""Starting an engine in a process of its own, and the socket that reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Protocol, cast

import msgspec
import numpy as np

from stentor.errors import EngineError
from stentor.server.engines import messages as m
from stentor.server.engines.client import EngineClient
from stentor.server.engines.process import Load
from stentor.server.limits import LIMITS

STOP_SECONDS = LIMITS.stop_seconds
CONNECT_SECONDS = 0.01  # until it is tried again to send an engine a descriptor


class RunningEngine(Protocol):
    """An engine that was started. `client` reaches it. `ended` has its exit code once it is gone."""

    client: EngineClient
    ended: asyncio.Future[int]

    async def close(self) -> None:
        """End it. What runs on it fails."""
        ...

    def kill(self) -> None:
        """End it at once, as it may be stuck."""
        ...

    async def connect(self, api: int) -> socket.socket:
        """A socket to the engine for another API process, once the model is ready. EngineError if it is gone."""
        ...


def start_module(connection: socket.socket, *descriptors: int, module: str) -> subprocess.Popen[bytes]:
    """Run a module of this package in a process of its own, whose standard input is `connection`."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=connection.fileno(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C in a terminal is for the first process alone
    )


def end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """The exit code of a process, once it has ended. A thread of its own waits: a pool has few."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def note(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(note, code)

    threading.Thread(target=wait, daemon=True, name=f"stentor-wait-{process.pid}").start()
    return ended


class EngineLink(asyncio.Protocol):
    """The socket to an engine's process, and the client that uses it."""

    def __init__(self, name: str, api: int) -> None:
        self.client = EngineClient(name, api, self._send)
        self._unpacker = m.Unpacker()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        for parts in self._unpacker.feed(data):
            events, arrays = m.events(parts)
            self.client.receive(events, m.Reader(arrays))

    def connection_lost(self, exc: Exception | None) -> None:
        self.client.lose(EngineError("the engine's process has ended"))

    def _send(self, command: m.Command, arrays: Sequence[np.ndarray]) -> None:
        if self._transport is not None:
            self._transport.write(m.pack(m.encode([command], arrays)))

    @property
    def drained(self) -> bool:
        """Whether the socket has taken all that was sent."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ProcessEngine:
    """An engine in a process of its own."""

    def __init__(self, name: str, load: Load) -> None:
        self._loop = asyncio.get_running_loop()
        self.link = EngineLink(name, 0)
        self.client = self.link.client
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = start_module(theirs, module="stentor.server.engines.process")
        self.pid = self._process.pid
        self._ours.sendall(msgspec.json.encode(load) + b"\n")
        self._connecting = asyncio.create_task(self._connect(), name=f"engine {name}")
        self.ended = end_of(self._process)
        self.ended.add_done_callback(self._note_end)

    async def _connect(self) -> None:
        await self._loop.create_connection(lambda: self.link, sock=self._ours)

    def _note_end(self, ended: asyncio.Future[int]) -> None:
        code = ended.result()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.client.lose(EngineError(f"the engine's process has ended ({how})"))
        self.link.close()

    async def connect(self, api: int) -> socket.socket:
        """A socket to the engine for another API process, once the model is ready. EngineError if it is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            while self.client.lost is None:
                if self.link.drained:  # not inside a message
                    with contextlib.suppress(OSError):  # it is full, or the engine is gone
                        socket.send_fds(self._ours, [m.pack(m.encode([m.Connect(api)], ()))], [theirs.fileno()])
                        return ours
                await asyncio.sleep(CONNECT_SECONDS)
        ours.close()
        raise self.client.lost

    def kill(self) -> None:
        self._process.kill()

    async def close(self) -> None:
        await self._connecting
        self.client.send(m.Stop())
        try:
            async with asyncio.timeout(STOP_SECONDS if self.client.ready.done() else 0):
                await asyncio.shield(self.ended)
        except TimeoutError:  # it may be loading, which nothing can stop
            self.kill()
            await self.ended
