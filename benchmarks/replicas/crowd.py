"""Clients in several processes, so that no single one of them is what a figure of replicas measures."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Self

from benchmarks.replicas import streams
from benchmarks.replicas.streams import Stream


@dataclass(frozen=True)
class Until:
    """Whether it is before a time of the clock, in seconds."""

    end: float

    def __call__(self, begun: int) -> bool:
        return time.time() < self.end


class Crowd:
    """processes: that share the clients of each call. They start with the first one."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def load(self, url: str, clients: int, frames: int, going: Callable[[int], bool]) -> tuple[list[Stream], float]:
        """As `streams.load`. The largest share of a core that one process used, too: near 1 the clients are the limit.

        going: asked in each process, with the streams that this one has begun. It has to pickle.
        """
        parts = [len(range(i, clients, self.processes)) for i in range(self.processes)]
        asked = [self._pool.submit(_load, url, part, frames, going) for part in parts if part]
        had = [each.result() for each in asked]
        return [stream for done, _ in had for stream in done], max(busy for _, busy in had)


def _load(url: str, clients: int, frames: int, going: Callable[[int], bool]) -> tuple[list[Stream], float]:
    began, used = time.monotonic(), time.process_time()
    done = asyncio.run(streams.load(url, clients, frames, going))
    return done, (time.process_time() - used) / (time.monotonic() - began)
