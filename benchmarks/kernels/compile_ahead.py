"""Compile a benchmark's kernels in several processes before it measures them. They share Triton's cache."""

from __future__ import annotations

import subprocess
import time


def compile_ahead(command: list[str], count: int, seconds: float) -> None:
    """Run `command` with 0, 1, ... count - 1 as its last argument, all at once.

    Each process compiles its share of the kernels. A process that has not ended after `seconds` is killed, and the
    measurement compiles what is missing.
    """
    workers = [subprocess.Popen([*command, str(i)]) for i in range(count)]
    until = time.monotonic() + seconds
    for worker in workers:
        try:
            worker.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.kill()
