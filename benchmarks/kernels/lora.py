"""What low-rank products of 32 adapters add to the product of a layer, by tile: microseconds, as JSON lines.

Run: python benchmarks/kernels/lora.py [--out FILE]
Needs: a GPU.

64 streams, in the shapes of VoxCPM2's language models and flow, and prompts. Each figure is that of a layer in a
captured graph of many, less the product alone, for rows that all have an adapter and for rows that have none. It is the
least of six replays.
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
from stentor.kernels import lora
from stentor.kernels.configs import LoraConfig, lora_config, lora_splits

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
TILES = [(k, n, splits) for k in (128, 256) for n in (128, 256) for splits in (1, 2, 4)]
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

    def run() -> None:
        for x, w, a, b in made:
            y = torch.nn.functional.linear(x, w)
            if index is not None:
                lora.add_lora(y, x, index, a, b, widths)

    return microseconds(run, len(made))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    found: dict[str, dict[str, Any]] = {}
    usual = lora_config(RANK)
    for name, (shape, k, widths, count) in SHAPES.items():
        groups = STREAMS if shape[0] <= 2 * STREAMS else shape[0]
        every = torch.arange(groups, device="cuda") // (1 if groups == STREAMS else 32) % SLOTS + 1
        made = layers(shape, k, widths, count)
        base = measure(made, None, widths)
        found[name] = {"product": round(base, 2)}
        for tile in [(usual.block_k, usual.block_n, lora_splits(k)[0]), *TILES]:
            config = LoraConfig(usual.block_r, tile[0], tile[1], usual.num_warps)
            splits = tile[2], -(-k // (tile[2] * tile[0])) * tile[0]
            with mock.patch.multiple(lora, lora_config=lambda _, c=config: c, lora_splits=lambda _, s=splits: s):
                times = [measure(made, index, widths) - base for index in (every, 0 * every)]
            found[name]["/".join(map(str, tile))] = [round(t, 2) for t in times]
        print(name, json.dumps(found[name]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
