"""Programmatic dependent launch (Hopper): a kernel starts while the one before it still runs, has its weights brought
into the cache, and waits before it touches anything that the step computes.

Weights may be read before `wait`; nothing else may be read or written. A kernel launched with `LAUNCH` must wait.
"""

# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl
from triton.backends import backends
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime import driver

from stentor.kernels import INTERPRETED, early_wanted


def _hopper() -> bool:
    """Whether there is a GPU that can launch early."""
    return bool(backends["nvidia"].driver.is_active()) and driver.active.get_current_target().arch >= 90


EARLY: bool = early_wanted() and not INTERPRETED and _hopper()
LAUNCH: dict[str, bool] = {"launch_pdl": True} if EARLY else {}
"""Keywords of a launch."""

LINE = tl.constexpr(64)  # elements of 16 bits in a cache line


@triton.jit
def wait(EARLY: tl.constexpr):
    """Whatever was launched before is complete after this; what comes next may start to wait itself."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch(weight, start, size, LINES: tl.constexpr):
    """Ask for rows of `size` weights that begin at start [N, 1], up to LINES cache lines of each, in the L2 cache."""
    k = tl.minimum(tl.arange(0, LINES) * LINE, size - 1)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [weight + start + k], dtype=tl.int32, is_pure=False, pack=1
    )
