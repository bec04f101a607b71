"""How the products of codec decoders are cut into programs. `benchmarks/kernels/conv1d.py` measures the choices.

A tile of 128 rows by 128 outputs reads 64 bytes from the L2 for each clock that the matrix units are busy, about twice
what it gives; wider tiles read less, and two programs on a multiprocessor hide each other's beginning and end.
"""

from __future__ import annotations

from typing import NamedTuple

PROGRAMS = 128
"""Wanted of a launch before its tiles may be larger."""


class Tile(NamedTuple):
    """`outputs` + `more` (powers of two, or 0) of `rows` rows, `depth` channels at a time; at most `registers` each
    thread."""

    rows: int
    outputs: int
    more: int
    depth: int
    warps: int
    stages: int = 3
    registers: int | None = None

    def programs(self, rows: int, outputs: int) -> int:
        return -(-rows // self.rows) * -(-outputs // (self.outputs + self.more))


def dense_tile(rows: int, outputs: int, channels: int) -> Tile:
    """The largest tile that wastes little and still makes enough programs for the chip; where no tile does, the time
    is that of reading the weights, and the smallest has most of them on their way."""
    depth = 64 if channels % 64 == 0 else 32 if channels > 16 else 16
    middle = [Tile(128, 64, 0, depth, 4), Tile(64, 64, 0, depth, 4)] if outputs > 32 else []
    fitting = [*_wide(outputs, depth), *middle, Tile(64, 32, 0, depth, 4), Tile(16, 32, 0, depth, 4)]
    enough = [t for t in fitting if t.programs(rows, outputs) >= PROGRAMS]
    return enough[0] if enough else Tile(16, 16, 0, 128 if channels % 128 == 0 else depth, 4, stages=5)


def _wide(outputs: int, depth: int) -> list[Tile]:
    """Tiles of 128 rows for outputs that fill them."""
    beyond = outputs % 128
    if outputs <= 64 or 0 < beyond <= 64:
        return [Tile(128, 128, 64, depth, 8)] if outputs % 192 == 0 else []
    if outputs % 96 == 0 and beyond:
        return [Tile(128, 64, 32, depth, 8, stages=4)]
    return [Tile(128, 128, 0, depth, 8, registers=128)]
