"""A long soak: rounds of honest clients alone (quiet) and then beside hostile ones (mixed).

Used by soak.py. Quiet and mixed windows alternate, so that both see the same machine and the same other load of it.
After each round the result so far is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak_curve import Curve

ROUND_S = 240.0
QUIET_SHARE = 0.2  # of a round
SETTLE_S = 3.0  # at the beginning of a window, which is not judged
SAMPLE_S = 5.0


@dataclass
class Window:
    """A part of a round. Requests that begin from `begin` to `end` (time.monotonic) are judged with it."""

    round: int
    kind: str  # quiet or mixed
    begin: float
    end: float


@dataclass
class Honest:
    """The process of the honest clients and what it says."""

    url: str
    clients: int
    seed: int
    lsb: float
    requests: list[dict[str, Any]] = field(default_factory=list)
    lags: list[dict[str, float]] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the clients know what is right and have begun."""
        script, words = Path(__file__).with_name("soak_honest.py"), [self.url, self.clients, self.seed, self.lsb]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), *map(str, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        ready = asyncio.Event()
        self.reading = asyncio.create_task(self._read(self.process, ready))
        async with asyncio.timeout(120):
            await ready.wait()

    async def _read(self, process: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            event = json.loads(line)
            if "begin" in event:
                self.requests.append(event)
            elif "lag" in event:
                self.lags.append(event)
            else:
                ready.set()

    async def stop(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.reading is not None
        self.process.stdin.close()
        await self.process.wait()
        await self.reading

    def within(self, windows: list[Window]) -> list[dict[str, Any]]:
        return [r for r in self.requests if any(w.begin <= r["begin"] < w.end for w in windows)]


async def rounds(
    seconds: float,
    honest: Honest,
    curve: Curve,
    attack: Callable[[float], Awaitable[None]],
    write: Callable[[list[Window]], None],
) -> list[Window]:
    """Quiet and mixed windows for so many seconds. `attack(seconds)` runs hostile clients. `write` is called after
    each round."""
    assert honest.process is not None
    curve.ours += [os.getpid(), honest.process.pid]
    windows: list[Window] = []
    count = max(1, round(seconds / ROUND_S))
    quiet = QUIET_SHARE * seconds / count
    watching = asyncio.create_task(curve.watch(SAMPLE_S))
    try:
        for i in range(count):
            if watching.done():
                watching.result()
            windows.append(await _window(i, "quiet", asyncio.sleep(quiet), quiet))
            windows.append(await _window(i, "mixed", attack(seconds / count - quiet), seconds / count - quiet))
            write(windows)
    finally:
        watching.cancel()
    return windows


async def _window(i: int, kind: str, what: Awaitable[None], seconds: float) -> Window:
    begin = time.monotonic()
    await what
    return Window(i, kind, begin + SETTLE_S, begin + seconds)
