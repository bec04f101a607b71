"""The tile of a cluster of CTAs of cluster_gemm.cu, and what it asks of the source.

No torch here, and no GPU is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from stentor.kernels.cuda_cpp.product import GROUP, SHARED_BYTES, SMS, Product

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

    @property
    def threads(self) -> int:
        return self.warp_groups * 128

    @property
    def registers(self) -> int:
        """Registers per thread: accumulators plus about 80 for addressing."""
        return min(8 * -(-(self.columns // 2 + 80) // 8), 248, REGISTERS // self.threads)

    @property
    def rows(self) -> int:
        """Weight rows."""
        return self.warp_groups * WARP_GROUP_ROWS

    def fits(self, p: Product) -> bool:
        """Whether it divides the product, and its sums are in registers."""
        groups = p.k // GROUP
        whole = p.weight_rows % self.rows == 0 and groups % self.splits == 0 and not (p.gate and p.bias)
        stages = 3 <= self.stages <= groups // self.splits - self.ahead
        return whole and stages and self.columns // 2 + 64 <= min(248, REGISTERS // self.threads)

    def grid(self, p: Product, rows: int) -> tuple[int, int]:
        return p.weight_rows // self.rows * self.splits, -(-rows // self.columns)

    def shared_bytes(self, p: Product) -> int:
        copied = self.stages * (self.rows + self.columns) * 128
        if p.weight == "int8":  # half of the weights' bytes, and three widened stages
            copied += (3 * 128 - self.stages * 64) * self.rows
        return max(copied, self.columns * (self.rows + 4) * 4) + self.columns * 9 * 4

    def ctas(self, p: Product) -> int:
        """CTAs of an SM at once."""
        return min((SHARED_BYTES + RESERVED) // (self.shared_bytes(p) + RESERVED), self.ctas_by_registers)

    @property
    def ctas_by_registers(self) -> int:
        return max(1, REGISTERS // (self.threads * self.registers))

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


def candidates(p: Product, rows: int) -> list[ClusterTile]:
    """Tiles worth timing, the most promising one first."""
    found = set()
    for blocks in range(-(-rows // 256), -(-rows // 40) + 1):
        columns = 8 * -(-rows // (8 * blocks))
        for warp_groups in (1, 2, 4):
            for splits in (1, 2, 4, 8):
                groups = p.k // GROUP // splits
                bases = (ClusterTile(columns, warp_groups, splits, s, s < groups) for s in range(3, 17))
                fitting = [t for t in bases if t.fits(p) and t.shared_bytes(p) <= SHARED_BYTES]
                found |= {t for t in fitting if t.stages in _stages(p, fitting)}
    return sorted(found, key=lambda t: microseconds(p, rows, t))


def _stages(p: Product, fitting: list[ClusterTile]) -> set[int]:
    """The most copies in flight, and the most with another CTA on the same SM."""
    beside = [t.stages for t in fitting if t.ctas(p) > 1]
    return {fitting[-1].stages, *beside[-1:]}


def microseconds(p: Product, rows: int, t: ClusterTile) -> float:
    """Estimate a launch on an H200. Nothing is fitted to measurements yet."""
    tiles, blocks = t.grid(p, rows)
    ctas = tiles * blocks
    waves = -(-ctas // (SMS * max(1, t.ctas(p))))
    each = p.k // t.splits
    copied = (t.rows + t.columns) * each * 2  # bytes of a CTA
    busiest = -(-ctas // SMS)  # CTAs of an SM
    products = busiest * t.rows * t.columns * each / 2048 / 1.7e3
    cache = max(ctas * copied / 5.5e6, busiest * copied / 0.11e6)
    weights = p.weight_rows * p.k * p.weight_bytes / min(4.3e6, 0.045e6 * min(ctas, SMS))
    exchanged = busiest * t.rows * t.columns * 4 * (t.splits > 1) / 0.06e6
    return 2.0 + 0.5 * waves + max(weights, cache) + 0.5 * products + exchanged + 0.1 * t.splits
