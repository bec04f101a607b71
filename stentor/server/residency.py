"""Uses of a model: requests that wait until it is loaded again, and since when it has been idle."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS, Limits


class Residency:
    """The uses of one model: who waits until it is loaded again, and for how long it has been idle.
    Everything happens on the event loop."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.uses = self.waiting = 0
        self.loads = self.unloads = 0
        self.load_seconds = 1.0  # what the last load took
        self.wanted = asyncio.Event()  # somebody waits for the model
        self._changed = asyncio.Event()
        self._idle_since = 0.0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count the model as used inside the block. Its idle time begins behind it."""
        self.uses += 1
        try:
            yield
        finally:
            self.uses -= 1
            self._idle_since = asyncio.get_running_loop().time()

    def loaded(self, seconds: float) -> None:
        """Note a load, and how long it took."""
        self.loads += 1
        self.load_seconds = seconds
        self._idle_since = asyncio.get_running_loop().time()

    def seconds_left(self, idle_seconds: float | None) -> float:
        """Seconds until the model has been idle for so long, if nobody uses it meanwhile. None: it
        may stay."""
        if self.uses or idle_seconds is None:
            return math.inf
        return self._idle_since + idle_seconds - asyncio.get_running_loop().time()

    def changed(self) -> None:
        """The model's phase has changed: those who wait look at it."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, name: str, away: Callable[[], bool]) -> None:
        """Have the model loaded, and return once `away` is false. ApiError 503 if too many wait, or
        if it takes too long."""
        if self.waiting >= self.limits.load_waiting:
            raise self._refusal(f"too many requests wait until model {name!r} is loaded")
        self.waiting += 1
        self.wanted.set()
        try:
            async with asyncio.timeout(self.limits.load_seconds):
                while away():
                    await self._changed.wait()
        except TimeoutError:
            raise self._refusal(f"model {name!r} is still being loaded") from None
        finally:
            self.waiting -= 1

    def _refusal(self, message: str) -> ApiError:
        return ApiError(503, message, code="model_loading", retry_after=self.retry_after)

    @property
    def retry_after(self) -> float:
        """Seconds after which the model may be there, from 1 to 60."""
        return min(60.0, max(1.0, self.load_seconds))
