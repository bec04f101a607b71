"""Which captured graphs of a tiny checkpoint do not do what their functions do, and why. A line for each variant.

Run: python benchmarks/engine/captured.py --out FILE [--family voxcpm2] [--dtype float32] [--only VARIANT ...]
Needs: a GPU and pytest. `--device cpu` runs the functions alone, without graphs, to try the script.

Every graph and every function runs twice from the same state. Each variant is a process of its own, since libraries
keep what their first call has chosen. docs/log.md (2026-11-23, captures without a call before them) says which
cause each outcome would show.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.device import CudaStream
from stentor.layers.types import NO_END
from tests.helpers.prefill import write
from tests.helpers.tiny import EVERY, LOAD, Bench, checkpoint

VARIANTS = {
    "every": "a call before every capture, as stentor does it",
    "first": "a call before the first capture of a runner only, as in all that follow",
    "settled": "every graph has run once before any is compared",
    "filled": "torch.empty gives NaN",
    "cudnn_deterministic": "cuDNN takes algorithms that add in one order",
    "no_cudnn": "convolutions without cuDNN",
}
PAIRS = {"graph twice": (0, 1), "function twice": (2, 3), "graph and function": (0, 2)}
Call = tuple[str, Callable[[], None], Callable[[], None], Callable[[], None]]
"""Name, what writes the inputs, the graph, and the function."""


def held(bench: Bench) -> dict[str, Tensor]:
    """All that a step or a codec call changes."""
    w, codec = bench.runner, bench.codec
    found = {f"column {name}": t for name, t in w.slots.table.items()}
    hidden = {f"hidden {i}": t for i, t in enumerate(w.slots.hidden)}
    found |= {"frames": w.slots.frames, "attended": w.slots.attended, **hidden, "keys and values": w.kv.pool}
    found |= {f"codec {name}": t for name, t in codec.states.columns.items()}
    return found | {f"codec page {name}": t for name, t in codec.pages.pool.items()}


def calls(bench: Bench, group: list[Any]) -> Iterator[Call]:
    """Every captured graph beside its function. Without a GPU, two functions beside themselves."""
    w, codec = bench.runner, bench.codec
    none = [(w.decode_graphs, (4, bench.sizes.max_pages, 2)), (codec.graphs, (2, 1))]
    keys = [(r, key) for r in (*w.graph_runners, codec.graphs) for key in r.graphs]
    for graphs, key in keys if bench.where.cuda else none:
        yield (
            f"{graphs.name}{key}",
            partial(write_inputs, bench, group, graphs, key),
            partial(graphs, *key),
            partial(graphs.fn, *key),
        )


def write_inputs(bench: Bench, group: list[Any], graphs: CudaGraphRunner, key: tuple[int, ...]) -> None:
    """What a captured function reads, as tests/gpu/test_captured.py has it."""
    w, codec = bench.runner, bench.codec
    if graphs is w.prefill_graphs:
        write(bench, group, w.prefill_shape(*key))
    if graphs is codec.graphs:
        rows, width = key[0], codec.pages.width
        numbers = [*range(rows), *[0] * rows, *[NO_END] * rows]
        pages = [*(i % width for i in range(rows)), *range(rows * width)] if width else []
        bench.where.fill(codec.inputs, numbers + pages)


def differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, Any]:
    """By tensor: how many numbers differ, the largest difference, the place of the first, and how many are NaN."""
    found = {}
    for name, x in a.items():
        y = b[name]
        other = (x != y) & ~(x.isnan() & y.isnan())
        if other.any():
            largest = (x.double() - y.double())[other].nan_to_num().abs().max().item()
            nans = [int(t.isnan().sum()) for t in (x, y)]
            found[name] = {
                "count": int(other.sum()),
                "largest": largest,
                "nan": nans,
                "first": other.nonzero()[0].tolist(),
            }
    return found


def kernels_of(run: Callable[[], None]) -> Counter[str]:
    """Names of the kernels of a call, and how often each runs."""
    with torch.profiler.profile() as profile:
        run()
        torch.cuda.synchronize()
    return Counter(e.name for e in profile.events() if e.device_type.name == "CUDA")


def compare(bench: Bench, family: str, settled: bool) -> dict[str, Any]:
    """What differs, by graph and pair of runs."""
    w, state = bench.runner, held(bench)
    found: dict[str, Any] = {}
    group = [bench.admit(family, i, seed=i) for i in range(4)]
    torch.manual_seed(3)
    w.kv.pool.normal_()
    for name, values in (("pos", [3, 17, 9, 30]), ("step", [2, 2, 2, 2])):
        w.slots.table[name][:4] = torch.tensor(values)
    w.idx[:4] = w.first_idx[:4] = torch.arange(4)
    before = {name: t.clone() for name, t in state.items()}
    every = list(calls(bench, group))

    def after(run: Callable[[], None], stream: CudaStream) -> dict[str, Tensor]:
        for name, t in state.items():
            t.copy_(before[name])
        bench.where.synchronize()
        with stream.active():
            run()
        stream.synchronize()
        return {name: t.clone() for name, t in state.items()}

    for name, inputs, graph, _ in every if settled else ():
        inputs()
        after(graph, stream_of(bench, name))
    for name, inputs, graph, fn in every:
        inputs()
        runs = [after(run, stream_of(bench, name)) for run in (graph, graph, fn, fn)]
        wrong = {pair: differences(runs[i], runs[j]) for pair, (i, j) in PAIRS.items()}
        if found_here := {pair: d for pair, d in wrong.items() if d}:
            with stream_of(bench, name).active():
                names = [kernels_of(run) for run in (graph, fn)] if bench.where.cuda else [Counter(), Counter()]
            only = {"graph": dict(names[0] - names[1]), "function": dict(names[1] - names[0])}
            found[name] = {**found_here, "kernels of one alone": only}
    return {"graphs": len(every), "wrong": found}


def stream_of(bench: Bench, name: str) -> CudaStream:
    return bench.codec.stream if name.startswith("codec") else bench.runner.stream


@contextmanager
def variant(name: str) -> Iterator[None]:
    """What the variant changes, while a model is loaded, captured and compared."""
    prepare, filled = CudaGraphRunner._prepare, ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty"))

    def first_only(self: CudaGraphRunner, key: tuple[int, ...]) -> None:
        if not self.graphs:
            prepare(self, key)

    def with_nan(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*args: Any, **kwargs: Any) -> Tensor:
            t = make(*args, **kwargs)
            return t.fill_(float("nan")) if t.is_floating_point() else t

        return made

    with ExitStack() as stack:
        if name != "every":
            stack.enter_context(mock.patch.object(CudaGraphRunner, "_prepare", first_only))
        for place, function in filled if name == "filled" else ():
            stack.enter_context(mock.patch.object(place, function, with_nan(getattr(place, function))))
        torch.backends.cudnn.deterministic = name == "cudnn_deterministic"
        torch.backends.cudnn.enabled = name != "no_cudnn"
        yield


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Capture a tiny checkpoint in this variant, and compare."""
    with tempfile.TemporaryDirectory() as folder, variant(name), torch.inference_mode():
        path, load = checkpoint(args.family, Path(folder)), LOAD.get(args.family, {})
        bench = Bench(path, args.device, getattr(torch, args.dtype), load=load, require_graphs=True)
        bench.where.synchronize()
        bench.capture()
        return compare(bench, args.family, name == "settled")


def in_a_process(args: argparse.Namespace, name: str) -> dict[str, Any]:
    given = ["--family", args.family, "--dtype", args.dtype, "--device", args.device, "--child", name]
    done = subprocess.run([sys.executable, __file__, *given], capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-2000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=EVERY, default="voxcpm2")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args, args.child)))
        return
    found: dict[str, Any] = {"family": args.family, "dtype": args.dtype, "torch": torch.__version__}
    for name in args.only:
        found[name] = {"what": VARIANTS[name], **in_a_process(args, name)}
        print(name, json.dumps(found[name])[:1500], flush=True)
        if args.out is not None:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
