"""GEMM of any number of rows in which a row's sums have one order: each output is one sum over the
inputs in turn. Weights may have 8 bits, which are widened in registers.

A library splits long sums, by the number of rows, and those of float32 (docs/design/gpu_facts.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.configs import (
    FIXED_GEMM_ROWS,
    GemmConfig,
    gemm_config,
    quantized_gemm_config,
)
from stentor.kernels.linear import QUANTIZED_ROWS
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait, tile_rows
from stentor.kernels.quantized import GROUPED, PER_OUTPUT, read_scale, weight_bits, widen
from stentor.kernels.switches import INTERPRETED, config_rows

UNSCALED = tl.constexpr(0)


@triton.jit(do_not_specialize=["M"])
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
    stride_w,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Outputs beyond the end read the last one. With EVEN_K no inputs are masked. SCALE: weights
    have 8 bits, and `groups` scales for each output."""
    pdl_wait(USE_PDL)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    # were the last row read in their place, all CTAs would wait for the same lines
    mask_m = (offs_m < M)[:, None]
    x_ptrs = x_ptr + offs_m.to(tl.int64)[:, None] * stride_x + offs_k[None, :]
    w_ptrs = (
        weight_ptr + tl.minimum(offs_n, N - 1).to(tl.int64)[None, :] * stride_w + offs_k[:, None]
    )
    # weights in 8 bits are read once, by few rows
    eviction: tl.constexpr = "" if SCALE == UNSCALED else "evict_first"
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs + start, mask_m, 0.0)
            w = tl.load(w_ptrs + start, eviction_policy=eviction)
        else:
            x = tl.load(x_ptrs + start, mask_m & (offs_k < K - start)[None, :], 0.0)
            mask_k = (offs_k < K - start)[:, None]
            w = tl.load(w_ptrs + start, mask_k, 0.0, eviction_policy=eviction)
        if SCALE != UNSCALED:
            w = widen(w)
        if SCALE == GROUPED:
            w *= read_scale(scale_ptr, offs_n[None, :], (start + offs_k)[:, None], N, K, groups)
        if SCALE != UNSCALED:
            w = w.to(x.dtype)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    if SCALE == PER_OUTPUT:
        acc *= tl.load(scale_ptr + offs_n, offs_n < N, 0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + offs_n, offs_n < N, 0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask_m & (offs_n < N)[None, :])


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    config: GemmConfig | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """x [..., K] @ weight.T [K, N] (+ bias [N]) -> [..., N]. All have one dtype.

    scale [N, groups] float32: `weight` has 8 bits. Then x has few rows, and the time is that of
    reading the weights.
    """
    n, k = weight.shape
    rows = rows_of(x, k)
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    if scale is None:
        c = config or gemm_config(tile_rows(len(rows), FIXED_GEMM_ROWS), n, x.element_size())
        bits = scale_values = weight
        groups = 0
    else:
        c = config or quantized_gemm_config(config_rows(len(rows), QUANTIZED_ROWS), n)
        bits = weight_bits(weight)
        scale_values = scale
        groups = scale.shape[1]
    if INTERPRETED and scale is None:
        c = c.for_interpreter(n, k)
    if len(rows):
        _gemm_kernel[(triton.cdiv(n, c.block_n), triton.cdiv(len(rows), c.block_m))](
            rows,
            bits,
            scale_values,
            bits if bias is None else bias,
            out,
            len(rows),
            n,
            k,
            groups,
            rows.stride(0),
            weight.stride(0),
            SCALE=min(groups, GROUPED.value),
            BIAS=bias is not None,
            EVEN_K=k % c.block_k == 0,
            **c.launch,
            **PDL_LAUNCH,
        )
    return out.view(*x.shape[:-1], n)
