"""What threads free is used again or given back."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stentor.server import memory

pytestmark = pytest.mark.skipif(
    getattr(ctypes.CDLL(None), "malloc_info", None) is None, reason="this C library is not glibc"
)
HEAPS = """
import ctypes, sys, threading
from stentor.server import memory
memory.share_heaps()
threads = [threading.Thread(target=lambda: [bytearray(n) for n in range(1000, 9000)]) for _ in range(8)]
both = threading.Barrier(9)
for t in threads: t.run = lambda run=t.run: (both.wait(), run(), both.wait())
for t in threads: t.start()
both.wait(); both.wait()
for t in threads: t.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype, libc.malloc_info.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.fflush.argtypes = [ctypes.c_void_p]
file = libc.fdopen(1, b"w")
libc.malloc_info(0, file)
libc.fflush(file)
"""


def resident_mb() -> float:
    found = re.search(r"RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.parametrize(("given", "heaps"), [(None, 2), ("4", 4)])
def test_threads_share_heaps_unless_the_environment_says_how_many(given: str | None, heaps: int) -> None:
    env = {k: v for k, v in os.environ.items() if k != "MALLOC_ARENA_MAX"}
    env |= {} if given is None else {"MALLOC_ARENA_MAX": given}
    said = subprocess.run([sys.executable, "-c", HEAPS], env=env, capture_output=True, text=True, check=True).stdout
    assert 1 <= said.count("<heap nr=") <= heaps


def test_memory_that_is_free_between_blocks_in_use_goes_back() -> None:
    blocks = [np.ones(8192) for _ in range(3200)]  # 64 KiB each, below what is mapped by itself
    before = resident_mb()
    del blocks[:-1]
    memory.give_back()
    assert before - resident_mb() > 150
