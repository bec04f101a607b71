"""Weights in 8 bits in registers: int8, and float8 (e4m3) on every GPU, also where the hardware
does not convert it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.gpus import converts_float8
from stentor.kernels.pdl import target_arch

NO_SCALE = tl.constexpr(0)
PER_OUTPUT = tl.constexpr(1)
GROUPED = tl.constexpr(2)
"""How many scales an output has. The last stands for more than one."""


CONVERTS_FLOAT8: bool = converts_float8(target_arch())


def weight_bits(weight: Tensor) -> Tensor:
    """The weight as a kernel reads it: float8 as bytes where the GPU has no conversion (see
    `widen`)."""
    if weight.dtype == torch.float8_e4m3fn and not CONVERTS_FLOAT8:
        return weight.view(torch.uint8)
    return weight


@triton.jit
def widen(w):
    """Weights in float32. Bytes are float8: their bits are moved to where float16 has them."""
    if w.dtype == tl.uint8:
        bits = w.to(tl.uint16)
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
        wide = half.to(tl.float32) * 256.0  # an exponent of float16 is larger by 8
    else:
        wide = w.to(tl.float32)
    return wide


@triton.jit
def read_scale(scale_ptr, offs_n, offs_k, N, K, groups):
    """The scales [N, groups] of some weights. A group is K / groups consecutive inputs."""
    group = tl.minimum(offs_k, K - 1) // (K // groups)
    return tl.load(scale_ptr + tl.minimum(offs_n, N - 1).to(tl.int64) * groups + group)
