"""What low-rank products of 32 adapters add to the product of a layer, by tile: microseconds, as JSON lines.

Run: python benchmarks/kernels/lora.py [--out FILE]
Needs: a GPU.

64 streams, in the shapes of VoxCPM2's language models and flow, and prompts. Each figure is that of a layer in a
captured graph of many, less the product alone, for rows that all have an adapter and for rows that have none. It is the
least of six replays. A tile is the inputs at a time of the first product, its splits and stages, and the outputs at a
time and warps of the second. `norm behind` is in the product alone too: one kernel for the norm and the second product,
or two.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from stentor.kernels import lora, lora_norm, norm_rope
from stentor.kernels.configs import LORA_FEW_ROWS, lora_config

STREAMS, SLOTS, RANK = 64, 32, 32
QKV = (2048, 256, 256)
SHAPES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], int]] = {
    "language model, qkv": ((STREAMS,), 2048, QKV, 24),
    "language model, output": ((STREAMS,), 2048, (2048,), 24),
    "flow, qkv": ((2 * STREAMS, 11), 1024, QKV, 12),
    "flow, output": ((2 * STREAMS, 11), 2048, (1024,), 12),
    "flow, last q": ((2 * STREAMS, 4), 1024, (2048,), 12),
    "prompts, qkv": ((2048,), 2048, QKV, 4),
}
"""Rows, inputs, outputs of each part, and layers."""
TILES = [
    (k, splits, stages, n, warps)
    for k in (128, 256)
    for splits in (2, 4)
    for stages in (3, 4, 5)
    for n, warps in ((128, 2), (256, 4))
]
Layer = tuple[Tensor, Tensor, Tensor, Tensor]


def layers(shape: tuple[int, ...], k: int, widths: tuple[int, ...], count: int) -> list[Layer]:
    """Inputs, weight, A and B of each layer. Together they are more than the cache holds."""

    def random(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16) / size[-1] ** 0.5

    n = sum(widths)
    made = [(random(*shape, k), random(n, k), random(len(widths), SLOTS, RANK, k)) for _ in range(count)]
    return [(x, w, a, random(SLOTS, RANK, n)) for x, w, a in made]


def microseconds(run: Callable[[], None], count: int) -> float:
    """Of one of `count` layers."""
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for _ in range(3):
            run()
        graph.capture_end()
        times = []
        for _ in range(6):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return 1e3 * min(times) / (3 * count)


def measure(made: list[Layer], index: Tensor | None, widths: tuple[int, ...]) -> float:
    """The products of all layers, with the adapters of `index`. None: without low-rank products."""

    tiles = None if index is None or len(index) > LORA_FEW_ROWS else lora.tiles_of(index)  # once for all of a step

    def run() -> None:
        for x, w, a, b in made:
            y = torch.nn.functional.linear(x, w)
            if index is not None:
                lora.add_lora(y, x, index, a, b, widths, tiles)

    return microseconds(run, len(made))


def behind(made: list[Layer], index: Tensor | None, fused: bool) -> float:
    """The same with a norm of the sum of the output and a residual."""
    norm = torch.ones(made[0][1].shape[0], device="cuda", dtype=torch.bfloat16), 1e-6, True
    residual = torch.randn_like(torch.nn.functional.linear(*made[0][:2]))

    def run() -> None:
        for x, w, a, b in made:
            y = torch.nn.functional.linear(x, w)
            if index is None:
                norm_rope.add_rms_norm(residual, y, *norm)
            elif fused:
                lora_norm.expand_norm(y, lora.shrink(x, index, a), index, b, residual, norm)
            else:
                norm_rope.add_rms_norm(residual, lora.add_lora(y, x, index, a, b, (len(w),)), *norm)

    return microseconds(run, len(made))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--brief", action="store_true", help="only the tiles in use")
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for name, (shape, k, widths, count) in SHAPES.items():
        groups = STREAMS if shape[0] <= 2 * STREAMS else shape[0]
        every = torch.arange(groups, device="cuda") // (1 if groups == STREAMS else 32) % SLOTS + 1
        made = layers(shape, k, widths, count)
        base = measure(made, None, widths)
        found[name] = {"product": round(base, 2)}

        def beyond(times: list[float], base: float) -> list[float]:
            return [round(t - base, 2) for t in times]

        found[name]["in use"] = beyond([measure(made, index, widths) for index in (every, 0 * every)], base)
        usual = lora_config(RANK, 2, len(shape) == 2)
        for tile in [] if args.brief else TILES:
            block_k, splits, stages, block_n, warps = tile
            config = usual._replace(block_k=block_k, stages=stages, block_n=block_n, expand_warps=warps)
            split = splits, -(-k // (splits * block_k)) * block_k
            with mock.patch.multiple(lora, lora_config=lambda *_, c=config: c, lora_splits=lambda _, s=split: s):
                times = [measure(made, index, widths) for index in (every, 0 * every)]
            found[name]["/".join(map(str, tile))] = beyond(times, base)
        if name == "flow, output":
            base = behind(made, None, fused=False)
            found[name]["product, norm behind"] = round(base, 2)
            for fused in (False, True):
                times = [behind(made, index, fused) for index in (every, 0 * every)]
                found[name]["norm behind, " + ("one kernel" if fused else "two")] = beyond(times, base)
        print(name, json.dumps(found[name]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
