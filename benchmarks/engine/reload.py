"""Unload and load a model again, in one process: seconds of each part, and what memory is left. A table comes last.

Run: python benchmarks/engine/reload.py [--model dummy:qwen3-tts-1.7b-customvoice] [--times 20] [--out FILE]
     python benchmarks/engine/reload.py --prepared --times 6                   what loads take without eager calls
     python benchmarks/engine/reload.py --model dummy:toy --device cpu --times 3          a dry run without a GPU
Needs: a GPU and nothing but stentor.

A load makes the weights (a dummy draws them on the device, so no file is read) and divides the memory, for which it
measures codec and encoders (`weights and plan`). It captures graphs, for which the first load compiles kernels, and
starts (`rest`). `first audio` is the request that follows. `host to device` is the time in which as many bytes as the
weights have come from host memory, pinned and not, by the rate of one copy of 1 GiB.
Memory is that of the device, of torch and of the process on the host, after an unload: pages of its own now, what
malloc has given out, pinned memory, objects of Python, and the most pages that it ever had.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from stentor import TTS
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.server.memory import trim

TEXT = "The quick brown fox jumps over the lazy dog."
GIB = 2**30
PARTS = ("load", "failed captures", "weights and plan", "captures", "rest", "first audio", "unload")


class Marks(logging.Handler):
    """When the engine told that it has divided the memory and captured its graphs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.planned = self.captured = self.capture_seconds = self.weights = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        captured, planned = (
            re.search(r"captured \d+ graphs in ([\d.]+) s", message),
            re.search(r"weights ([\d.]+) GiB", message),
        )
        if captured:
            self.captured, self.capture_seconds = time.perf_counter(), float(captured[1])
        elif planned:
            self.planned, self.weights = time.perf_counter(), float(planned[1])


def without_eager_calls() -> Callable[[CudaGraphRunner, Any], None]:
    """Prepares nothing for what an earlier load of the process captured, but for the first graph of each runner.

    An experiment: no kernel is left to compile.
    """
    seen: set[tuple[str, Any]] = set()
    usual = CudaGraphRunner._prepare

    def prepare(runner: CudaGraphRunner, key: Any) -> None:
        if not runner.graphs or (runner.name, key) not in seen:
            usual(runner, key)
        seen.add((runner.name, key))

    return prepare


class MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


def given_out() -> int:
    """Bytes that malloc has given out, large ones that it maps by themselves too."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallInfo
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def memory(device: str) -> dict[str, float]:
    trim()
    anonymous = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    found = {
        "host GiB": int(anonymous.split()[1]) * 1024 / GIB,
        "host malloc GiB": given_out() / GIB,
        "host peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
        "objects": float(len(gc.get_objects())),
    }
    if device != "cpu":
        free, total = torch.cuda.mem_get_info()
        pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
        found |= {"device GiB": (total - free) / GIB, "torch GiB": torch.cuda.memory_reserved() / GIB}
        found |= {"pinned GiB": pinned / GIB}
    return {name: round(value, 4) for name, value in found.items()}


def once(args: argparse.Namespace, marks: Marks) -> dict[str, float]:
    """One load, one request, one unload."""
    started = time.perf_counter()
    tts = TTS(args.model, device=args.device, **({"max_memory_gb": args.gib} if args.gib else {}))
    ready = time.perf_counter()
    failed = sum(len(runner.failed) for runner in tts.engine.graph_runners)
    stream = tts.stream(TEXT, seed=1, **({"voice": tts.voices[0]} if tts.voices else {}))
    next(stream)
    heard = time.perf_counter()
    stream.close()
    tts.close()
    del tts, stream
    gc.collect()
    if args.device != "cpu":
        torch.cuda.empty_cache()
    found = {
        "load": ready - started,
        "failed captures": float(failed),
        "first audio": heard - ready,
        "unload": time.perf_counter() - heard,
    }
    found["weights and plan"] = marks.planned - started
    if marks.captured > started:
        found |= {"captures": marks.capture_seconds, "rest": ready - marks.captured}
    return {name: round(value, 3) for name, value in found.items()}


def copies(gib: float) -> dict[str, float]:
    """Seconds to copy so many GiB to the device."""
    found = {}
    for name, pinned in (("pinned", True), ("pageable", False)):
        host = torch.zeros(GIB, dtype=torch.uint8, pin_memory=pinned)
        host.cuda()
        torch.cuda.synchronize()
        started = time.perf_counter()
        host.cuda()
        torch.cuda.synchronize()
        found[f"host to device, {name}"] = round(gib * (time.perf_counter() - started), 3)
    return found


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="dummy:qwen3-tts-1.7b-customvoice")
    p.add_argument("--device", default="cuda")
    p.add_argument("--gib", type=float, help="max_memory_gb")
    p.add_argument("--prepared", action="store_true", help="run nothing eagerly before it is captured again")
    p.add_argument("--times", type=int, default=20)
    p.add_argument("--seconds", type=float, default=300.0, help="no load begins after so many")
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    marks, began = Marks(), time.perf_counter()
    log = logging.getLogger("stentor.engine")
    log.addHandler(marks)
    log.setLevel(logging.INFO)
    found: dict[str, Any] = {"model": args.model, "gib": args.gib, "loads": []}
    way = without_eager_calls() if args.prepared else CudaGraphRunner._prepare
    with mock.patch.object(CudaGraphRunner, "_prepare", way):
        while len(found["loads"]) <= args.times and time.perf_counter() - began < args.seconds:
            found["loads"].append(once(args, marks) | {"after": memory(args.device)})
    again = found["loads"][1:] or found["loads"]
    found["median of reloads"] = {n: round(statistics.median(x[n] for x in again), 3) for n in PARTS if n in again[0]}
    found["weights GiB"] = marks.weights
    found |= copies(marks.weights) if args.device != "cpu" else {}
    found["memory"] = {"after the first": again[0]["after"], "after the last": again[-1]["after"]}
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({k: v for k, v in found.items() if k != "loads"} | {"reloads": len(again)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
