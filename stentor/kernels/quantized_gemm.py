"""GEMM of a few rows, bound by reading the weights, which have 8 bits. They are widened in
registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.configs import quantized_gemm_config
from stentor.kernels.linear import QUANTIZED_ROWS
from stentor.kernels.quantized import GROUPED, PER_OUTPUT, read_scale, weight_bits, widen
from stentor.kernels.switches import config_rows


@triton.jit
def _gemm_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    M,
    N,
    K,
    groups,
    stride_x,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_n = offs_n < N
    mask_m = offs_m < M
    x_ptrs = x_ptr + offs_m[:, None].to(tl.int64) * stride_x
    w_ptrs = weight_ptr + offs_n[None, :].to(tl.int64) * K
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask_k = offs_k < K
        x = tl.load(x_ptrs + offs_k[None, :], mask_m[:, None] & mask_k[None, :], 0.0)
        w = tl.load(
            w_ptrs + offs_k[:, None],
            mask_k[:, None] & mask_n[None, :],
            0.0,
            eviction_policy="evict_first",
        )
        w = widen(w)
        if SCALE == GROUPED:
            w *= read_scale(scale_ptr, offs_n[None, :], offs_k[:, None], N, K, groups)
        acc = tl.dot(x, w.to(x.dtype), acc, input_precision="ieee")
    if SCALE == PER_OUTPUT:
        acc *= tl.load(scale_ptr + offs_n, mask_n, 0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + offs_n, mask_n, 0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + offs_m[:, None].to(tl.int64) * N + offs_n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask_m[:, None] & mask_n[None, :])


def linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., K] times weight [N, K] in 8 bits with scale [N, groups] float32 (+ bias [N]) -> [...,
    N]."""
    n, k = weight.shape
    rows = rows_of(x, k)
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    config = quantized_gemm_config(config_rows(len(rows), QUANTIZED_ROWS), n)
    bits = weight_bits(weight)
    grid = (triton.cdiv(n, config.block_n), triton.cdiv(len(rows), config.block_m))
    _gemm_kernel[grid](
        rows,
        bits,
        scale,
        bits if bias is None else bias,
        out,
        len(rows),
        n,
        k,
        scale.shape[1],
        rows.stride(0),
        SCALE=min(scale.shape[1], GROUPED.value),
        BIAS=bias is not None,
        **config.launch,
    )
    return out.view(*x.shape[:-1], n)
