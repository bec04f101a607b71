"""How much longer the first launch of each captured graph takes than later ones. One line for each kind of graph.

Run: python benchmarks/engine/first_launch.py [--model dummy:qwen3-tts-1.7b-base] [--ways as-is uploaded] [--out FILE]
     python benchmarks/engine/first_launch.py --device cpu --model dummy:toy        a dry run: a CPU has no graphs
Needs: a GPU and nothing but stentor.

Every graph of an engine that serves nobody is launched four times, alone. `first` is milliseconds of the first launch,
with the host's part of it, and `later` the least of the others. `uploaded` brings each graph to the device before
(cudaGraphUpload), and `upload` is what that takes. Each way has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from stentor import TTS
from stentor.engine.cuda_graphs import CudaGraphRunner

WAYS = ("as-is", "uploaded")


def took(run: Callable[[], object]) -> float:
    """Milliseconds until what `run` has launched is done."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e3


def upload(graph: torch.cuda.CUDAGraph) -> None:
    """Bring a graph to the device, on the current stream."""
    from cuda.bindings import runtime

    status, *_ = runtime.cudaGraphUpload(graph.raw_cuda_graph_exec(), torch.cuda.current_stream().cuda_stream)
    if int(status) != 0:
        raise RuntimeError(f"cudaGraphUpload: {status!r}")


def launches(graphs: CudaGraphRunner, uploaded: bool) -> Iterator[dict[str, Any]]:
    """The times of each graph."""
    for key, graph in graphs.graphs.items():
        with graphs.stream.active():
            found: dict[str, Any] = {"key": key}
            if uploaded:
                found["upload"] = took(lambda graph=graph: upload(graph))
            first, *later = (took(graph.replay) for _ in range(4))
        yield found | {"first": first, "later": min(later)}


def once(model: str, device: str, way: str) -> dict[str, Any]:
    """All graphs of a model, by kind."""
    with TTS(model, device=device, capture_all=True) as tts:
        return {g.name: list(launches(g, way == "uploaded")) for g in tts.engine.graph_runners if g.graphs}


def line(kind: str, found: list[dict[str, Any]]) -> str:
    more = [each["first"] - each["later"] for each in found]
    uploads = sum(each.get("upload", 0.0) for each in found)
    return f"{kind:12} {len(found):4} {sum(more):10.1f} {max(more):10.2f} {uploads:10.1f}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="dummy:qwen3-tts-1.7b-base")
    p.add_argument("--device", default="cuda")
    p.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    p.add_argument("--once", action="store_true", help="the first way, in this process")
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    if args.once:
        print(json.dumps(once(args.model, args.device, args.ways[0])))
        return
    found: dict[str, Any] = {}
    for way in args.ways:
        command = [sys.executable, __file__, "--once", "--model", args.model, "--device", args.device, "--ways", way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        found[way] = json.loads(done.stdout.splitlines()[-1])
        print(f"{args.model}, {way}: graphs, ms more for first launches in all, most of one, uploads in all")
        for kind, each in found[way].items():
            print(line(kind, each), flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
