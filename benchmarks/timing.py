"""Time one call, compile kernels before that, and measure what the machine reaches at this moment."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable

import torch

REPEATS = 9


def milliseconds(run: Callable[[], object]) -> float:
    """Median milliseconds of `run` on the GPU, after one call to warm up. On a CPU, those of one call."""
    run()
    if not torch.cuda.is_available():
        started = time.perf_counter()
        run()
        return (time.perf_counter() - started) * 1e3
    found = []
    for _ in range(REPEATS):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        b.synchronize()
        found.append(a.elapsed_time(b))
    return statistics.median(found)


def graph_microseconds(run: Callable[[], object]) -> float:
    """Median microseconds of what `run` launches, in a CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return milliseconds(graph.replay) * 1e3


def machine_speed(device: torch.device) -> dict[str, float]:
    """TB/s of a large copy and TFLOP/s of a large GEMM. Empty on a CPU.

    An H200 reaches more than 4 TB/s and 700 TFLOP/s. With less, another job is using it.
    """
    if device.type != "cuda":
        return {}
    big = torch.randn(2**30, device=device, dtype=torch.float16)
    other = torch.empty_like(big)
    a = torch.randn(8192, 8192, device=device, dtype=torch.float16)
    return {
        "TB/s": round(2 * big.numel() * 2 / milliseconds(lambda: other.copy_(big)) / 1e9, 2),
        "TFLOP/s": round(2 * 8192**3 / milliseconds(lambda: a @ a) / 1e9),
    }


def compile_ahead(command: list[str], count: int, seconds: float) -> None:
    """Compile kernels in processes that share Triton's cache: `command` with 0, 1, ... count - 1 as its last argument.

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
