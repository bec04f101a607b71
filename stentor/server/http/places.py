"""Registry of connections, which closes one when there are too many, in constant work for each."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol


class Placed(Protocol):
    """A connection that may have to make room."""

    transport: asyncio.Transport


class Places:
    """The connections of a process, at most `most`. One beyond them takes the place of the one that has been idle for
    longest after an answer, or else of the one whose first request has been on its way for longest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._answered: OrderedDict[Placed, None] = OrderedDict()
        self._asking: OrderedDict[Placed, None] = OrderedDict()  # its request, or its handshake, is not complete
        self._served: set[Placed] = set()

    def __len__(self) -> int:
        return len(self._answered) + len(self._asking) + len(self._served)

    def ask(self, connection: Placed) -> None:
        """Note a connection whose request is on its way. A new one may have another closed."""
        known = self._take(connection)
        self._asking[connection] = None
        if not known and len(self) > self.most:
            goes = next(iter(self._answered or self._asking))
            self._take(goes)
            goes.transport.abort()

    def serve(self, connection: Placed) -> None:
        """Note a connection whose request is answered now, or that is a WebSocket. It keeps its place."""
        if self._take(connection):
            self._served.add(connection)

    def answer(self, connection: Placed) -> None:
        """Note a connection that waits for a next request."""
        if self._take(connection):
            self._answered[connection] = None

    def leave(self, connection: Placed) -> None:
        """Forget a connection."""
        self._take(connection)

    def _take(self, connection: Placed) -> bool:
        """Whether it had a place, which it has no more."""
        for found in (self._answered, self._asking):
            if connection in found:
                del found[connection]
                return True
        known = connection in self._served
        self._served.discard(connection)
        return known
