"""Facts about GPUs, by compute capability (sm_90 is 90). Nothing is imported."""

from __future__ import annotations

from typing import NamedTuple


class Gpu(NamedTuple):
    """`shared_kib`: KiB of shared memory that one CTA can have. `examples`: GPUs of this compute
    capability."""

    shared_kib: int
    examples: str


COMPILED = {
    80: Gpu(163, "A100"),
    86: Gpu(99, "RTX 3090, A10, A40"),
    89: Gpu(99, "RTX 4090, L4, L40S"),
    90: Gpu(227, "H100, H200"),
    100: Gpu(227, "B200"),
    120: Gpu(99, "RTX 5090, RTX PRO 6000"),
}
"""Every kernel compiles for these, within their shared memory. `tests/helpers/compiled.py` does
it."""

MEASURED = ("H200", "H100")
"""GPUs on which speed and memory were measured. Launch configurations are what was fastest on the
first, for weights in int8 on the second."""


def has_pdl(arch: int) -> bool:
    """Whether a GPU has programmatic dependent launch."""
    return arch >= 90


def converts_float8(arch: int) -> bool:
    """Whether a GPU converts float8 itself: from Ada on."""
    return arch >= 89


def known(name: str, arch: int | None) -> str:
    """Describe this machine's GPU for `stentor doctor`. arch: None where there is none."""
    others = f"stentor was measured on {', '.join(MEASURED)}"
    if arch is None:
        return f"none here; {others}; kernels are compiled for {', '.join(f'sm_{a}' for a in COMPILED)}"
    if any(each in name for each in MEASURED):
        return f"{name} was measured"
    if arch in COMPILED:
        tested = "kernels are compiled for it in tests"
    else:
        tested = "kernels are not compiled for it in tests"
    return f"sm_{arch}: {tested}, speed was not measured; {others}"
