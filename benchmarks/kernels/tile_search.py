"""Search tiles of the GEMMs in CUDA C++ by estimates, and write the table `stentor/kernels/cuda_cpp/sm_90.json`.

Run: python benchmarks/kernels/tile_search.py                    write the table anew, without a GPU
     python benchmarks/kernels/tile_search.py --add K,N K,N,gate  with products of other models too

What was measured stays: `clusters`, by cluster_gemm.py, and of few rows the entries that `measured` lists, by
skinny_gemm.py and skinny_chains.py. It counts tiles of rows: 8 rows each, 4 with weights in int8. Other tiles for few
rows and their times are estimates, made anew here. A product that the table does not have is left to other kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.product import (
    GROUP,
    REGISTERS,
    RESERVED,
    SHARED_BYTES,
    WARP_GROUP_ROWS,
    ClusterTile,
    Product,
    Tile,
    WeightType,
    all_tiles,
    splits,
)

ARCH = 90
SMS = 132
"""Multiprocessors of an H100 or H200: CTAs of one wave."""
MOST_STAGES = 12
COSTS: dict[WeightType, tuple[float, ...]] = {
    "same": (0.98, 5.0e-5, 4.9e-3, 1.24e-5, 0.45e-5, 1.33e-3),
    "int8": (0.74, 2.42e-5, 5.74e-3, 2.54e-5, 0.0, 2.08e-3),
}
"""Microseconds of a launch, and of one SM: a weight, the products of a group, a byte of x, a byte of sums, a wait."""
ROW_TILES: dict[WeightType, int] = {"same": 6, "int8": 4}
"""Tiles of rows in the table. With more than 48 rows CTAs read too much of x. With more than 16 and weights in int8,
where each CTA makes integers of all rows, clusters are faster."""


# Few rows: skinny_gemm.cu and skinny_int8_gemm.cu


def tile(p: Product, rows: int) -> Tile:
    """The tile in use, else the most promising one. Where registers do not hold all rows at once, several CTAs share
    them."""
    table = tables.of(ARCH)
    known = table and p.splits == splits(p.weight_rows) and table.few_rows_tile(p, rows)
    return known or _estimated(p, -(-rows // p.row_tile))


def _estimated(p: Product, row_tiles: int) -> Tile:
    while not (found := candidates(p, row_tiles)):
        row_tiles = -(-row_tiles // 2)
    return found[0]


def candidates(p: Product, row_tiles: int) -> list[Tile]:
    """Tiles worth timing, the most promising one first."""
    return sorted(
        _candidates(p, row_tiles), key=lambda tile: microseconds(p, p.row_tile * row_tiles, tile)
    )


def microseconds(p: Product, rows: int, t: Tile) -> float:
    """Estimate a launch on an H200: half of 1,100 measured tiles are within 8 % of it (int8, H100: 166, 10 %).

    The parts are those of one SM: weights, tensor cores, x, the warps' sums, and waits for copies.
    """
    columns, blocks = t.grid(p, rows)
    ctas = -(-(columns * blocks) // (SMS * t.min_ctas)) * t.min_ctas
    tile_rows = 8 if t.half else 16
    weights = ctas * t.tiles * tile_rows * p.k
    products = ctas * (p.k // GROUP) * t.row_tiles * (t.tiles + p.norm)
    x = ctas * t.row_tiles * p.row_tile * p.k * 2
    sums = ctas * p.splits * t.tiles * t.row_tiles * 32 * 16
    waits = 2 * weights / (t.stages * tile_rows * t.min_ctas * p.splits)
    counts = (1.0, weights, products, x, sums, waits)
    return sum(cost * count for cost, count in zip(COSTS[p.weight], counts, strict=True))


def _candidates(p: Product, row_tiles: int) -> list[Tile]:
    found = set()
    groups = -(-(p.k // GROUP) // p.splits)
    for half in (False, True):
        if (half and (p.gate or p.n > 4096)) or (not half and not p.gate and p.n % 16):
            continue
        count = all_tiles(p, half)
        for min_ctas in (1, 2):
            if p.splits * min_ctas > 16:  # warps of an SM: 128 registers for each thread
                continue
            for wanted in (SMS, 2 * SMS, 4 * SMS):
                tiles = -(-count // wanted)
                batches = (b for b in range(1, groups + 1) if groups % b == 0)
                bases = [Tile(row_tiles, tiles, half, b, groups // b, 1, min_ctas) for b in batches]
                fitting = [
                    b for b in bases if _registers(p, b) <= REGISTERS // (p.splits * 32 * min_ctas)
                ]
                if p.weight != "same":
                    fitting = fitting[-2:]  # the fewest batches: a batch waits for its x
                found |= {t for base in fitting for t in _with_stages(p, base)}
    return list(found)


def _registers(p: Product, t: Tile) -> int:
    """Registers of a thread, about."""
    if p.weight != "same":  # integers and scales, elements of the next batch, and sums
        lanes = t.batch if t.batch < 3 else 4 * -(-t.batch // 4)  # idle ones have registers too
        integers, pieces = 5 * t.batch * t.row_tiles, 4 * lanes * t.row_tiles
        return (
            (integers + pieces if t.batches > 1 else max(integers, pieces)) + 6 * t.row_tiles + 48
        )
    x = t.batch * t.row_tiles * 8 * (2 if t.batches > 1 else 1)
    return x + t.row_tiles * 4 * t.tiles + 16 + 40


def _with_stages(p: Product, t: Tile) -> list[Tile]:
    """With as many copies in flight as fit, and with half as many."""
    units = t.tiles * t.batch * t.batches
    limit = SHARED_BYTES // t.min_ctas - 1024
    most = min(units, 2 * MOST_STAGES // p.weight_bytes)
    fitting = [s for s in range(1, most + 1) if replace(t, stages=s).shared_bytes(p) <= limit]
    most_and_half = {fitting[-1], max(1, fitting[-1] // 2)} if fitting else set()
    return [replace(t, stages=s) for s in most_and_half if s <= MOST_STAGES]


# Some dozens to some hundreds of rows: cluster_gemm.cu


def cluster_candidates(p: Product, rows: int) -> list[ClusterTile]:
    """Tiles worth timing, the most promising one first."""
    found = set()
    for blocks in range(-(-rows // 256), -(-rows // 40) + 1):
        columns = 8 * -(-rows // (8 * blocks))
        for warp_groups in (1, 2, 4):
            for parts in (1, 2, 4, 8):
                groups = p.k // GROUP // parts
                bases = (
                    ClusterTile(columns, warp_groups, parts, s, s < groups) for s in range(3, 17)
                )
                fitting = [t for t in bases if fits(t, p) and t.shared_bytes(p) <= SHARED_BYTES]
                found |= {t for t in fitting if t.stages in _stages(p, fitting)}
    return sorted(found, key=lambda t: cluster_microseconds(p, rows, t))


def fits(t: ClusterTile, p: Product) -> bool:
    """Whether a tile divides the product, and its sums are in registers."""
    groups = p.k // GROUP
    whole = p.weight_rows % t.rows == 0 and groups % t.splits == 0 and not (p.gate and p.bias)
    stages = 3 <= t.stages <= groups // t.splits - t.ahead
    return whole and stages and t.columns // 2 + 64 <= min(248, REGISTERS // t.threads(p))


def _stages(p: Product, fitting: list[ClusterTile]) -> set[int]:
    """The most copies in flight, and the most with another CTA on the same SM."""
    beside = [t.stages for t in fitting if _ctas(t, p) > 1]
    return {fitting[-1].stages, *beside[-1:]}


def _ctas(t: ClusterTile, p: Product) -> int:
    """CTAs of an SM at once."""
    return min((SHARED_BYTES + RESERVED) // (t.shared_bytes(p) + RESERVED), t.ctas_by_registers)


def cluster_microseconds(p: Product, rows: int, t: ClusterTile) -> float:
    """Estimate a launch on an H200. Nothing is fitted to measurements yet."""
    tiles, blocks = t.grid(p, rows)
    ctas = tiles * blocks
    waves = -(-ctas // (SMS * max(1, _ctas(t, p))))
    each = p.k // t.splits
    copied = (t.rows + t.columns) * each * 2  # bytes of a CTA
    busiest = -(-ctas // SMS)  # CTAs of an SM
    products = busiest * t.rows * t.columns * each / 2048 / 1.7e3
    cache = max(ctas * copied / 5.5e6, busiest * copied / 0.11e6)
    weights = p.weight_rows * p.k * p.weight_bytes / min(4.3e6, 0.045e6 * min(ctas, SMS))
    exchanged = busiest * t.rows * t.columns * 4 * (t.splits > 1) / 0.06e6
    return 2.0 + 0.5 * waves + max(weights, cache) + 0.5 * products + exchanged + 0.1 * t.splits


# Any number of rows with one order of sums

ONE_ORDER_ROWS = (8, 16, 32, 64, 128, 256, 2**31 - 1)
"""Up to how many rows a tile serves."""
MANY_ROWS = 1024
"""Rows for which the last tile is chosen."""


def one_order_candidates(p: Product, rows: int, parts: int) -> list[ClusterTile]:
    """Tiles for so many rows that split K into so many parts, the most promising one first."""
    rows = min(rows, MANY_ROWS)
    columns = [c for c in (128, 256) if c <= rows] or [rows]
    found = {
        t for c in columns for t in cluster_candidates(p, c) if (t.columns, t.splits) == (c, parts)
    }
    return sorted(found, key=lambda t: cluster_microseconds(p, rows, t))


def one_order_ranges(tiles: list[ClusterTile]) -> list[list[Any]]:
    """Tiles of `ONE_ORDER_ROWS` as the table has them: from how many rows, to how many, and the tile."""
    ranges: list[list[Any]] = []
    for most, t in zip(ONE_ORDER_ROWS, tiles, strict=True):
        if ranges and ranges[-1][2] == list(astuple(t)):
            ranges[-1][1] = most
        else:
            ranges.append([ranges[-1][1] + 1 if ranges else 1, most, list(astuple(t))])
    return ranges


def _one_order_splits(p: Product) -> list[int]:
    """Parts of K worth trying, the most promising one first: as many as where the number was measured, about."""
    groups = p.k // GROUP
    found = [
        s for s in (8, 4, 2, 1)
        if groups % s == 0 and groups // s >= (12 if s == 8 else 7 if s > 1 else 3)
    ]  # fmt: skip
    few = [s for s in found if p.weight_rows // WARP_GROUP_ROWS * s <= 2.5 * SMS]
    return few or found[-1:]


def _one_order_record(
    k: int, weight_rows: int, weight: WeightType, clusters: dict[Any, Any]
) -> dict[str, Any] | None:
    p = Product(k, weight_rows, "bf16", weight=weight)
    for parts in _one_order_splits(p):
        known = {
            t.columns: t for t in clusters.get((k, weight_rows, weight), ()) if t.splits == parts
        }
        found = (
            [known[n]] if n in known else one_order_candidates(p, n, parts)[:1]
            for n in ONE_ORDER_ROWS
        )
        tiles = [t for some in found for t in some]
        if len(tiles) == len(ONE_ORDER_ROWS):
            key = {"k": k, "weight_rows": weight_rows, "weight": weight}
            return {**key, "measured": False, "tiles": one_order_ranges(tiles)}
    return None


# The table


def with_estimates(found: dict[str, Any], added: list[tuple[int, int, bool]]) -> dict[str, Any]:
    """The table with more products, and all that was not measured estimated anew."""
    measured = {}
    for record in found["few_rows"]:
        for i in record["measured"]:
            tile = Tile(*record["plain"][i - 1])
            measured[record["k"], record["n"], record["gate"], record["weight"], i] = (
                record["microseconds"][i - 1],
                tile,
            )
    keys = {(r["k"], r["n"], r["gate"]) for r in found["few_rows"]} | set(added)
    records = [_record(*key, weight, measured) for key in sorted(keys) for weight in ROW_TILES]
    return {**found, "few_rows": records, "one_order": _one_order_records(found, keys)}


def _one_order_records(
    found: dict[str, Any], keys: set[tuple[int, int, bool]]
) -> list[dict[str, Any]]:
    clusters = {
        (c["k"], c["weight_rows"], c["weight"]): [ClusterTile(*t) for _, _, t in c["tiles"]]
        for c in found["clusters"]
    }
    measured = {
        (r["k"], r["weight_rows"], r["weight"]): r
        for r in found.get("one_order", ())
        if r["measured"]
    }
    shapes = sorted({(k, n * (1 + gate)) for k, n, gate in keys})
    every = [(*shape, weight) for shape in shapes for weight in ROW_TILES]
    records = (measured.get(key) or _one_order_record(*key, clusters) for key in every)
    return [record for record in records if record]


def _record(
    k: int, n: int, gate: bool, weight: WeightType, measured: dict[Any, tuple[float, Tile]]
) -> dict[str, Any]:
    p, all_rows = Product(k, n, "bf16", gate=gate, weight=weight), range(1, ROW_TILES[weight] + 1)
    plain, norm = (
        [_table_tile(replace(p, norm=norm), i, measured) for i in all_rows]
        for norm in (False, True)
    )
    tiles = {"plain": plain} if norm == plain else {"plain": plain, "norm": norm}
    return {
        "k": k, "n": n, "gate": gate, "weight": weight,
        "measured": [i for i in all_rows if (k, n, gate, weight, i) in measured],
        "microseconds": [_table_microseconds(p, i, measured) for i in all_rows],
        **{kind: [astuple(t) for t in some] for kind, some in tiles.items()},
    }  # fmt: skip


def _table_tile(p: Product, row_tiles: int, measured: dict[Any, tuple[float, Tile]]) -> Tile:
    for more in (row_tiles, row_tiles + 1):  # one row tile too many costs little
        if (known := measured.get((p.k, p.n, p.gate, p.weight, more))) is not None:
            return known[1]
    return _estimated(p, row_tiles)


def _table_microseconds(
    p: Product, row_tiles: int, measured: dict[Any, tuple[float, Tile]]
) -> float:
    """Time of a product, with a gate or without, which changes little: whichever was measured."""
    for n, gate in ((p.weight_rows, False), (p.weight_rows // 2, True)):
        if (known := measured.get((p.k, n, gate, p.weight, row_tiles))) is not None:
            return known[0]
    plain = Product(p.k, p.weight_rows, "bf16", weight=p.weight)
    return round(
        microseconds(plain, p.row_tile * row_tiles, _table_tile(plain, row_tiles, measured)), 3
    )


def text(found: dict[str, Any]) -> str:
    """The table with a record in a line."""
    parts = [f" {json.dumps(key)}: {_part(value)}" for key, value in found.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _part(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return (
        "[\n"
        + ",\n".join(f"  {json.dumps(record, separators=(',', ':'))}" for record in value)
        + "\n ]"
    )


def products(texts: list[str]) -> Iterator[tuple[int, int, bool]]:
    """K, outputs and `gate` of each, from the command line. A gate's weight is a product without one too."""
    for k, n, *gate in (t.split(",") for t in texts):
        yield int(k), int(n), bool(gate)
        if gate:
            yield int(k), 2 * int(n), False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--add", nargs="*", default=[], metavar="K,N[,gate]")
    args = parser.parse_args()
    file = tables.file(ARCH)
    found = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(text(with_estimates(found, list(products(args.add)))), encoding="utf-8")


if __name__ == "__main__":
    main()
