"""A product, the tile of a CTA or of a cluster, and what the sources require of both. It needs
neither torch nor a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GROUP = 64
"""Columns of K that a warp multiplies at a time."""
SHARED_BYTES = 227 << 10
"""Shared memory of a CTA at most, on Hopper."""
ElementType = Literal["bf16", "f16"]
WeightType = Literal["same", "int8"]
"""Weights as the activations, or int8 with a scale for each output."""


@dataclass(frozen=True)
class Product:
    """x [M, k] @ weight [n, k].T, of any M. With `gate`, the weight has 2 n rows and SwiGLU
    follows."""

    k: int
    n: int
    dtype: ElementType
    norm: bool = False
    gate: bool = False
    bias: bool = False
    add: bool = False
    weight: WeightType = "same"
    splits: int = 0
    """Parts of K, each added up by itself. It decides the order of the sums, so by default (0) the
    shape decides it."""

    def __post_init__(self) -> None:
        if not self.splits:
            object.__setattr__(self, "splits", splits(self.weight_rows))

    @property
    def weight_rows(self) -> int:
        if self.gate:
            return self.n * 2
        return self.n

    @property
    def row_tile(self) -> int:
        """Rows of x whose products a tensor core makes at once: 8, or 4 beside int8, where a row is
        two columns."""
        if self.weight == "same":
            return 8
        return 4

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight."""
        if self.weight == "same":
            return 2
        return 1

    @property
    def macros(self) -> dict[str, int | str]:
        """Macros of the source that describe the product."""
        flags = {"GATE": self.gate, "BIAS": self.bias, "ADD": self.add}
        return {
            "K": self.k,
            "N": self.n,
            "DTYPE": f'"{self.dtype}"',
            **{name: int(on) for name, on in flags.items()},
        }


def splits(weight_rows: int) -> int:
    """Parts of K by default."""
    if weight_rows <= FEW_OUTPUTS:
        return 16
    return 8


FEW_OUTPUTS = 2560
"""Weight rows up to which a CTA has few tiles. A finer split of K then keeps enough bytes in
flight."""


@dataclass(frozen=True)
class Tile:
    """Tile of a CTA of skinny_gemm.cu or skinny_int8_gemm.cu. The macros of the same names are
    explained there."""

    row_tiles: int
    tiles: int
    half: bool
    batch: int
    batches: int
    stages: int
    min_ctas: int

    def source(self, p: Product) -> str:
        """Name of the source."""
        if p.weight == "same":
            return "skinny_gemm"
        return "skinny_int8_gemm"

    def threads(self, p: Product) -> int:
        """Threads of a CTA."""
        return p.splits * 32

    def grid(self, p: Product, rows: int) -> tuple[int, int]:
        return -(-all_tiles(p, self.half) // self.tiles), -(-rows // (p.row_tile * self.row_tiles))

    def shared_bytes(self, p: Product) -> int:
        if self.half:
            tile_rows = 8
        else:
            tile_rows = 16
        unit = tile_rows * GROUP * p.weight_bytes
        rows = self.row_tiles * p.row_tile
        sums = p.splits * self.tiles * self.row_tiles * 32 * (16 if p.weight == "same" else 8)
        if p.norm:
            squares = p.splits * rows * 4
        else:
            squares = 0
        if p.weight == "same":
            scales = 0
        else:
            scales = self.tiles * tile_rows * 4
        if p.weight == "same":
            integers = 0
        else:
            integers = p.splits * self.batch * rows * (2 * GROUP + (8 if p.norm else 4))
        return self.stages * p.splits * unit + sums + squares + scales + integers

    def macros(self, p: Product) -> dict[str, int | str]:
        return {
            **p.macros,
            "NORM": int(p.norm),
            "WARPS": p.splits,
            "ROW_TILES": self.row_tiles,
            "TILES": self.tiles,
            "HALF": int(self.half),
            "BATCH": self.batch,
            "BATCHES": self.batches,
            "STAGES": self.stages,
            "MIN_CTAS": self.min_ctas,
        }


def all_tiles(p: Product, half: bool) -> int:
    """Tiles of all outputs."""
    return p.n // (8 if p.gate or half else 16)


WARP_GROUP_ROWS = 64
"""Weight rows of four warps."""
RESERVED = 1024
"""Bytes of shared memory that the system takes of each CTA."""

REGISTERS = 65536
"""Registers of an SM."""


@dataclass(frozen=True)
class ClusterTile:
    """Tile of a cluster of cluster_gemm.cu. The macros of the same names are explained there."""

    columns: int
    warp_groups: int
    splits: int
    stages: int
    ahead: bool = False

    def source(self, p: Product) -> str:
        """Name of the source."""
        return "cluster_gemm"

    def threads(self, p: Product) -> int:
        """Threads of a CTA."""
        return self.warp_groups * 128

    @property
    def registers(self) -> int:
        """Registers per thread: accumulators plus about 80 for addressing."""
        return min(
            8 * -(-(self.columns // 2 + 80) // 8), 248, REGISTERS // (self.warp_groups * 128)
        )

    @property
    def rows(self) -> int:
        """Weight rows."""
        return self.warp_groups * WARP_GROUP_ROWS

    def grid(self, p: Product, rows: int) -> tuple[int, int]:
        return p.weight_rows // self.rows * self.splits, -(-rows // self.columns)

    def shared_bytes(self, p: Product) -> int:
        copied = self.stages * (self.rows + self.columns) * 128
        if p.weight == "int8":  # half of the weights' bytes, and three widened stages
            copied += (3 * 128 - self.stages * 64) * self.rows
        return max(copied, self.columns * (self.rows + 4) * 4) + self.columns * 9 * 4

    @property
    def ctas_by_registers(self) -> int:
        return max(1, REGISTERS // (self.warp_groups * 128 * self.registers))

    def macros(self, p: Product) -> dict[str, int | str]:
        return {
            **p.macros,
            "NORM": int(p.norm),
            "BITS": 8 * p.weight_bytes,
            "COLUMNS": self.columns,
            "WARP_GROUPS": self.warp_groups,
            "SPLITS": self.splits,
            "STAGES": self.stages,
            "AHEAD": int(self.ahead),
            "MIN_CTAS": self.ctas_by_registers,
            **product_macros(self.columns),
        }


def product_macros(columns: int) -> dict[str, str]:
    """The operands of `wgmma` with so many columns, as text."""
    count = columns // 2
    return {
        "COLUMNS_TEXT": f'"{columns}"',
        "SUM_NUMBERS": '"' + ", ".join(f"%{i}" for i in range(count)) + '"',
        "SUM_OPERANDS": ", ".join(f'"+f"(c[{i}])' for i in range(count)),
        "NEW_SUM_OPERANDS": ", ".join(f'"=f"(c[{i}])' for i in range(count)),
        "A_NUMBER": f'"{count}"',
        "B_NUMBER": f'"{count + 1}"',
    }
