"""How products of few rows are cut into programs. `benchmarks/gpu_products.py` measures the choices; the tables hold
the winners on an H200.

Weights are bound to be read once from memory, so a tile decides how many bytes a multiprocessor keeps in flight.
"""

from __future__ import annotations

from typing import NamedTuple

NARROW_ROWS = 2
"""Rows whose products are sums on the ordinary units, without the matrix units."""

FEW_ROWS = 32
"""Rows up to which our products replace the library's."""


class Tile(NamedTuple):
    """`outputs` of a program and `depth` weights of each at a time (powers of two), its warps, and loads in flight.

    A gated product computes `outputs` of the gate and as many of the other half. `prefetch`: a program asks for all its
    weights before it waits for the kernel in front of it.
    """

    outputs: int
    depth: int
    warps: int
    stages: int = 1
    prefetch: bool = False


def narrow_tile(width: int, size: int, gate: bool) -> Tile:
    """For one or two rows: `width` outputs of `size` weights each."""
    if gate:
        return Tile(2, 1024, 4)
    return Tile(4, 1024, 4)


def few_tile(rows: int, width: int, size: int, gate: bool) -> Tile:
    """For 3 to FEW_ROWS rows."""
    if gate:
        return Tile(32, 128, 4, 4) if width >= 8192 else Tile(16, 128, 4, 4)
    return Tile(32, 128, 4, 4) if width >= 4096 else Tile(16, 128, 4, 5)
