"""How a product is cut into CTAs and warps. No torch here, and no GPU is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

GROUP = 64
"""Columns of K that a warp multiplies at a time."""
MAX_ROWS = 64
"""Rows up to which weights are read by skinny_gemm.cu. More rows are tiled (tiled_gemm.cu)."""
SMS = 132
"""Multiprocessors of an H100 or H200: CTAs of one wave."""
SHARED_BYTES = 227 << 10
"""Shared memory of a CTA at most, on Hopper."""
TILED_STAGES = 4
TILED_ROWS = TILED_WEIGHTS = 128
"""Rows of x and of the weights of a CTA of tiled_gemm.cu."""
TILED_SHARED_BYTES = TILED_STAGES * (TILED_ROWS + TILED_WEIGHTS) * GROUP * 2

ElementType = Literal["bf16", "f16"]


@dataclass(frozen=True)
class Product:
    """x [M, k] @ weight [n, k].T, of any M. With `gate`, the weight has 2 n rows and SwiGLU follows."""

    k: int
    n: int
    dtype: ElementType
    norm: bool = False
    gate: bool = False
    bias: bool = False
    add: bool = False
    splits: int = 0
    """Parts of K, each added up by itself. It decides the order of the sums, so by default (0) the shape decides it."""

    def __post_init__(self) -> None:
        if not self.splits:
            object.__setattr__(self, "splits", 16 if self.weight_rows <= FEW_OUTPUTS else 8)

    @property
    def weight_rows(self) -> int:
        return self.n * 2 if self.gate else self.n

    @property
    def macros(self) -> dict[str, int | str]:
        """What every kernel's source asks of the product."""
        flags = {"GATE": self.gate, "BIAS": self.bias, "ADD": self.add}
        return {"K": self.k, "N": self.n, "DTYPE": f'"{self.dtype}"', **{name: int(on) for name, on in flags.items()}}


FEW_OUTPUTS = 2560
"""Weight rows up to which a CTA has few tiles. A finer split of K then keeps enough bytes in flight."""


@dataclass(frozen=True)
class Tile:
    """What a CTA of skinny_gemm.cu does. The macros of the same names are explained there."""

    row_tiles: int
    tiles: int
    half: bool
    batch: int
    batches: int
    stages: int
    min_ctas: int

    def ctas(self, p: Product) -> int:
        """CTAs for 8 * row_tiles rows."""
        return -(-_all_tiles(p, self.half) // self.tiles)

    def shared_bytes(self, p: Product) -> int:
        unit = (8 if self.half else 16) * GROUP * 2
        sums = p.splits * self.tiles * self.row_tiles * 32 * 16
        squares = p.splits * self.row_tiles * 8 * 4 if p.norm else 0
        return self.stages * p.splits * unit + sums + squares

    def macros(self, p: Product) -> dict[str, int | str]:
        return {
            **p.macros,
            "NORM": int(p.norm),
            "SCALED": 0,
            "WARPS": p.splits,
            "ROW_TILES": self.row_tiles,
            "TILES": self.tiles,
            "HALF": int(self.half),
            "BATCH": self.batch,
            "BATCHES": self.batches,
            "STAGES": self.stages,
            "MIN_CTAS": self.min_ctas,
        }


def tiled_macros(p: Product) -> dict[str, int | str]:
    """Macros of tiled_gemm.cu."""
    own = {"NORM": 0, "SCALED": int(p.norm), "SPLITS": p.splits, "STAGES": TILED_STAGES, "MIN_CTAS": 1}
    return {**p.macros, **own}


def tiled_grid(p: Product, rows: int) -> tuple[int, int]:
    return -(-p.weight_rows // TILED_WEIGHTS), -(-rows // TILED_ROWS)


def norm_macros(p: Product) -> dict[str, int | str]:
    """Macros of norm_rows.cu. They are the same for all products of one K and split."""
    plain = Product(p.k, GROUP, p.dtype, splits=p.splits)
    return {**plain.macros, "NORM": 0, "SCALED": 0, "SPLITS": p.splits, "MIN_CTAS": 1}


def candidates(p: Product, row_tiles: int) -> list[Tile]:
    """Tiles worth timing, the most promising one first."""
    return sorted(_candidates(p, row_tiles), key=lambda tile: microseconds(p, 8 * row_tiles, tile))


@cache
def tile(p: Product, rows: int) -> Tile:
    """The tile for so many rows. Where registers do not hold all rows at once, several CTAs share them."""
    row_tiles = -(-rows // 8)
    while not (found := candidates(p, row_tiles)):
        row_tiles = -(-row_tiles // 2)
    return found[0]


def microseconds(p: Product, rows: int, t: Tile) -> float:
    """What a launch takes on an H200, about: half of 1,100 measured tiles are within 8 % of it (docs/log.md).

    The parts are those of one SM: weights, tensor cores, x, the warps' sums, and waits for copies.
    """
    ctas = t.ctas(p) * -(-rows // (8 * t.row_tiles))
    ctas = -(-ctas // (SMS * t.min_ctas)) * t.min_ctas
    tile_rows = 8 if t.half else 16
    weights = ctas * t.tiles * tile_rows * p.k * 2
    products = ctas * (p.k // GROUP) * t.row_tiles * (t.tiles + p.norm)
    x = ctas * t.row_tiles * 8 * p.k * 2
    sums = ctas * p.splits * t.tiles * t.row_tiles * 32 * 16
    waits = weights / (t.stages * tile_rows * t.min_ctas * p.splits)
    return 0.98 + 2.5e-5 * weights + 4.9e-3 * products + 1.24e-5 * x + 0.45e-5 * sums + 1.33e-3 * waits


def library_microseconds(p: Product) -> float:
    """What the library's GEMM of up to 64 rows takes there, with its share of the kernels for what is fused here."""
    return 5.5 + p.weight_rows * p.k * 2 / 3.7e6


@cache
def pays(products: tuple[Product, ...], rows: int) -> bool:
    """Whether these products, one after the other, are faster than the library's."""
    ours = sum(microseconds(p, rows, tile(p, rows)) for p in products)
    return ours <= sum(library_microseconds(p) for p in products)


def _all_tiles(p: Product, half: bool) -> int:
    return p.n // (8 if p.gate or half else 16)


def _candidates(p: Product, row_tiles: int) -> list[Tile]:
    found = set()
    groups = -(-(p.k // GROUP) // p.splits)
    for half in (False, True):
        if (half and (p.gate or p.n > 4096)) or (not half and not p.gate and p.n % 16):
            continue
        count = _all_tiles(p, half)
        for min_ctas in (1, 2):
            if p.splits * min_ctas > 16:  # warps of an SM: 128 registers for each thread
                continue
            for wanted in (SMS, 2 * SMS, 4 * SMS):
                tiles = -(-count // wanted)
                for batch in (b for b in range(1, groups + 1) if groups % b == 0):
                    base = Tile(row_tiles, tiles, half, batch, groups // batch, 1, min_ctas)
                    if _registers(base) <= 65536 // (p.splits * 32 * min_ctas):
                        found |= set(_with_stages(p, base))
    return list(found)


def _registers(t: Tile) -> int:
    """Registers of a thread, about."""
    x = t.batch * t.row_tiles * 8 * (2 if t.batches > 1 else 1)
    return x + t.tiles * t.row_tiles * 4 + 16 + 40


def _with_stages(p: Product, t: Tile) -> list[Tile]:
    """With as many copies in flight as fit, and with half as many."""
    units = t.tiles * t.batch * t.batches
    limit = SHARED_BYTES // t.min_ctas - 1024
    fitting = [s for s in range(1, min(units, 12) + 1) if replace(t, stages=s).shared_bytes(p) <= limit]
    return [replace(t, stages=s) for s in {fitting[-1], max(1, fitting[-1] // 2)}] if fitting else []
