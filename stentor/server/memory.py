"""How the server's memory stays flat: what threads free goes back to the system, or to the next who asks.

glibc gives threads heaps of their own ("arenas", up to eight per core). What one thread frees there serves no other.
A server's threads are many and its requests differ in size, so each heap keeps what its largest request took.
"""

from __future__ import annotations

import ctypes
import gc
import os

from stentor.server.limits import LIMITS

M_ARENA_MAX = -8  # of malloc.h


def share_heaps() -> None:
    """Have all threads share a few heaps. Call it before they start. MALLOC_ARENA_MAX in the environment wins.

    Other C libraries than glibc have no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, LIMITS.heaps)


def give_back() -> None:
    """Collect garbage and give free memory back to the system. It takes 0.1 s or more: for after a model was loaded."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
