"""Choice of the Triton kernels that serve a tensor. This module does not import Triton.

Kernels have no gradients, so they serve inference mode only. Each has a PyTorch reference
implementation, which runs where a kernel is off. The environment variable STENTOR_KERNELS_OFF lists
the kernels to leave out, separated by commas, or `all`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from importlib.util import find_spec

import torch
from torch import Tensor


class Kernel(StrEnum):
    """The names in STENTOR_KERNELS_OFF."""

    NORM = "norm"
    """RMSNorm, alone or after a residual addition."""
    SILU = "silu"
    """SwiGLU's activation."""
    ROPE = "rope"
    """RoPE of queries and keys, with the norms of their heads."""
    PAGED = "paged"
    """Attention over the paged history of a request."""
    DEPTH = "depth"
    """Attention of a depth loop."""
    LOCAL = "local"
    """Attention over one short sequence."""
    QK_NORM_ROPE = "qk_norm_rope"
    """Attention kernels apply the norms of the heads and RoPE themselves."""
    SAMPLE = "sample"
    """Top-k and top-p sampling."""
    SAMPLE_RANKED = "sample_ranked"
    """Sampling by rank, top-p before the temperature."""
    FUSED_SAMPLING = "fused_sampling"
    """Sampling that filters the logits before and writes the next token's embedding after."""
    GEMV = "gemv"
    """Linear layers of one or two rows, fused with norm, gate, bias and residual addition."""
    SKINNY_GEMM = "skinny_gemm"
    """Linear layers of a few rows on Hopper GPUs, fused with norm, gate, bias and residual
    addition."""
    CLUSTER_GEMM = "cluster_gemm"
    """Linear layers of some dozens to some hundreds of rows on Hopper GPUs, fused as those of a few
    rows."""
    GEMM = "gemm"
    """Linear layers of any number of rows, where results must not depend on it."""
    QUANTIZED = "quantized"
    """Linear layers of few rows with weights in 8 bits."""
    W8A8 = "w8a8"
    """Linear layers with weights in int8 that make activations int8 too, fused as those of a few
    rows."""
    EXPERTS = "experts"
    """A mixture of experts: norm and choice, and products of each expert's tokens."""
    WINDOW = "window"
    """Windowed attention of codecs, where results must not depend on how a stream was cut."""
    LORA = "lora"
    """Low-rank weights of each row's adapter."""
    CONV1D = "conv1d"
    """Convolutions and activations of codecs in 16 bits."""
    SLOTS = "slots"
    """Gathering, random numbers and commit of the slot table."""
    EMBED = "embed"
    """Embeddings of a frame of codes and of a prompt."""
    PATCH = "patch"
    """Tokens of a patch of latents, scalar quantisation, and the stop head."""
    FLOW = "flow"
    """Guidance and Euler step of a flow."""
    PDL = "pdl"
    """Programmatic dependent launch: a kernel may start before the one in front of it has ended."""


def parse_off(value: str) -> frozenset[Kernel]:
    """The kernels that `value`, a list separated by commas, switches off. ValueError for an unknown
    name."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    allowed = ", ".join(Kernel)
    for name in names:
        if name != "all" and name not in list(Kernel):
            raise ValueError(
                f"STENTOR_KERNELS_OFF: no kernel is named {name!r}; allowed are all, {allowed}"
            )
    if "all" in names:
        return frozenset(Kernel)
    return frozenset(Kernel(name) for name in names)


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton interprets the kernels on CPU tensors, slowly: for tests."""
AVAILABLE = find_spec("triton") is not None
"""Triton is installed."""
OFF = parse_off(os.environ.get("STENTOR_KERNELS_OFF", ""))

CUDA_CPP = frozenset((Kernel.SKINNY_GEMM, Kernel.CLUSTER_GEMM))
"""Kernels of linear layers in CUDA C++."""
NO_KERNELS: frozenset[Kernel] = frozenset()
_LINEAR = CUDA_CPP | {Kernel.GEMV, Kernel.GEMM, Kernel.QUANTIZED, Kernel.W8A8}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# of the thread, as torch's inference mode is
_INVARIANT = ContextVar("stentor_batch_invariant", default=False)


@contextmanager
def batch_invariant(enabled: bool) -> Iterator[None]:
    """Inside, if `enabled`, kernels add up a row in one order, whatever the number of rows and
    wherever it stands.

    It holds for this thread, and for what is captured meanwhile. Kernels then serve products of any
    number of rows, and attention over a history does not depend on how it was split.
    """
    before = _INVARIANT.set(enabled)
    try:
        yield
    finally:
        _INVARIANT.reset(before)


def is_batch_invariant() -> bool:
    """Whether the rows of a launch must not depend on each other's number."""
    return _INVARIANT.get()


def config_rows(rows: int, fixed: int) -> int:
    """The number of rows by which a launch config is chosen: `fixed` where results must not depend
    on their number."""
    if is_batch_invariant():
        return fixed
    return rows


def _runs(kernel: Kernel, device: torch.device) -> bool:
    return AVAILABLE and kernel not in OFF and (device.type == "cuda" or INTERPRETED)


def enabled(kernel: Kernel, x: Tensor) -> bool:
    """Whether `kernel` serves x: by its device and dtype, in inference mode."""
    return _runs(kernel, x.device) and x.dtype in _DTYPES and torch.is_inference_mode_enabled()


def linear_kernels(x: Tensor) -> frozenset[Kernel]:
    """The kernels of linear layers that serve x. Those in CUDA C++ need more."""
    here = AVAILABLE and (x.device.type == "cuda" or INTERPRETED)
    if here and x.dtype in _DTYPES and torch.is_inference_mode_enabled():
        return _LINEAR - OFF
    return NO_KERNELS


def conv_kernels_supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether convolutions of a codec of this device and dtype will be kernels."""
    return wants_channels_last(dtype) and _runs(Kernel.CONV1D, device)


def slot_kernels_enabled(device: torch.device) -> bool:
    """Whether kernels gather and commit the rows of the slot table and make their random
    numbers."""
    return _runs(Kernel.SLOTS, device) and torch.is_inference_mode_enabled()


def adapters_enabled(device: torch.device) -> bool:
    """Whether kernels multiply by the low-rank weights of rows."""
    return _runs(Kernel.LORA, device) and torch.is_inference_mode_enabled()


def paged_attention_supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention over pages will be a kernel in an engine of this device and dtype."""
    return _runs(Kernel.PAGED, device) and dtype in _DTYPES


def batch_invariance_supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `batch_invariant` reaches every kernel that a step of an engine of this device and
    dtype would use."""
    # which have no part in it, or change no sum
    faster = {Kernel.GEMV, Kernel.SKINNY_GEMM, Kernel.CLUSTER_GEMM, Kernel.W8A8, Kernel.PDL}
    return paged_attention_supported(device, dtype) and faster >= OFF


def conv_kernels_enabled(x: Tensor) -> bool:
    """Whether kernels run the convolutions and activations of a codec on x. They take 16 bits
    only."""
    return wants_channels_last(x.dtype) and enabled(Kernel.CONV1D, x)


def wants_channels_last(dtype: torch.dtype) -> bool:
    """Whether convolution weights in `dtype` should lie in memory as the convolution kernels read
    them."""
    return dtype.itemsize == 2 and AVAILABLE and Kernel.CONV1D not in OFF


def pdl_enabled() -> bool:
    """Whether kernels may use programmatic dependent launch."""
    return Kernel.PDL not in OFF
