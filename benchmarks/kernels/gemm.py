"""The GEMM whose rows do not depend on their number, by tile, and the library's, from one row to a long prompt.

Run: python benchmarks/kernels/gemm.py [--tiles] [--out DIR]       on a GPU, about 15 s, or 25 s more with all tiles
Needs: a GPU, Triton and nothing but stentor.

Microseconds of a launch in a graph of many. They read different weights, so that no weight comes from the cache.
`chosen` is the tile of `gemm_config` for each number of rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.timing import milliseconds
from stentor import kernels
from stentor.kernels.configs import GemmConfig

ROWS = (1, 2, 16, 32, 64, 256, 2048)
SHAPES = {
    "depth qkv": (1024, 4096),
    "depth o": (2048, 1024),
    "talker gate": (2048, 12288),
    "talker down": (6144, 2048),
    "fish down": (9728, 2560),
}
CACHE_BYTES = 256 << 20
TILES = [
    GemmConfig(m, n, k, w, 3) for m, n, k, w in (
        (64, 16, 128, 4), (64, 32, 128, 4), (64, 64, 128, 4), (64, 128, 64, 4), (64, 64, 64, 4), (128, 128, 64, 8),
        (128, 64, 64, 4), (128, 256, 64, 8), (16, 32, 128, 4), (16, 64, 128, 4), (32, 64, 128, 4), (16, 16, 256, 4),
    )
]  # fmt: skip


def chained(run: Callable[[Tensor], object], weights: list[Tensor]) -> float:
    """Microseconds of a launch, on average over a graph that runs once with each weight."""
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        run(weights[0])
        with torch.cuda.graph(graph, stream=stream):
            for w in weights:
                run(w)
    return 1e3 * milliseconds(graph.replay) / len(weights)


def measure(name: str, device: torch.device, all_tiles: bool) -> dict[str, dict[int, float]]:
    k, n = SHAPES[name]
    count = max(4, CACHE_BYTES // (2 * n * k))
    weights = [torch.randn(n, k, device=device, dtype=torch.bfloat16) for _ in range(count)]
    found: dict[str, dict[int, float]] = {}
    for rows in ROWS:
        x = torch.randn(rows, k, device=device, dtype=torch.bfloat16)
        found.setdefault("library", {})[rows] = chained(partial(F.linear, x), weights)
        for tile in (None, *(TILES if all_tiles else ())):
            name = "chosen" if tile is None else str(tuple(tile))
            found.setdefault(name, {})[rows] = chained(partial(_ours, x, tile), weights)
    return found


def _ours(x: Tensor, tile: GemmConfig | None, w: Tensor) -> Tensor:
    return kernels.gemm.linear(x, w, None, tile)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiles", action="store_true", help="time all tiles")
    parser.add_argument("--out", type=Path, default=Path())
    args = parser.parse_args()
    found = {}
    print("us at rows " + " ".join(f"{r:>8}" for r in ROWS))
    for name in SHAPES:
        with torch.inference_mode():
            found[name] = measure(name, torch.device("cuda", 0), args.tiles)
        for tile, times in found[name].items():
            print(
                f"{name:12} {tile:26}" + " ".join(f"{t:8.2f}" for t in times.values()), flush=True
            )
        (args.out / "gemm.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
