"""Kernels that several model families or the engine use. The package imports only `stentor.machine`.

Most are written in Triton, one in CUDA C++. `from stentor import kernels` does not import Triton. A caller asks
`kernels.enabled(Kernel.NORM, x)` and then calls a launcher as `kernels.norm_rope.rms_norm(...)`: the modules with
kernels are imported when they are first used. Each kernel has a reference implementation in PyTorch (in `layers`,
`engine` or the family), which runs where it is off and which its tests compare it with.
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
    is_cluster,
    is_few_rows,
    is_gemv,
    is_invariant_gemm,
    is_skinny,
    is_window,
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
    "cluster_gemm",
    "config_rows",
    "conv1d",
    "conv_kernels_enabled",
    "enabled",
    "experts",
    "frame_attention",
    "frame_codes",
    "gemm",
    "gemv",
    "is_batch_invariant",
    "is_cluster",
    "is_few_rows",
    "is_gemv",
    "is_invariant_gemm",
    "is_skinny",
    "is_window",
    "kv_cache",
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
    "skinny_gemm",
    "slot_kernels_enabled",
    "slot_table",
    "wants_channels_last",
    "window_attention",
]

MODULES = (
    "cluster_gemm",
    "conv1d",
    "experts",
    "frame_attention",
    "frame_codes",
    "gemm",
    "gemv",
    "kv_cache",
    "lora",
    "modulated_norm",
    "norm_rope",
    "paged_attention",
    "prefill_attention",
    "quantized_gemm",
    "rng",
    "sampling",
    "short_attention",
    "skinny_gemm",
    "slot_table",
    "window_attention",
)
"""The modules with kernels. Importing one of Triton's imports Triton."""

if TYPE_CHECKING:
    from stentor.kernels import (
        cluster_gemm,
        conv1d,
        experts,
        frame_attention,
        frame_codes,
        gemm,
        gemv,
        kv_cache,
        lora,
        modulated_norm,
        norm_rope,
        paged_attention,
        prefill_attention,
        quantized_gemm,
        rng,
        sampling,
        short_attention,
        skinny_gemm,
        slot_table,
        window_attention,
    )
else:

    def __getattr__(name: str) -> ModuleType:
        """Import a module with kernels, and with it Triton, when it is first used (PEP 562)."""
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
