"""The TCP port of Wyoming. The protocol has no keys, so it is not served beside `--api-key`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from stentor.server.doors.wyoming import frames
from stentor.server.doors.wyoming.session import WyomingSession
from stentor.server.logs import REQUEST_ID, write_access
from stentor.server.sessions import counted, refusal
from stentor.server.state import Server

log = logging.getLogger("stentor.server")


class WyomingListener:
    """Listens from `start` until the server drains."""

    def __init__(self, server: Server) -> None:
        self.server, self.config = server, server.config
        self.port = self.config.wyoming_port or 0
        self._listening: asyncio.Server | None = None
        self._draining: asyncio.Task[None] | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take connections. OSError: the port cannot be had."""
        self._listening = await asyncio.start_server(
            self._connected,
            self.config.host,
            self.port,
            limit=frames.MAX_BYTES,
            reuse_port=True if self.config.api_processes > 1 else None,
        )
        self.port = self._listening.sockets[0].getsockname()[1]
        self._draining = asyncio.create_task(self._drained())
        log.info("Wyoming on tcp://%s:%d", self.config.host, self.port)

    async def close(self) -> None:
        """End what is left. Sessions have ended by themselves once the server drains."""
        tasks = [*self._sessions, *([self._draining] if self._draining else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()

    async def _drained(self) -> None:
        await self.server.drain.wait()
        if self._listening is not None:
            self._listening.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        id, began, status = "req-" + secrets.token_hex(12), time.monotonic(), 500
        REQUEST_ID.set(id)
        try:
            status = await self._serve(id, reader, writer)
        finally:
            self._sessions.discard(task)
            writer.transport.abort()  # what was to be sent has been sent, or the client does not read it
            if self.config.log_requests:
                scope = {"method": "WYOMING", "path": "/", "client": writer.get_extra_info("peername")}
                write_access(scope, status, time.monotonic() - began)

    async def _serve(self, id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Run a session. Returns a status of HTTP for the log."""
        session = WyomingSession(self.server, id, reader, writer)
        refused = refusal(self.server)
        if refused is None:
            with counted(self.server, session):
                await session.run()
            return 200
        session.report(refused)
        async with asyncio.timeout(self.server.limits.flush_seconds):
            await session.out.flush()
            await session.hang_up(1008, "")
        return refused.status
