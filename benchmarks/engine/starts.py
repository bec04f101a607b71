"""How long starts take. A process of its own for each model and way, one line each.

Run: python benchmarks/engine/starts.py [--model dummy:voxcpm2 ...] [--ways cold warm shipped]
         [--out FILE]
     python benchmarks/engine/starts.py --model dummy:toy --device cpu      a dry run without a GPU
Needs: a GPU and nothing but stentor.

`cold` has empty caches of kernels, in a home folder of its own. `warm` has what the last cold start
of the model left, and `shipped` empty caches and that as STENTOR_KERNELS, in another folder, as in
an image that was built with it.

`ready` is `TTS()` in seconds, with imports that it makes, and `process` what passed from the start
of the process until then. `first audio` is that of a request right behind it. Its first chunk is
`audio`, which is the same in all ways. `capturing` is the time for graphs, and `longest capture`
that of one. `kernels` is how many Triton kernels the cache has when it is ready. `eager calls` and
`failed` must be 0.
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
from collections.abc import Iterator
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
WAYS = ("cold", "warm", "shipped")


def once(model: str, device: str) -> dict[str, Any]:
    """A start and a request."""
    captures: list[float] = []
    record_graph = cuda_graphs.record_graph

    def record(graphs: cuda_graphs.CudaGraphRunner, key: tuple[int, ...]) -> Any:
        began = time.perf_counter()
        graph = record_graph(graphs, key)
        captures.append(time.perf_counter() - began)
        return graph

    started = time.perf_counter()
    with mock.patch.object(cuda_graphs, "record_graph", record):
        tts = TTS(model, device=device, **OPTIONS.get(model, {}))
        ready = time.perf_counter()
        figures: dict[str, Any] = {"ready": ready - started, "graphs": graphs(tts)}
        figures["process"] = time.time() - float(os.environ["STARTED_AT"])
        figures["kernels"] = kernels()
        voice = {"voice": tts.voices[0]} if tts.voices else {}
        stream = tts.stream(TEXT, seed=1, **voice)
        chunk = next(stream)
        figures["audio"] = hashlib.sha256(chunk.samples.tobytes()).hexdigest()[:8]
        figures["first audio"] = time.perf_counter() - ready
        stream.close()
        figures["GiB"] = used_gib(device)
    figures |= {"capturing": sum(captures), "longest capture": max(captures, default=0.0)}
    again = time.perf_counter()
    next(tts.stream(TEXT, seed=1, **voice))
    figures["first audio later"] = time.perf_counter() - again
    figures["failed"] = sum(len(runner.failed) for runner in tts.engine.side.graph_runners)
    figures["eager calls"] = tts.engine.side.eager_calls
    tts.close()
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in figures.items()
    }


def graphs(tts: TTS) -> dict[str, int]:
    return {runner.name: len(runner.graphs) for runner in tts.engine.side.graph_runners}


def kernels() -> int:
    """Triton kernels in the cache."""
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")))


def used_gib(device: str) -> float:
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
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="in this order")
    parser.add_argument("--caches", type=Path, help="keep the caches of kernels in this folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(once(args.model[0], args.device)))
        return
    starts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = args.caches or Path(temporary)
        for number, model in enumerate(args.model):
            for way, environment in ways(args.ways, root / str(number)):
                outcome = start(model, args.device, environment)
                starts.append({"model": model, "way": way, **outcome})
                print(json.dumps(starts[-1]), flush=True)
                if args.out is not None:
                    args.out.parent.mkdir(parents=True, exist_ok=True)
                    args.out.write_text(json.dumps(starts, indent=1) + "\n")


def ways(names: list[str], root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The environments of one model's starts by way. The caches are below `root`."""
    compiled = root
    for number, name in enumerate(names):
        home = root / str(number)
        if name == "cold":
            compiled = home
            yield name, caches(home)
        elif name == "warm":
            yield name, caches(compiled)
        else:
            # Triton lists files by their absolute paths, so none may be where it was compiled.
            image = compiled.rename(root / f"{number}_image")
            compiled = home
            yield name, {**caches(home), "STENTOR_KERNELS": str(image)}


def caches(home: Path) -> dict[str, str]:
    """Environment of a process whose caches of kernels are below `home`."""
    home.mkdir(parents=True, exist_ok=True)
    folders = {"HOME": home, "TRITON_CACHE_DIR": home / "triton", "XDG_CACHE_HOME": home}
    return {**os.environ, **{name: str(folder) for name, folder in folders.items()}}


def start(model: str, device: str, environment: dict[str, str]) -> dict[str, Any]:
    """Outcome of `once` in a process of its own, or what it wrote to its standard error."""
    command = [sys.executable, __file__, "--model", model, "--device", device, "--child"]
    environment = {**environment, "STARTED_AT": repr(time.time())}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode:
        return {"error": process.stderr[-2000:]}
    outcome: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return outcome


if __name__ == "__main__":
    main()
