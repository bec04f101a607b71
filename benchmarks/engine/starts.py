"""How long starts take. A process of its own for each model and way, one line each.

Run: python benchmarks/engine/starts.py [--model dummy:voxcpm2 ...] [--times 2] [--out FILE]
     python benchmarks/engine/starts.py --model dummy:toy --device cpu        a dry run without a GPU
Needs: a GPU and nothing but stentor. Kernels are compiled in the first `usual` process of a model, so the second is
warm. `cold` has empty caches of kernels, in a home folder of its own.

`ready` is `TTS()` in seconds, with imports that it makes, and `first audio` that of a request right behind it. Its
first chunk is `audio`, which is the same in all ways. `capturing` is the time for graphs, and `longest capture` that
of one. `kernels` is how many Triton kernels a cold start has compiled when it is ready. `eager calls` and `failed` must
be 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed

from stentor import TTS
from stentor.engine.running import cuda_graphs

MODELS = (
    "dummy:voxcpm2",
    "dummy:qwen3-tts-1.7b-customvoice",
    "dummy:fish-s2-pro",
    "dummy:cosyvoice3",
)
OPTIONS: dict[str, dict[str, Any]] = {"dummy:cosyvoice3": {"memory_gb": 4}}
TEXT = "The quick brown fox jumps over the lazy dog."
GIB = 2**30
WAYS = ("usual", "cold")


def once(model: str, device: str) -> dict[str, Any]:
    """A start and a request."""
    took: list[float] = []
    usual = cuda_graphs.record_graph

    def record(graphs: cuda_graphs.CudaGraphRunner, key: tuple[int, ...]) -> Any:
        began = time.perf_counter()
        graph = usual(graphs, key)
        took.append(time.perf_counter() - began)
        return graph

    started = time.perf_counter()
    with mock.patch.object(cuda_graphs, "record_graph", record):
        tts = TTS(model, device=device, **OPTIONS.get(model, {}))
        ready = time.perf_counter()
        found: dict[str, Any] = {"ready": ready - started, "graphs": graphs(tts)}
        found["kernels"] = kernels()
        voice = {"voice": tts.voices[0]} if tts.voices else {}
        stream = tts.stream(TEXT, seed=1, **voice)
        chunk = next(stream)
        found["audio"] = hashlib.sha256(chunk.samples.tobytes()).hexdigest()[:8]
        found["first audio"] = time.perf_counter() - ready
        stream.close()
        found["GiB"] = taken(device)
    found |= {"capturing": sum(took), "longest capture": max(took, default=0.0)}
    again = time.perf_counter()
    next(tts.stream(TEXT, seed=1, **voice))
    found["first audio later"] = time.perf_counter() - again
    found["failed"] = sum(len(runner.failed) for runner in tts.engine.side.graph_runners)
    found["eager calls"] = tts.engine.side.eager_calls
    tts.close()
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in found.items()
    }


def graphs(tts: TTS) -> dict[str, int]:
    return {runner.name: len(runner.graphs) for runner in tts.engine.side.graph_runners}


def kernels() -> int:
    """Triton kernels in the cache of a cold start. Of another one 0."""
    return (
        len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")))
        if "TRITON_CACHE_DIR" in os.environ
        else 0
    )


def taken(device: str) -> float:
    if device == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--times", type=int, default=2, help="`usual` starts of each model")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["usual", "cold"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(once(args.model[0], args.device)))
        return
    found: list[dict[str, Any]] = []
    for model in args.model:
        for way in [
            each for each in args.ways for _ in range(args.times if each == "usual" else 1)
        ]:
            command = [
                sys.executable,
                __file__,
                "--model",
                model,
                "--device",
                args.device,
                "--child",
            ]
            with tempfile.TemporaryDirectory() as home:
                empty = (
                    {"HOME": home, "TRITON_CACHE_DIR": f"{home}/triton"} if way == "cold" else {}
                )
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    check=False,
                    env={**os.environ, **empty},
                )
            told = (
                json.loads(done.stdout.splitlines()[-1])
                if done.returncode == 0
                else {"error": done.stderr[-2000:]}
            )
            found.append({"model": model, "way": way, **told})
            print(json.dumps(found[-1]), flush=True)
            if args.out is not None:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
