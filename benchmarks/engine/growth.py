"""What parts of a model's load leave behind: growth of malloc and of the device's memory, by round. A line for each.

Run: python benchmarks/engine/growth.py [--seconds 60] [--model dummy:qwen3-tts-1.7b-customvoice] [--out FILE]
Needs: a GPU and nothing but stentor. benchmarks/engine/reload.py measures whole loads.

Calls of 500 kernels of four kinds: launched, and captured as a graph that is dropped. Then graphs of one kernel, new
threads and streams, and a cubin that is loaded again (which must grow). Last, loads of a model that capture the graphs
of some runners only, run what is captured without capturing it, or do without cuDNN.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.engine.reload import given_out
from stentor import TTS
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.kernels.cuda_cpp.nvrtc import CACHE
from stentor.layers.fused_linear import fused_linear, fuses
from stentor.layers.norm import RMSNorm
from stentor.server.memory import trim

KERNELS, HIDDEN, FEW = 500, 2048, 8
RUNNERS: dict[str, Collection[str]] = {
    "nothing": (),
    "decode": ("decode",),
    "frame 0": ("frame 0",),
    "codec": ("codec", "whole codec"),
    "priming": ("priming",),
    "encoding": ("encoding",),
    "prefill": ("prefill",),
}
WITH_CUDNN = ("codec", "priming", "encoding")
Body = Callable[[], object]


class Rounds:
    """Runs things again and again until the time is over, and prints by how much memory grows."""

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds
        self.found: dict[str, dict[str, float]] = {}

    def __call__(self, name: str, run: Body, rounds: int, warm: int = 2) -> None:
        """`warm` rounds come before the first measurement."""
        if time.perf_counter() > self.end:
            return
        for _ in range(warm):
            run()
        before, started, count = _memory(), time.perf_counter(), 0
        while count < rounds and (not count or time.perf_counter() < self.end):
            run()
            count += 1
        seconds = time.perf_counter() - started
        host, device = (b - a for a, b in zip(before, _memory(), strict=True))
        self.found[name] = {
            "host KiB": round(host / count / 1024, 2),
            "device KiB": round(device / count / 1024, 2),
            "rounds": count,
            "ms": round(seconds * 1e3 / count, 1),
        }
        print(f"{name:50s}", self.found[name], flush=True)


def _memory() -> tuple[int, int]:
    """(bytes that malloc has given out, bytes taken of the device)."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    trim()
    free, total = torch.cuda.mem_get_info()
    return given_out(), total - free


def captured(body: Body, stream: torch.cuda.Stream, count: int) -> Body:
    """Captures a graph of so many calls and drops it."""

    def run() -> None:
        with torch.inference_mode(), torch.cuda.stream(stream):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
            for _ in range(count):
                body()
            graph.capture_end()

    return run


def launched(body: Body, stream: torch.cuda.Stream | None, count: int) -> Body:
    """The same without a graph. stream None: a new one each time."""

    def run() -> None:
        own = stream or torch.cuda.Stream()
        with torch.inference_mode(), torch.cuda.stream(own):
            for _ in range(count):
                body()
            own.synchronize()

    return run


def in_a_thread(run: Body) -> Body:
    """Runs it in a new thread."""

    def started() -> None:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    return started


def kernels(rounds: Rounds) -> None:
    """Kernels, graphs of them, threads and streams."""
    stream = torch.cuda.Stream()
    x = torch.zeros(64, HIDDEN, device="cuda", dtype=torch.bfloat16)
    weight = torch.zeros(HIDDEN, HIDDEN, device="cuda", dtype=torch.bfloat16)
    norm = RMSNorm(HIDDEN, 1e-6).to("cuda", torch.bfloat16)
    bodies: dict[str, Body] = {
        "torch add_": lambda: x.add_(1),
        "torch mm": lambda: torch.mm(x, weight),
        "Triton norm": lambda: norm(x),
    }
    if fuses(x[:FEW], weight):
        bodies["CUDA C++ product"] = lambda: fused_linear(x[:FEW], weight)
    for name, body in bodies.items():
        rounds(f"launch {KERNELS} x {name}", launched(body, stream, KERNELS), 10)
        rounds(f"capture {KERNELS} x {name}", captured(body, stream, KERNELS), 10)
    rounds("capture 1 x torch add_", captured(bodies["torch add_"], stream, 1), 50)
    rounds("a pool of graphs", torch.cuda.graph_pool_handle, 200)
    rounds("new thread, torch mm", in_a_thread(launched(bodies["torch mm"], stream, 1)), 10)
    rounds("new thread and stream, torch mm", in_a_thread(launched(bodies["torch mm"], None, 1)), 10)


def cubins(rounds: Rounds) -> None:
    """One of the cubins that are kept on disk."""
    files = sorted(CACHE.expanduser().glob("*.cubin"))
    if not files:
        return
    from cuda.bindings import driver

    code = files[0].read_bytes()
    rounds("a cubin again", lambda: driver.cuModuleLoadData(code), 5)
    rounds("a cubin again, unloaded", lambda: driver.cuModuleUnload(driver.cuModuleLoadData(code)[1]), 5)


@contextmanager
def capturing(names: Collection[str], graphs: bool) -> Iterator[None]:
    """Inside, only the runners with these names capture. graphs: otherwise they run what they would capture."""
    capture = CudaGraphRunner.capture

    def some(runner: CudaGraphRunner, keys: Any, later: Any = ()) -> None:
        if runner.name in names:
            capture(runner, keys, later)

    piece = CudaGraphRunner._capture if graphs else CudaGraphRunner._prepare
    with mock.patch.object(CudaGraphRunner, "capture", some), mock.patch.object(CudaGraphRunner, "_capture", piece):
        yield


def loads(rounds: Rounds, model: str) -> None:
    """Loads of a model with four slots."""

    def load() -> None:
        TTS(model, device="cuda", max_num_seqs=4, batch_sizes=(4, 1), max_memory_gb=20.0, capture_all=True).close()

    for name, names in RUNNERS.items():
        for graphs in (True, False) if names else (True,):
            with capturing(names, graphs):
                rounds(f"load, {'capture' if graphs else 'run'} {name}", load, 2, warm=1)
        if name in WITH_CUDNN:
            with capturing(names, True), torch.backends.cudnn.flags(enabled=False):
                rounds(f"load, capture {name} without cuDNN", load, 2, warm=1)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="dummy:qwen3-tts-1.7b-customvoice")
    p.add_argument("--seconds", type=float, default=60.0, help="no part begins after so many")
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    rounds = Rounds(args.seconds)
    kernels(rounds)
    cubins(rounds)
    loads(rounds, args.model)
    if args.out:
        args.out.write_text(json.dumps(rounds.found, indent=1) + "\n")


if __name__ == "__main__":
    main()
