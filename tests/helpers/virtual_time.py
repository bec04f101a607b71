"""An event loop whose clock moves only when nothing else can happen, so that tests of timing take no time.

Timers fire in order and exactly when they are due. While any socket is ready or any callback waits, the clock stands
still. What runs in the loop therefore sees exact times, however busy the machine is. Sockets must be Unix sockets:
what one end has sent, the other end can read at once, so the clock never moves past bytes that are on their way.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

from tests.helpers.patience import STUCK_S


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 1000 and is moved by `advance` and by waiting."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass, as work that blocks the loop does."""
        self._now += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # no timer: only a thread can wake the loop
            ready = super().select(STUCK_S)
            assert ready, "the loop waits for ever"
            return ready
        self._loop.advance(timeout)
        return []


def run(main: Callable[[VirtualTimeLoop], Awaitable[Any]]) -> Any:
    """The result of `main(loop)` in a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)

        async def started() -> Any:
            return await main(loop)

        return runner.run(started())
