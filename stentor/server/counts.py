"""Counts that limits look at, over all API processes of a server, and how one of them asks the others."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Protocol

from stentor.server.speech.outcomes import Outcome

if TYPE_CHECKING:
    from stentor.server.metrics import Metrics

SHARED = ("requests", "bodies", "sessions")


class Counts:
    """Counts that the limits of a server look at, over all of its API processes. Each writes a row of its own, without
    a lock: two that look at once may each let one more in."""

    def __init__(self, memory: mmap.mmap | bytearray | None = None, row: int = 0) -> None:
        self._cells = memoryview(memory or bytearray(8 * len(SHARED))).cast("q")
        self._row = row * len(SHARED)

    def add(self, name: str, count: int) -> None:
        """Add to this process's count."""
        self._cells[self._row + SHARED.index(name)] += count

    def total(self, name: str) -> int:
        """The count of all processes."""
        return sum(self._cells[SHARED.index(name) :: len(SHARED)])

    def clear(self, row: int) -> None:
        """Forget what a process that is gone had counted."""
        for i in range(len(SHARED)):
            self._cells[row * len(SHARED) + i] = 0


class Others(Protocol):
    """The other API processes of a server, as one of them asks for them."""

    async def metrics(self) -> str:
        """The metrics of all processes, in Prometheus's text format."""
        ...

    async def outcome(self, id: str) -> Outcome | None:
        """The outcome of a request that another process has served."""
        ...

    async def close(self) -> None:
        """Wait until they have ended, if this one is to."""
        ...


class Alone:
    """The only API process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self) -> str:
        """The metrics of this process, in Prometheus's text format."""
        return self._metrics.text()

    async def outcome(self, id: str) -> Outcome | None:
        """None: nobody else serves requests."""
        return None

    async def close(self) -> None:
        """Nothing to wait for."""
