"""The GPU for which Triton compiles kernels here."""

from __future__ import annotations

from triton.backends import backends
from triton.runtime import driver

from stentor.kernels.switches import INTERPRETED


def target_arch() -> int:
    """Its compute capability, such as 90 for sm_90. 0: there is none, or kernels are interpreted."""
    if INTERPRETED or not backends["nvidia"].driver.is_active():
        return 0
    arch: int = driver.active.get_current_target().arch
    return arch
