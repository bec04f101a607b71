"""torch in a process that was forked. OpenMP's threads do not follow, and the thread that forked
would wait for them forever in its next product. Every other thread starts threads of its own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch

PF_FORKNOEXEC = 0x40
"""Flag of a process in Linux (include/linux/sched.h): it was forked and runs the same program."""


def forked() -> bool:
    """Whether this process is a copy of another one. Only Linux shows that."""
    return sys.platform == "linux" and _is_copy(os.getpid())


@lru_cache(maxsize=1)
def _is_copy(pid: int) -> bool:
    # each prompt asks; a process learns it once, and a copy of it has another number
    stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    flags = stat.rpartition(")")[2].split()[6]
    return bool(int(flags) & PF_FORKNOEXEC)


@contextmanager
def one_thread() -> Iterator[int | None]:
    """Compute in one thread inside, in the thread that was forked. Yields how many other threads
    may take, None if they need no limit."""
    if threading.current_thread() is not threading.main_thread() or not forked():
        yield None
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # also what threads that start inside begin with
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
