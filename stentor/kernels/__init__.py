"""Kernels that several model families or the engine use. The package imports only `stentor.machine`.

Most are written in Triton, those of `hopper_gemm` in CUDA C++. `from stentor import kernels` does not import Triton. A
caller asks `kernels.enabled(Kernel.NORM, x)` and then calls a launcher as `kernels.norm_rope.rms_norm(...)`: the
modules with kernels are imported when they are first used. `kernels.linear` chooses for linear layers. Each kernel has
a reference implementation in PyTorch (in `layers`, `engine` or the family), which runs where it is off and which its
tests compare it with.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from stentor.kernels.switches import (
    Kernel,
    adapters_enabled,
    batch_invariance_supported,
    batch_invariant,
    config_rows,
    conv_kernels_enabled,
    enabled,
    is_batch_invariant,
    paged_attention_supported,
    slot_kernels_enabled,
    wants_channels_last,
)

__all__ = [
    "MODULES",
    "Kernel",
    "adapters_enabled",
    "batch_invariance_supported",
    "batch_invariant",
    "config_rows",
    "conv1d",
    "conv_kernels_enabled",
    "enabled",
    "experts",
    "frame_attention",
    "frame_codes",
    "gemm",
    "gemv",
    "hopper_gemm",
    "is_batch_invariant",
    "kv_cache",
    "linear",
    "lora",
    "modulated_norm",
    "norm_rope",
    "paged_attention",
    "paged_attention_supported",
    "prefill_attention",
    "quantized_gemm",
    "rng",
    "sampling",
    "short_attention",
    "slot_kernels_enabled",
    "slot_table",
    "wants_channels_last",
    "window_attention",
]

MODULES = (
    "conv1d",
    "experts",
    "frame_attention",
    "frame_codes",
    "gemm",
    "gemv",
    "hopper_gemm",
    "kv_cache",
    "linear",
    "lora",
    "modulated_norm",
    "norm_rope",
    "paged_attention",
    "prefill_attention",
    "quantized_gemm",
    "rng",
    "sampling",
    "short_attention",
    "slot_table",
    "window_attention",
)
"""The modules with kernels, and `linear`, which chooses. Importing one of Triton's imports Triton."""

if TYPE_CHECKING:
    from stentor.kernels import (
        conv1d,
        experts,
        frame_attention,
        frame_codes,
        gemm,
        gemv,
        hopper_gemm,
        kv_cache,
        linear,
        lora,
        modulated_norm,
        norm_rope,
        paged_attention,
        prefill_attention,
        quantized_gemm,
        rng,
        sampling,
        short_attention,
        slot_table,
        window_attention,
    )
else:

    def __getattr__(name: str) -> ModuleType:
        """Import a module with kernels, and with it Triton, when it is first used (PEP 562)."""
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
