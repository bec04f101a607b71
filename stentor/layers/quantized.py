"""Weights in 8 bits: int8, or float8 with 4 bits of exponent and 3 of mantissa (e4m3). Activations
keep their dtype.

The exception are products of int8 and many rows on a GPU: `kernels.w8a8_gemm`.

A weight is its 8 bits times a scale. Each output has one scale, or one for each group of
consecutive inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.kernels.linear import Backend, problem

CPU_OUTPUTS = 256
"""Outputs whose weights are made float at a time on a CPU: they stay in its cache."""
LARGEST: dict[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The dtypes of quantised weights, and the largest value of each."""


def quantize(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> its 8 bits [N, K] and scales [N, 1] float32. The largest weight of an output
    is exact."""
    exact = weight.float()
    largest = LARGEST[dtype]
    peaks = exact.abs().amax(1, keepdim=True)
    smallest = torch.finfo(torch.float32).tiny
    scale = (peaks / largest).clamp_min(smallest)
    scaled = exact / scale
    if dtype == torch.int8:
        scaled = scaled.round()
    bits = scaled.clamp(-largest, largest).to(dtype)
    return bits, scale


def dequantize(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """weight [N, K] in 8 bits times scale [N, groups] float32, rounded once to `dtype`."""
    values = weight
    if weight.dtype == torch.float8_e4m3fn:
        values = _moved(weight)
        scale = scale * 256
    wide = torch.promote_types(dtype, torch.float32)
    grouped = values.view(len(weight), scale.shape[1], -1)
    factors = scale.to(wide)[:, :, None]
    if weight.is_cuda:  # in one kernel, without a copy in float32
        out = grouped.new_empty(grouped.shape, dtype=dtype)
        return torch.mul(grouped, factors, out=out).flatten(1)
    # Converted first: a CPU has no vector code for a product of two dtypes.
    scaled = grouped.to(wide).mul_(factors)
    return scaled.to(dtype).flatten(1)


def _moved(weight: Tensor) -> Tensor:
    """float8 as float16, divided by 256. The bits are moved to their places, since a CPU converts
    ten times slower.

    Exponents of float16 are larger by 8. The sign, which int8 repeats to its left, goes to the
    first bit.
    """
    moved = weight.view(torch.int8).to(torch.int16) << 7
    bits = moved & ~(1 << 14)
    return bits.view(torch.float16)


def quantized_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] times a quantised weight [N, K] with scale [N, groups] (+ bias [N]) -> [..., N],
    not fused."""
    choice = kernels.linear.unfused(problem(x, weight, scale))
    return quantized_product(choice.backend, x, weight, scale, bias)


def quantized_product(
    backend: Backend,
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """`quantized_linear` by a backend that is chosen."""
    if backend is Backend.W8A8:
        return kernels.w8a8_gemm.fused_linear(x, weight, scale, bias=bias)
    if backend is Backend.EIGHT_BITS:
        return kernels.gemm.linear(x, weight, bias, scale=scale)
    if backend is Backend.CPU_INT8:
        y = _int8_product(x, weight, scale)
    else:
        y = _widened_product(x, weight, scale)
    if bias is None:
        return y
    return y + bias


def _widened_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    if x.device.type == "cpu":
        step = CPU_OUTPUTS
    else:
        step = len(weight)
    parts = []
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        wide = dequantize(weight[rows], scale[rows], x.dtype)
        parts.append(F.linear(x, wide))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, dim=-1)


def _int8_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """torch's product for a CPU. It rounds activations and sums to bfloat16, which is little beside
    int8."""
    ones = torch.ones(len(weight), dtype=torch.bfloat16)
    rows = x.reshape(-1, x.shape[-1]).bfloat16()
    y = torch._weight_int8pack_mm(rows, weight, ones)
    scaled = (y * scale[:, 0]).to(x.dtype)
    return scaled.view(*x.shape[:-1], len(weight))
