"""How the server's memory stays flat: what was freed goes back to the system now and then.

glibc keeps what is freed between blocks in use, in a heap per thread, and large tensors too once
the first of them was freed. A server whose requests differ in size then grows with every request
that is larger than those before.
"""

from __future__ import annotations

import ctypes
import gc


def trim() -> None:
    """Return free memory to the system. Other C libraries than glibc do so by themselves, or not
    at all."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def collect() -> None:
    """Collect garbage first. It takes 0.1 s or more: for after a model was loaded."""
    gc.collect()
    trim()
