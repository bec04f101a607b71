"""Compiling ahead: shares of a benchmark's kernels in processes of their own, whose cache the measurement finds."""

from __future__ import annotations

import subprocess
import time


def run_shares(command: list[str], count: int, seconds: float) -> None:
    """`command` followed by 0, 1 ... count - 1, all at once; what has not ended after so many seconds is killed."""
    workers = [subprocess.Popen([*command, str(i)]) for i in range(count)]
    until = time.monotonic() + seconds
    for w in workers:
        try:
            w.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            w.kill()
