"""Time products of few rows with every tile against the library's GEMM, and check that tiles do not change a bit.

Run, on a GPU: python benchmarks/kernels/skinny_gemm.py [--out DIR] [--shapes talk,fish] [--splits 8,16]
     python benchmarks/kernels/skinny_gemm.py --weights same,int8     the same with weights in int8
     python benchmarks/kernels/skinny_gemm.py --compile               compile every tile and stop, without a GPU
Needs: a GPU, cuda-bindings, NVRTC and nothing but stentor.

A case is one shape at one number of rows. Its launches run in a CUDA graph over so many copies of the weights that none
is in the cache. The library's time is that of the GEMM alone, without what our kernel fuses. Weights in int8 have
no library: their time beside ours is that of the Triton kernel which reads them elsewhere. Errors are against float64.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.kernels.tile_search import candidates, tile
from benchmarks.timing import graph_microseconds
from stentor import kernels
from stentor.kernels.cuda_cpp.launch import SOURCES, architecture, compiler
from stentor.kernels.cuda_cpp.product import Product, Tile, WeightType
from stentor.kernels.hopper_gemm import Operands, launch
from stentor.layers.quantized import dequantize, quantize

SHAPES = {
    "depth qkv": (1024, 4096, "norm"),
    "depth o": (2048, 1024, "add"),
    "depth gate": (1024, 3072, "norm gate"),
    "depth down": (3072, 1024, "add"),
    "depth head": (1024, 2048, "norm"),
    "talk qkv": (2048, 4096, "norm"),
    "talk o": (2048, 2048, "add"),
    "talk gate": (2048, 6144, "norm gate"),
    "talk down": (6144, 2048, "add"),
    "vox qkv": (2048, 2560, "norm"),
    "flow qkv": (1024, 2560, "norm"),
    "flow gate": (1024, 4096, "norm gate"),
    "flow down": (4096, 1024, "add"),
    "fish qkv": (2560, 6144, "norm"),
    "fish o": (4096, 2560, "add"),
    "fish gate": (2560, 9728, "norm gate"),
    "fish down": (9728, 2560, "add"),
}
"""K, outputs, and what is fused."""

COLD = 200e6  # bytes of weights that one graph goes through: several times the cache
BANDWIDTH = 4.3e12
TOLERANCE = 0.006
EPS = 1e-6


def product(name: str, weight: WeightType) -> Product:
    k, n, fused = SHAPES[name]
    return Product(
        k, n, "bf16", norm="norm" in fused, gate="gate" in fused, add="add" in fused, weight=weight
    )


class Case:
    """The operands of one shape, with copies of the weights: `count`, or as many as the cache does not hold."""

    def __init__(self, p: Product, rows: int, device: torch.device, count: int = 0) -> None:
        torch.manual_seed(0)
        made: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        self.p, self.rows = p, rows
        self.x = torch.randn(rows, p.k, **made)
        first, self.scale = torch.randn(p.weight_rows, p.k, **made) / p.k**0.5, None
        if p.weight != "same":
            first, self.scale = quantize(first, torch.int8)
        count = count or max(3, int(COLD / first.nbytes) + 1)
        self.weights = [first, *(first.clone() for _ in range(count - 1))]
        self.norm = torch.rand(p.k, **made) + 0.5
        self.residual = torch.randn(rows, p.n, **made)
        self.out = torch.empty(rows, p.n, **made)

    def expected(self) -> Tensor:
        y, weight = self.x.double(), self.weights[0]
        if self.p.norm:
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * self.norm.double()
        y = (
            y
            @ (
                weight.double()
                if self.scale is None
                else dequantize(weight, self.scale, torch.float64)
            ).T
        )
        if self.p.gate:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        return y + self.residual.double() if self.p.add else y

    def library(self, weight: Tensor) -> Tensor:
        if self.scale is not None:
            return kernels.gemm.linear(self.x, weight, scale=self.scale)
        return F.linear(self.x, weight)

    def launch(self, t: Tile) -> Callable[[Tensor], None]:
        def run(weight: Tensor) -> None:
            o = Operands(self.x, weight, (self.norm, EPS), None, self.residual, self.scale)
            launch(self.p, t, o, self.out)

        return run

    def microseconds(self, run: Callable[[Tensor], object]) -> float:
        """Microseconds of one launch in a graph over all copies of the weights."""
        return graph_microseconds(lambda: [run(w) for w in self.weights]) / len(self.weights)


def measure(p: Product, rows: int, most: int, device: torch.device) -> dict[str, Any]:
    case = Case(p, rows, device)
    wanted = case.expected()
    library = case.microseconds(case.library)
    found, digests = [], set()
    for t in tiles_of(p, rows, most):
        run = case.launch(t)
        case.out.fill_(float("nan"))
        run(case.weights[0])
        error = float((case.out.double() - wanted).norm() / wanted.norm())
        if not error < TOLERANCE:
            found.append({"tile": asdict(t), "error": error})
            continue
        row = case.out[:1].view(torch.int16).cpu().numpy().tobytes()
        digests.add(hashlib.md5(row).hexdigest())
        found.append({"tile": asdict(t), "error": error, "us": case.microseconds(run)})
    right = sorted((f for f in found if "us" in f), key=lambda f: f["us"])
    return {
        "rows": rows, "splits": p.splits, "library_us": library, "tiles": found, "best": right[0] if right else None,
        "first": next((f for f in found), None), "wrong": len(found) - len(right), "digests": sorted(digests),
        "weight": p.weight, "floor_us": p.weight_rows * p.k * p.weight_bytes / BANDWIDTH * 1e6,
    }  # fmt: skip


def tiles_of(p: Product, rows: int, most: int) -> list[Tile]:
    """The tile in use, then others of as many rows as there are, or of half as many, the most promising ones first."""
    row_tiles = -(-rows // p.row_tile)
    found = [tile(p, rows), *candidates(p, row_tiles)[:most]]
    if row_tiles > 2:
        found += candidates(p, -(-row_tiles // 2))[: most // 3]
    return list(dict.fromkeys(found))


def compile_tiles(cases: list[tuple[Product, Tile]], arch: str) -> None:
    wanted = {
        (SOURCES / f"{t.source(p)}.cu", tuple({**t.macros(p), "PDL": 1}.items())) for p, t in cases
    }
    jobs = [compiler().begin(file, dict(macros), arch) for file, macros in wanted]
    for job in jobs:
        job.result()
    print(len(wanted), "tiles compiled", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--shapes", default="", help="only shapes whose names contain one of these")
    parser.add_argument("--weights", default="same", help="same and int8, separated by commas")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so many")
    parser.add_argument("--rows", default="1,4,16,32,64")
    parser.add_argument(
        "--splits", default="", help="parts of K, separated by commas, in place of the shape's own"
    )
    parser.add_argument("--most", type=int, default=12, help="tiles of a case")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    names = [n for n in SHAPES if any(wanted in n for wanted in args.shapes.split(","))]
    rows = [int(r) for r in args.rows.split(",")]
    products = [
        (n, q)
        for n in names
        for w in args.weights.split(",")
        for q in with_splits(product(n, w), args.splits)
    ]
    arch = "sm_90a" if args.compile else architecture(0)
    compile_tiles(
        [(p, t) for _, p in products for r in rows for t in tiles_of(p, r, args.most)], arch
    )
    if args.compile:
        return
    end = time.monotonic() + args.seconds
    results: dict[str, list[dict[str, Any]]] = {}
    with torch.inference_mode():
        for r in rows:
            for name, p in products:
                if time.monotonic() > end:
                    return
                found = measure(p, r, args.most, torch.device("cuda", 0))
                results.setdefault(name, []).append(found)
                best, first = found["best"], found["first"]
                print(
                    f"{name:11} {p.weight:4} M{r:<3} splits {p.splits:<3} floor {found['floor_us']:6.2f} library "
                    f"{found['library_us']:6.2f} first {first.get('us', 0):6.2f} best {best['us'] if best else 0:6.2f} "
                    f"wrong {found['wrong']} digests {len(found['digests'])} {short(best['tile']) if best else ''}",
                    flush=True,
                )
                (args.out / "skinny_gemm.json").write_text(json.dumps(results, indent=1))


def with_splits(p: Product, splits: str) -> list[Product]:
    return (
        [Product(**{**asdict(p), "splits": int(s)}) for s in splits.split(",")] if splits else [p]
    )


def short(t: dict[str, Any]) -> str:
    return "t{tiles}{h}x{batch}n{batches}s{stages}c{min_ctas}m{row_tiles}".format(
        h="h" if t["half"] else "", **t
    )


if __name__ == "__main__":
    main()
