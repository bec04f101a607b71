"""The GPU for which Triton compiles kernels here."""

from __future__ import annotations

from triton.backends import backends
from triton.runtime import driver

from stentor.kernels.switches import INTERPRETED, config_rows

ONE_ORDER = 100
"""Compute capability below which tensor cores add up every tile of a product in one order: measured on an H200."""


def target_arch() -> int:
    """Its compute capability, such as 90 for sm_90. 0: there is none, or kernels are interpreted."""
    if INTERPRETED or not backends["nvidia"].driver.is_active():
        return 0
    arch: int = driver.active.get_current_target().arch
    return arch


TILES_AGREE: bool = target_arch() < ONE_ORDER


def tile_rows(rows: int, fixed: int) -> int:
    """The number of rows by which a tile of a product is chosen: `fixed` where that could change the bits of a row that
    must not depend on it."""
    return rows if TILES_AGREE else config_rows(rows, fixed)
