"""The GPU for which Triton compiles kernels here, and programmatic dependent launch (PDL, from
Hopper on).

A kernel starts while the one before it still runs and brings its weights into the cache. It waits
before it touches anything that the step computes: weights may be read before `pdl_wait`, nothing
else may be read or written. A kernel that is launched with `PDL_LAUNCH` must call `pdl_wait`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.backends import backends
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime import driver

from stentor.kernels.gpus import has_pdl
from stentor.kernels.switches import INTERPRETED, config_rows, pdl_enabled

ONE_ORDER = 100
"""Compute capability below which tensor cores add up every tile of a product in one order: measured
on an H200."""


def target_arch() -> int:
    """Its compute capability, such as 90 for sm_90. 0: there is none, or kernels are
    interpreted."""
    if INTERPRETED or not backends["nvidia"].driver.is_active():
        return 0
    arch: int = driver.active.get_current_target().arch
    return arch


TILES_AGREE: bool = target_arch() < ONE_ORDER


def tile_rows(rows: int, fixed: int) -> int:
    """The number of rows by which a tile of a product is chosen: `fixed` where that could change
    the bits of a row that must not depend on it."""
    if TILES_AGREE:
        return rows
    return config_rows(rows, fixed)


USE_PDL: bool = pdl_enabled() and has_pdl(target_arch())
PDL_LAUNCH: dict[str, bool] = (
    {"USE_PDL": True, "launch_pdl": True} if USE_PDL else {"USE_PDL": False}
)
"""Constant and launch option of a kernel that calls `pdl_wait`."""


@triton.jit
def pdl_wait(USE_PDL: tl.constexpr):
    """After this, the kernels launched before are complete. The next kernel may start and wait
    itself."""
    if USE_PDL:
        gdc_launch_dependents()
        gdc_wait()
