"""The tile of a cluster of CTAs of cluster_gemm.cu, and what it asks of the source.

No torch here, and no GPU is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from stentor.kernels.cuda_cpp.product import Product

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
        return min(8 * -(-(self.columns // 2 + 80) // 8), 248, REGISTERS // (self.warp_groups * 128))

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
