"""Processor time of processes: what a way costs, also on a machine that is busy with other work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def seconds(pid: int) -> float:
    """Processor seconds that the threads of a process have used which it has now. 0 if it has ended.

    Of the scheduler, in nanoseconds: ticks of 10 ms miss a process that works for less than one at a time.
    """
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # it has ended
            total += int(thread.read_text(encoding="utf-8").split()[0])
    return total / 1e9


def resident_mb(pid: int) -> float:
    """Memory that a process has, in MB. 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def kinds(pids: Iterable[int]) -> dict[str, list[int]]:
    """Processes of a cluster by what they do: replica, haproxy, and the rest of Ray."""
    found: dict[str, list[int]] = {"replica": [], "haproxy": [], "ray": []}
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        kind = "replica" if words.startswith(b"ray::ServeReplica") else "haproxy" if b"bin/haproxy" in words else "ray"
        found[kind].append(pid)
    return found


def used(groups: dict[str, list[int]]) -> dict[str, float]:
    """Processor seconds of groups of processes."""
    return {name: sum(map(seconds, pids)) for name, pids in groups.items()}
