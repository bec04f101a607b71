"""Time a model's steps in variants of their linear layers, in turns in one process, each captured again.

Run: python benchmarks/engine/step_variants.py --out FILE [--model dummy:qwen3-tts-1.7b-customvoice]
         [--quantization auto int8] [--rows 1 8 16 64 256] [--rounds 3]
     python benchmarks/engine/step_variants.py --model dummy:qwen3-tts-0.6b-customvoice --device cpu --out FILE   a dry run
Needs: a Hopper GPU. `--device cpu` loads and selects, and times nothing.

`as it is` is stentor's choice. `int8 loops` keeps depth loops in int8 for every number of rows, `w8a8 from 9` makes
activations of the talker int8 from 9 rows on, also in tiles of 16 rows. `streaming` marks weights as read once
(evict-first) by the launch's access policy window, all of them or all but so many layers of the depth loop.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.engine.step import Bench
from stentor.kernels import linear as linear_choice
from stentor.kernels import w8a8_gemm
from stentor.kernels.configs import GemmConfig, w8a8_config
from stentor.kernels.cuda_cpp import launch
from stentor.kernels.linear import Choice, Problem
from stentor.kernels.switches import pdl_enabled

MOST_WINDOW = 128 << 20
Variant = Callable[[], Any]


def variants(bench: Bench, quantization: str) -> dict[str, Variant]:
    """Context managers by name, in the order of the turns."""
    loop = bench.tts._model._predictor
    found: dict[str, Variant] = {"as it is": ExitStack}
    if quantization == "int8":
        found["int8 loops"] = partial(mock.patch.object, loop, "_wide", None)
        found["w8a8 from 9"] = partial(many_rows_from, 9, w8a8_config)
        found["w8a8 from 9, tiles of 16"] = partial(many_rows_from, 9, few_rows_config)
        found["w8a8 from 9, narrow"] = partial(many_rows_from, 9, narrow_config)
    sizes = weight_sizes(bench.tts._model)
    for layers in (0, 1, 2):
        cached = {
            layer.weight.data_ptr()
            for block in loop._stack.layers[:layers]
            for layer in block.linear_layers
        }
        once = {address: size for address, size in sizes.items() if address not in cached}
        found[f"streaming but {layers} layers"] = partial(streaming, once)
    return found


def weight_sizes(model: Any) -> dict[int, int]:
    """Bytes of every weight by its address, those of single heads too."""
    modules = [m for m in vars(model).values() if isinstance(m, torch.nn.Module)]
    modules += [stack for stack in (model._predictor._stack, model._predictor._wide) if stack]
    weights = [p for module in modules for p in module.parameters()]
    weights += list(model._predictor._heads)
    return {weight.data_ptr(): weight.nbytes for weight in weights}


def few_rows_config(rows: int, n: int) -> GemmConfig:
    """Tiles as for 64 rows, of 16 rows."""
    return w8a8_config(rows, n)._replace(block_m=16)


def narrow_config(rows: int, n: int) -> GemmConfig:
    """More CTAs and more stages than for 64 rows."""
    if n <= 4096:
        return GemmConfig(16, 16, 256, 2, 6)
    return GemmConfig(16, 32, 256, 4, 6)


@contextmanager
def many_rows_from(rows: int, config: Callable[[int, int], GemmConfig]) -> Iterator[None]:
    """Inside, int8 layers make activations int8 from so many rows on, up to 16 in tiles of `config`."""
    usual = linear_choice._tile

    def tile(p: Problem) -> Choice | None:
        return None if p.groups and rows <= p.rows <= 16 else usual(p)

    def configured(m: int, n: int) -> GemmConfig:
        return config(m, n) if m <= 16 else w8a8_config(m, n)

    with (
        mock.patch.object(linear_choice, "_tile", tile),
        mock.patch.object(linear_choice, "W8A8_ROWS", rows),
        mock.patch.object(w8a8_gemm, "w8a8_config", configured),
    ):
        linear_choice.select.cache_clear()
        try:
            yield
        finally:
            linear_choice.select.cache_clear()


@contextmanager
def streaming(once: Mapping[int, int]) -> Iterator[None]:
    """Inside, these weights (bytes by address) are read evict-first by kernels in CUDA C++."""
    from cuda.bindings import driver

    def call(self: launch.LoadedKernel, grid: tuple[int, int], arguments: ctypes.Structure) -> None:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY = grid
        config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX = self.threads
        config.sharedMemBytes = self.shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        attributes = []
        ids = driver.CUlaunchAttributeID
        if pdl_enabled():
            overlap = driver.CUlaunchAttribute()
            overlap.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            overlap.value.programmaticStreamSerializationAllowed = 1
            attributes.append(overlap)
        address = arguments.weight  # type: ignore[attr-defined]
        if address in once:
            policy = driver.CUlaunchAttribute()
            policy.id = ids.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            window = driver.CUaccessPolicyWindow()
            window.base_ptr = address
            window.num_bytes = min(once[address], MOST_WINDOW)
            window.hitRatio = 1.0
            window.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
            window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_NORMAL
            policy.value.accessPolicyWindow = window
            attributes.append(policy)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        launch._checked(
            driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0),
            "CUDA driver",
        )

    with mock.patch.object(launch.LoadedKernel, "__call__", call):
        yield


def measure(bench: Bench, variant: Variant, rows: list[int]) -> dict[str, float]:
    """Milliseconds of a step by rows. Each graph is captured inside the variant."""
    graphs = bench.runner.decode_graphs
    times = {}
    for batch in rows:
        key = bench.occupy(batch)
        if not bench.runner.device.cuda:
            continue
        with variant(), bench.tts.engine.side.serving(), graphs.stream.active():
            graphs.graphs.pop(key, None)
            graphs.capture([key])
        times[str(batch)] = bench.step_ms(batch)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="dummy:qwen3-tts-1.7b-customvoice")
    parser.add_argument("--quantization", nargs="+", default=["auto", "int8"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    report: dict[str, Any] = {"model": args.model, "torch": torch.__version__, "steps": {}}
    for quantization in args.quantization:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(args.model, Path(folder), args.device, max(args.rows), quantization)
            bench.batches = tuple(args.rows)
            report[f"start {quantization}"] = bench.start()
        rounds: dict[str, list[dict[str, float]]] = {}
        choices = variants(bench, quantization)
        for _ in range(args.rounds):
            for name, variant in choices.items():
                try:
                    rounds.setdefault(name, []).append(measure(bench, variant, args.rows))
                except Exception as error:
                    report.setdefault("errors", {})[f"{quantization} {name}"] = repr(error)[:500]
                report["steps"][quantization] = {
                    name: {"rounds": runs, "median": median(runs)} for name, runs in rounds.items()
                }
                args.out.write_text(json.dumps(report, indent=1) + "\n")
        bench.tts.close()
        del bench
    for quantization, found in report["steps"].items():
        for name, values in found.items():
            print(f"{quantization:5} {name:28}", values["median"], flush=True)
    print(report.get("errors", "no errors"))


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {rows: round(statistics.median(run[rows] for run in runs), 3) for rows in runs[0]}


if __name__ == "__main__":
    main()
