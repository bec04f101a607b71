"""An engine that another API process owns, which reports its phase and sends sockets to it."""

from __future__ import annotations

import asyncio
import socket

from stentor.errors import EngineError
from stentor.server.engines.client import EngineLink
from stentor.server.engines.model_engine import EngineHost, ModelEngine, Phase
from stentor.server.engines.open_requests import OpenRequests


class AttachedEngine(ModelEngine):
    """An engine that the first API process owns."""

    def __init__(
        self, host: EngineHost, number: int, api: int, open_requests: OpenRequests | None = None
    ) -> None:
        """api: the number of this process. open_requests: to the engine, of all processes."""
        super().__init__(host, number)
        self.attached = 0  # sockets to it, so far
        self._api = api
        self._open_requests = open_requests
        self._attaching = 0
        self._reported: Phase = "loading"  # by the first process

    def note(self, phase: Phase, reason: str | None, restarts: int) -> None:
        """Take over what the first process reports."""
        self.reason = reason
        self.restarts = restarts
        self._reported = phase
        self._settle()

    @property
    def missing(self) -> bool:
        """Whether the engine is ready, and this process has no socket to it."""
        return self._reported == "ready" and not self._reachable and not self._attaching

    @property
    def _reachable(self) -> bool:
        return self.client is not None and self.client.lost is None

    def _settle(self) -> None:
        """Be ready only while this process reaches the engine too."""
        phase = self._reported
        if phase == "ready" and not self._reachable:
            phase = "restarting" if self.known else "loading"
        if self.phase not in (phase, "closed"):
            self.become(phase)

    async def attach(self, connection: socket.socket) -> None:
        """Use another process of the engine from now on."""
        self.attached += 1
        number = self.attached
        link = EngineLink(self.host.name, self._api, self._settle, self._open_requests)
        self._attaching += 1
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, sock=connection)
            ready = await link.client.ready
        except (EngineError, OSError):  # gone again
            return
        finally:
            self._attaching -= 1
        if number == self.attached:
            self.ready = ready
            self.client = link.client
            self._settle()
