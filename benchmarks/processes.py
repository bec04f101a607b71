"""Processes of a server as /proc shows them. Linux only."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

API = "stentor.server.main"
ENGINE = "stentor.server.engines.process"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Process ids below a process, the oldest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int(_fields(int(entry.name))[1])
                children.setdefault(parent, []).append(int(entry.name))

    pids: list[int] = []
    waiting = [pid]
    while waiting:
        below = sorted(children.get(waiting.pop(0), ()))
        pids += below
        waiting += below
    return pids


def running(pid: int, module: str) -> list[int]:
    """Descendants of a process that run a Python module."""
    pids = []
    for descendant in descendants(pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{descendant}/cmdline").read_bytes().split(b"\0")
            if module.encode() in words:
                pids.append(descendant)
    return pids


def cpu_seconds(pid: int) -> float:
    """CPU time of a process in seconds. OSError if it is gone."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def _fields(pid: int) -> list[str]:
    """Fields of a process's `stat` behind its name: its state, its parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


class Sampler(ABC):
    """Samples something at the begin and the end of `with`, and in a thread meanwhile."""

    INTERVAL_S = 0.5

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.sample()

    @abstractmethod
    def sample(self) -> None:
        """Take one sample."""

    def _run(self) -> None:
        while not self._over.wait(self.INTERVAL_S):
            self.sample()


class CpuUse(Sampler):
    """CPU time of a server's processes."""

    SPAN = 4  # samples, over which the busiest process is looked for

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.api = [pid, *running(pid, API)]
        self.engines = running(pid, ENGINE)
        self._samples: list[dict[int, tuple[float, float]]] = []  # time and CPU time by process

    def seconds(self, pids: list[int]) -> float:
        """CPU seconds of these processes from the first sample to the last."""
        first = self._samples[0]
        last = self._samples[-1]
        return sum(last[pid][1] - first[pid][1] for pid in pids if pid in first and pid in last)

    def busiest(self, pids: list[int]) -> float:
        """The largest share of one core that any of these processes used for two seconds."""
        shares = [0.0]
        for before, after in zip(self._samples, self._samples[self.SPAN :], strict=False):
            for pid in pids:
                if pid in before and pid in after:
                    wall = after[pid][0] - before[pid][0]
                    shares.append((after[pid][1] - before[pid][1]) / wall)
        return max(shares)

    def sample(self) -> None:
        sample = {}
        for pid in (*self.api, *self.engines):
            with contextlib.suppress(OSError):
                sample[pid] = (time.monotonic(), cpu_seconds(pid))
        self._samples.append(sample)
