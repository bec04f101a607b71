"""Kernels that several model families or the engine use. The package imports only
`stentor.host.machine`.

Most are written in Triton, those of `hopper_gemm` in CUDA C++. `from stentor import kernels` does
not import Triton. A caller checks `kernels.enabled(Kernel.NORM, x)` and then calls a launcher as
`kernels.norm_rope.rms_norm(...)`: the modules with kernels are imported when they are first used.
`kernels.linear` chooses for linear layers. Each kernel has a reference implementation in PyTorch
(in `layers`, `engine` or the family), which runs where it is off and which its tests compare it
with.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from stentor.kernels.switches import Kernel as Kernel
from stentor.kernels.switches import adapters_enabled as adapters_enabled
from stentor.kernels.switches import batch_invariance_supported as batch_invariance_supported
from stentor.kernels.switches import batch_invariant as batch_invariant
from stentor.kernels.switches import config_rows as config_rows
from stentor.kernels.switches import conv_kernels_enabled as conv_kernels_enabled
from stentor.kernels.switches import conv_kernels_supported as conv_kernels_supported
from stentor.kernels.switches import enabled as enabled
from stentor.kernels.switches import is_batch_invariant as is_batch_invariant
from stentor.kernels.switches import paged_attention_supported as paged_attention_supported
from stentor.kernels.switches import slot_kernels_enabled as slot_kernels_enabled
from stentor.kernels.switches import wants_channels_last as wants_channels_last

if TYPE_CHECKING:
    from stentor.kernels import conv1d as conv1d
    from stentor.kernels import experts as experts
    from stentor.kernels import frame_attention as frame_attention
    from stentor.kernels import frame_codes as frame_codes
    from stentor.kernels import gemm as gemm
    from stentor.kernels import gemv as gemv
    from stentor.kernels import hopper_gemm as hopper_gemm
    from stentor.kernels import kv_cache as kv_cache
    from stentor.kernels import linear as linear
    from stentor.kernels import lora as lora
    from stentor.kernels import norm_rope as norm_rope
    from stentor.kernels import paged_attention as paged_attention
    from stentor.kernels import prefill_attention as prefill_attention
    from stentor.kernels import rng as rng
    from stentor.kernels import sampling as sampling
    from stentor.kernels import short_attention as short_attention
    from stentor.kernels import slot_table as slot_table
    from stentor.kernels import w8a8_gemm as w8a8_gemm
    from stentor.kernels import window_attention as window_attention
else:

    def __getattr__(name: str) -> ModuleType:
        """Import a module with kernels, and with it Triton, when it is first used (PEP 562)."""
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
