"""Choose the tiles with which a row's sums have one order, whatever the number of rows: `one_order` of sm_90.json.

Run, on a GPU: python benchmarks/kernels/one_order.py [--out DIR] [--write] [--stacks talker,depth] [--seconds 60]
     python benchmarks/kernels/one_order.py --weights int8     the same with weights in int8
     python benchmarks/kernels/one_order.py --compile          compile the first tiles and stop, without a GPU
Needs: a GPU, cuda-bindings, NVRTC and nothing but stentor.

The parts of K decide the order of the sums, so a product has the same number of them for any rows. First every number
of parts is timed at 1, 64 and 256 rows, each with the most promising tiles, in CUDA graphs over so many copies of the
weights that none is in the cache. The parts with the least sum of the three ratios to the default stay. Then tiles
with as many parts are timed for other numbers of rows. `default` is what serves these rows otherwise, norm, gate and
addition included, and `triton` the product alone. A shape of several stacks has one record, of the
one that was timed last.

Predicted for an H200, us of a launch at 1 and 64 rows, default in brackets: depth qkv 3.4 (3.2) and 4.6 (4.6), o 2.8
(2.8) and 3.6 (3.6), gate 4.6 (4.3) and 6.3 (6.3), down 3.4 (3.4) and 4.4 (4.4). talker qkv 6.0 (5.6) and 9.0 (10),
o 3.7 (3.7) and 5.2 (7.8), gate 15 (14.1) and 20 (19), down 7.8 (8.2) and 11 (12.3).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import Future
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.kernels.cluster_gemm import CASES, Alone, finish, products
from benchmarks.kernels.skinny_gemm import EPS, TOLERANCE
from benchmarks.kernels.tile_search import (
    ARCH,
    MANY_ROWS,
    ONE_ORDER_ROWS,
    fits,
    one_order_candidates,
    one_order_ranges,
    text,
)
from stentor.kernels import gemm
from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.launch import SOURCES, architecture, compiler
from stentor.kernels.cuda_cpp.product import GROUP, ClusterTile, Product, WeightType
from stentor.kernels.hopper_gemm import launch
from stentor.layers.linear import linear

CHOOSING = {8: 1, 64: 64, 256: 256}
"""Rows for which the parts are chosen, by the rows up to which the tile serves."""
SHOWN = (*CHOOSING.values(), MANY_ROWS)
MOST_GROUPS = 40
"""Groups of 64 inputs that a CTA adds up at most: the loop is unrolled, so more take long to compile."""
WRONG = 1e9
"""Microseconds of a tile that is not right."""
HEADS = {
    "talker": {"head": Product(2048, 3072, "bf16", norm=True)},
    "depth": {"head": Product(1024, 2048, "bf16", norm=True)},
}


def named_products(stacks: list[str], weight: WeightType) -> dict[str, Product]:
    found = {f"{s} {n}": p for s in stacks for n, p in products(CASES[s].config, weight).items()}
    if weight == "same":
        found |= {f"{s} {n}": p for s in stacks for n, p in HEADS.get(s, {}).items()}
    return found


def parts_of(p: Product) -> list[int]:
    groups = p.k // GROUP
    return [s for s in (1, 2, 4, 8) if groups % s == 0 and 3 <= groups // s <= MOST_GROUPS]


def tiles_of(p: Product, rows: int, parts: int, most: int) -> list[ClusterTile]:
    """The most promising tiles, and the first one with the other choice of `ahead`."""
    found = one_order_candidates(p, rows, parts)[:most]
    others = [replace(t, ahead=not t.ahead) for t in found[:1]]
    return found + [t for t in others if fits(t, p)]


def begin(p: Product, tiles: list[ClusterTile], arch: str) -> list[Future[bytes]]:
    return [
        compiler().begin(SOURCES / "cluster_gemm.cu", {**t.macros(p), "PDL": 1}, arch)
        for t in tiles
    ]


class Search:
    """One product: its operands, and microseconds of tiles by rows."""

    def __init__(self, p: Product) -> None:
        self.p, self.case, self.found = (
            p,
            Alone(p, MANY_ROWS),
            dict[tuple[ClusterTile, int], float](),
        )
        self.first: dict[int, Tensor] = {}  # the first row, by parts of K
        self.wrong: list[str] = []

    def time(self, t: ClusterTile, rows: int) -> float:
        """Microseconds, or WRONG for a tile whose result is wrong or whose first row has other bits."""
        if (t, rows) not in self.found:
            case, out = self.case, torch.full_like(self.case.out[:rows], float("nan"))
            launch(self.p, t, case.operands(case.weights[0], rows), out)
            wanted = case.wanted[:rows]
            right = float((out.double() - wanted).norm() / wanted.norm()) < TOLERANCE
            same = torch.equal(out[0], self.first.setdefault(t.splits, out[0].clone()))
            if not (right and same):
                self.wrong.append(f"{astuple(t)} at {rows}: right {right}, same bits {same}")
            self.found[t, rows] = (
                case.microseconds(lambda w: launch(self.p, t, case.operands(w, rows), out))
                if right and same
                else WRONG
            )
        return self.found[t, rows]

    def best(self, most_rows: int, parts: int, rows: int, most: int) -> ClusterTile | None:
        tiles = tiles_of(self.p, most_rows, parts, most)
        return min(tiles, key=lambda t: self.time(t, rows), default=None)

    def usual(self, rows: int) -> float:
        """Microseconds of what serves so many rows by default."""
        case, p = self.case, self.p
        norm = (case.norm, EPS, True) if p.norm else None
        residual = case.residual[:rows] if p.add else None
        x = case.x[:rows]
        return case.microseconds(
            lambda w: linear(x, w, case.bias, case.scale, residual, norm, p.gate)
        )

    def triton(self, rows: int) -> float:
        if self.p.weight != "same":
            return 0.0
        return self.case.microseconds(lambda w: gemm.linear(self.case.x[:rows], w))


class Chosen(NamedTuple):
    """A product with its parts of K, and the jobs that compile tiles for all rows with them."""

    search: Search
    us: dict[int, dict[int, float]]  # by parts and rows
    default: dict[int, float]  # by rows
    parts: int
    tiles: dict[int, ClusterTile]  # by the rows up to which they serve
    jobs: list[Future[bytes]]


def choose_parts(p: Product, most: int, arch: str) -> Chosen:
    s, found = Search(p), dict[int, dict[int, ClusterTile]]()
    for parts in parts_of(p):
        tiles = {n: t for n, rows in CHOOSING.items() if (t := s.best(n, parts, rows, most))}
        if len(tiles) == len(CHOOSING):
            found[parts] = tiles
    default = {rows: s.usual(rows) for rows in SHOWN}
    us = {
        parts: {CHOOSING[n]: s.time(t, CHOOSING[n]) for n, t in tiles.items()}
        for parts, tiles in found.items()
    }
    parts = min(us, key=lambda n: sum(t / default[rows] for rows, t in us[n].items()))
    jobs = [job for n in ONE_ORDER_ROWS for job in begin(p, tiles_of(p, n, parts, most), arch)]
    return Chosen(s, us, default, parts, found[parts], jobs)


def complete(name: str, chosen: Chosen, most: int) -> dict[str, Any]:
    """Tiles for any number of rows, beside what serves the product otherwise."""
    s, p, parts = chosen.search, chosen.search.p, chosen.parts
    finish(chosen.jobs)
    best = {n: s.best(n, parts, min(n, MANY_ROWS), most) for n in ONE_ORDER_ROWS} | chosen.tiles
    tiles = {n: t for n, t in best.items() if t}
    us = {rows: s.time(next(t for n, t in tiles.items() if rows <= n), rows) for rows in SHOWN}
    triton = {rows: s.triton(rows) for rows in SHOWN}
    result = {
        "name": name, "k": p.k, "weight_rows": p.weight_rows, "weight": p.weight, "parts": chosen.us, "chosen": parts,
        "us": us, "default": chosen.default, "triton": triton,
        "tiles": one_order_ranges([*tiles.values()]), "wrong": s.wrong,
    }  # fmt: skip
    by_parts = ", ".join(
        f"{n}: {' '.join(f'{t:.2f}' for t in us.values())}" for n, us in chosen.us.items()
    )
    times = (f"{n} {us[n]:.2f} {chosen.default[n]:.2f} {triton[n]:.2f}" for n in SHOWN)
    rows = [*chosen.us[parts]]
    print(
        f"{name:13} {p.k}x{p.weight_rows} us of parts at {rows} rows {by_parts} -> {parts}",
        flush=True,
    )
    print(f"  rows, us, default, triton: {', '.join(times)}; {result['tiles']}", flush=True)
    if s.wrong:
        print(f"  WRONG {s.wrong}", flush=True)
    return result


def with_measured(found: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """The table with these tiles, as far as they are right."""
    records = {(r["k"], r["weight_rows"], r["weight"]): r for r in found["one_order"]}
    for r in (r for r in results if max(r["us"].values()) < WRONG):
        key = {name: r[name] for name in ("k", "weight_rows", "weight")}
        records[tuple(key.values())] = {**key, "measured": True, "tiles": r["tiles"]}
    ordered = sorted(
        records.values(), key=lambda r: (r["k"], r["weight_rows"], r["weight"] != "same")
    )
    return {**found, "one_order": ordered}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument(
        "--write", action="store_true", help="to the table of this tree, not only to --out"
    )
    parser.add_argument("--stacks", default="depth,talker", help=f"of {', '.join(CASES)}")
    parser.add_argument("--weights", default="same", choices=("same", "int8"))
    parser.add_argument(
        "--most", type=int, default=3, help="tiles of a product, its columns and parts of K"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no product after so many")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    end, wanted = (
        time.monotonic() + args.seconds,
        named_products(args.stacks.split(","), args.weights),
    )
    arch = "sm_90a" if args.compile else architecture(0)
    jobs = {
        name: [
            j for parts in parts_of(p) for n in CHOOSING for j in begin(p, tiles_of(p, n, parts, args.most), arch)
        ]
        for name, p in wanted.items()
    }  # fmt: skip
    results: list[dict[str, Any]] = []
    found: dict[str, Chosen] = {}
    table = json.loads(tables.file(ARCH).read_text(encoding="utf-8"))
    with torch.inference_mode():
        for name, p in wanted.items():
            if time.monotonic() > end:
                print(f"no time for {name}", flush=True)
                continue
            finish(jobs[name])
            if not args.compile:
                found[name] = choose_parts(p, args.most, arch)
        for name, chosen in found.items():
            results.append(complete(name, chosen, args.most))
            (args.out / f"one_order_{args.weights}.json").write_text(json.dumps(results, indent=1))
    if results:
        written = text(with_measured(table, results))
        for file in (args.out / "sm_90.json", *[tables.file(ARCH)] * args.write):
            file.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
