"""Choice of a product's tile, and whether it beats the library. No torch here, and no GPU is asked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from stentor.kernels.cuda_cpp.measured import MEASURED, MEASURED_INT8, Measured
from stentor.kernels.cuda_cpp.product import GROUP, SHARED_BYTES, SMS, Product, Tile, WeightType, all_tiles, splits

INT8_ROWS = 16
"""Rows up to which products with weights in int8 are faster than by clusters: each CTA makes integers of all rows."""
MOST_STAGES = 12
COSTS: dict[WeightType, tuple[float, ...]] = {
    "same": (0.98, 5.0e-5, 4.9e-3, 1.24e-5, 0.45e-5, 1.33e-3),
    "int8": (0.74, 2.42e-5, 5.74e-3, 2.54e-5, 0.0, 2.08e-3),
}
"""Microseconds of a launch, and of one SM: a weight, the products of a group, a byte of x, a byte of sums, a wait."""


def candidates(p: Product, row_tiles: int) -> list[Tile]:
    """Tiles worth timing, the most promising one first."""
    return sorted(_candidates(p, row_tiles), key=lambda tile: microseconds(p, p.row_tile * row_tiles, tile))


@cache
def tile(p: Product, rows: int) -> Tile:
    """The tile for so many rows. Where registers do not hold all rows at once, several CTAs share them."""
    row_tiles = -(-rows // p.row_tile)
    if p.splits == splits(p.weight_rows):
        for more in (row_tiles, row_tiles + 1):  # one row tile too many costs little
            if _key(p, more) in _measured(p):
                return _measured(p)[_key(p, more)][1]
    while not (found := candidates(p, row_tiles)):
        row_tiles = -(-row_tiles // 2)
    return found[0]


def microseconds(p: Product, rows: int, t: Tile) -> float:
    """Estimate a launch on an H200: half of 1,100 measured tiles are within 8 % of it (int8, H100: 166, 10 %).

    The parts are those of one SM: weights, tensor cores, x, the warps' sums, and waits for copies.
    """
    ctas = t.ctas(p) * -(-rows // (p.row_tile * t.row_tiles))
    ctas = -(-ctas // (SMS * t.min_ctas)) * t.min_ctas
    tile_rows = 8 if t.half else 16
    weights = ctas * t.tiles * tile_rows * p.k
    products = ctas * (p.k // GROUP) * t.row_tiles * (t.tiles + p.norm)
    x = ctas * t.row_tiles * p.row_tile * p.k * 2
    sums = ctas * p.splits * t.tiles * t.row_tiles * 32 * 16
    waits = 2 * weights / (t.stages * tile_rows * t.min_ctas * p.splits)
    counts = (1.0, weights, products, x, sums, waits)
    return sum(cost * count for cost, count in zip(COSTS[p.weight], counts, strict=True))


def library_microseconds(p: Product) -> float:
    """Estimate the library's GEMM of up to 64 rows there, with its share of the kernels for what is fused here.

    The Triton kernel of few rows with weights in 8 bits takes as long, per block of a stack.
    """
    return 5.5 + p.weight_rows * p.k * 2 / 3.7e6


@cache
def pays(products: tuple[Product, ...], rows: int) -> bool:
    """Whether these products, one after the other, are faster than the library's. A gate changes little."""
    if rows > INT8_ROWS and any(p.weight == "int8" for p in products):
        return False
    ours = sum(_best_microseconds(p, rows) for p in products)
    return ours <= sum(library_microseconds(p) for p in products)


def _best_microseconds(p: Product, rows: int) -> float:
    """Time of a product, with a gate or without: whichever was measured."""
    row_tiles = -(-rows // p.row_tile)
    table = _measured(p)
    found = table.get((p.k, p.n, False, row_tiles)) or table.get((p.k, p.n // 2, True, row_tiles))
    return found[0] if found else microseconds(p, rows, tile(p, rows))


def _measured(p: Product) -> Measured:
    return MEASURED if p.weight == "same" else MEASURED_INT8


def _key(p: Product, row_tiles: int) -> tuple[int, int, bool, int]:
    return p.k, p.n, p.gate, row_tiles


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
                fitting = [b for b in bases if _registers(p, b) <= 65536 // (p.splits * 32 * min_ctas)]
                if p.weight != "same":
                    fitting = fitting[-2:]  # the fewest batches: a batch waits for its x
                found |= {t for base in fitting for t in _with_stages(p, base)}
    return list(found)


def _registers(p: Product, t: Tile) -> int:
    """Registers of a thread, about."""
    if p.weight != "same":  # integers and scales, elements of the next batch, and sums
        lanes = t.batch if t.batch < 3 else 4 * -(-t.batch // 4)  # idle ones have registers too
        integers, pieces = 5 * t.batch * t.row_tiles, 4 * lanes * t.row_tiles
        return (integers + pieces if t.batches > 1 else max(integers, pieces)) + 6 * t.row_tiles + 48
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
