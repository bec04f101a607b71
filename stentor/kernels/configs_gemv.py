"""How products of one or two rows are cut into programs. `benchmarks/kernels/gemv.py` measures the choices; the
winners on an H200 stand here.

Weights are bound to be read once from memory, so a tile decides how many bytes a multiprocessor keeps in flight.
"""

from __future__ import annotations

from typing import NamedTuple

NARROW_ROWS = 2
"""Rows up to which our products replace the library's: sums on the ordinary units, without the matrix units."""


class Tile(NamedTuple):
    """`outputs` of a program and `depth` weights of each at a time (powers of two), and its warps.

    A gated product computes `outputs` of the gate and as many of the other half. `prefetch`: a program asks for all its
    weights before it waits for the kernel in front of it.
    """

    outputs: int
    depth: int
    warps: int
    prefetch: bool = False


def narrow_tile(width: int, size: int, gate: bool) -> Tile:
    """For one or two rows: `width` outputs of `size` weights each."""
    if gate:
        return Tile(1 if size % 1024 else 2, 512, 1)
    if size % 1024:
        if size > 4096:
            return Tile(4, 2048, 4)
        return Tile(8, 256, 2) if width > 4096 else Tile(8, 1024, 2)
    if size <= 1024 and width >= 2048:
        return Tile(8, 1024, 2)
    if size <= 2048:
        return Tile(2, 2048, 4) if width <= 2048 else Tile(8, 1024, 4)
    return Tile(2, 1024, 2) if size == 4096 else Tile(4, 2048, 4)
