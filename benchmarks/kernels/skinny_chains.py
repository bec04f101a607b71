"""Choose the tiles of few-row products inside the blocks of a model, where each launch begins under the one in front.

Run, on a GPU: python benchmarks/kernels/skinny_chains.py --out FILE [--blocks talk,fish] [--weights int8] [--rows 1,8]
Needs: a GPU, cuda-bindings, NVRTC and nothing but stentor.

A tile that is best alone may leave no shared memory for the next launch, whose weights then come late. So the products
of a block run one after the other in a CUDA graph, over so many copies of the weights that none is in the cache. From
the tiles in use, one product after the other takes the tile with which the whole block is fastest, in rounds until none
changes. What is printed: microseconds of a block before and behind that.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.kernels.skinny_gemm import COLD, Case, compile_tiles, product, short
from benchmarks.kernels.tile_search import candidates, tile
from benchmarks.timing import graph_microseconds
from stentor.kernels.cuda_cpp.launch import architecture
from stentor.kernels.cuda_cpp.product import Product, Tile, WeightType

BLOCKS = {
    "depth": ("depth qkv", "depth o", "depth gate", "depth down"),
    "talk": ("talk qkv", "talk o", "talk gate", "talk down"),
    "vox": ("vox qkv", "talk o", "talk gate", "talk down"),
    "fish": ("fish qkv", "fish o", "fish gate", "fish down"),
}
LEAST_GAIN = 0.003  # of a block, below which a tile stays


class Block:
    """The products of a block, over copies of its weights."""

    def __init__(self, products: list[Product], rows: int, device: torch.device) -> None:
        count = max(3, int(COLD / sum(p.weight_rows * p.k * p.weight_bytes for p in products)) + 1)
        self.cases = [Case(p, rows, device, count) for p in products]
        self.count = count

    def microseconds(self, chosen: list[Tile]) -> float:
        """Time of one block."""
        launches = [
            (case.launch(t), case.weights) for case, t in zip(self.cases, chosen, strict=True)
        ]
        return (
            graph_microseconds(
                lambda: [
                    launch(weights[i]) for i in range(self.count) for launch, weights in launches
                ]
            )
            / self.count
        )


def choices(p: Product, rows: int, most: int) -> list[Tile]:
    """The tile in use and the most promising ones, each with fewer copies in flight too."""
    row_tiles = -(-rows // p.row_tile)
    found = [tile(p, rows), *candidates(p, row_tiles)[:most]]
    fewer = [
        replace(t, stages=s)
        for t in found
        for s in (t.stages * 2 // 3, t.stages // 2, t.stages // 3)
        if s
    ]
    return list(dict.fromkeys([*found, *fewer]))


def choose(
    products: list[Product], rows: int, most: int, device: torch.device, end: float
) -> dict[str, Any]:
    """The tiles with which the block is fastest, from those of the estimate."""
    block = Block(products, rows, device)
    each = [choices(p, rows, most) for p in products]
    chosen = [c[0] for c in each]
    first = best = block.microseconds(chosen)
    tried, changed = 1, True
    while changed and time.monotonic() < end:
        changed = False
        for i, some in enumerate(each):
            for t in some:
                if t == chosen[i] or time.monotonic() > end:
                    continue
                taken = block.microseconds([*chosen[:i], t, *chosen[i + 1 :]])
                tried += 1
                if taken < best * (1 - LEAST_GAIN):
                    best, chosen[i], changed = taken, t, True
    again = block.microseconds(chosen)
    return {"rows": rows, "first_us": first, "best_us": min(best, again), "again_us": again, "tried": tried,
            "tiles": [asdict(t) for t in chosen]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--blocks", default=",".join(BLOCKS))
    parser.add_argument("--weights", default="same,int8")
    parser.add_argument("--rows", default="1,8,16")
    parser.add_argument(
        "--most",
        type=int,
        default=8,
        help="tiles of a product, before they get fewer copies in flight",
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of a block and a number of rows at most"
    )
    args = parser.parse_args()
    weights: list[WeightType] = ["int8" if w == "int8" else "same" for w in args.weights.split(",")]
    wanted = [
        (b, w, int(r))
        for b in args.blocks.split(",")
        for w in weights
        for r in args.rows.split(",")
    ]
    blocks = {(b, w): [product(name, w) for name in BLOCKS[b]] for b, w, _ in wanted}
    compile_tiles(
        [(p, t) for b, w, r in wanted for p in blocks[b, w] for t in choices(p, r, args.most)],
        architecture(0),
    )
    found = []
    with torch.inference_mode():
        for b, w, rows in wanted:
            products = blocks[b, w]
            chosen = choose(
                products, rows, args.most, torch.device("cuda", 0), time.monotonic() + args.seconds
            )
            found.append(
                {"block": b, "weights": w, "products": [asdict(p) for p in products], **chosen}
            )
            names = " ".join(short(t) for t in chosen["tiles"])
            print(
                f"{b:6} {w:4} M{rows:<3} {chosen['first_us']:7.2f} -> {chosen['best_us']:7.2f} us, {names}",
                flush=True,
            )
            args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
