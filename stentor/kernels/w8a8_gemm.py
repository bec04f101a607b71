"""Linear layers of many rows, weights and activations in 8 bits (W8A8), with norm, gate, bias and
residual addition.

One launch divides each row of x by its largest value and makes 8 bits of it, after the norm.
Another multiplies: the sums of int8 are exact in int32, and are scaled by row and output. float8 is
taken too, for benchmarks: with a scale for each row its blocks miss the cosine of 0.999 that int8
has.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.configs import GemmConfig, w8a8_config
from stentor.kernels.norm_rope import normed
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.switches import INTERPRETED


class QuantizedRows(NamedTuple):
    """Rows in 8 bits [M, K], and their scales [M, 1] float32."""

    bits: Tensor
    scale: Tensor


@triton.jit
def _quantize_kernel(
    x_ptr,
    norm_ptr,
    bits_ptr,
    scale_ptr,
    stride_x,
    size,
    eps,
    NORM: tl.constexpr,
    CAST_FIRST: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    if NORM:
        weight = tl.load(norm_ptr + offs, mask, 0.0).to(tl.float32)
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(x_ptr + row * stride_x + offs, mask, 0.0)
    if NORM:
        x = normed(x, weight, size, eps, 0, CAST_FIRST)
    y = x.to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(y), 0), 1e-12) / LARGEST  # a row of zeros stays zero
    y = y * (1.0 / scale)
    if bits_ptr.dtype.element_ty == tl.int8:
        y = tl.floor(y + 0.5)
    y = tl.minimum(tl.maximum(y, -LARGEST), LARGEST)
    tl.store(bits_ptr + row * size + offs, y.to(bits_ptr.dtype.element_ty), mask)
    tl.store(scale_ptr + row, scale)


def quantize_rows(
    x: Tensor, dtype: torch.dtype, norm: tuple[Tensor, float, bool] | None = None
) -> QuantizedRows:
    """x [..., K], or its RMSNorm by (weight, eps, weight_after_cast), in 8 bits with a scale for
    each row."""
    size = x.shape[-1]
    rows = rows_of(x, size)
    bits = torch.empty(len(rows), size, dtype=dtype, device=x.device)
    scale = torch.empty(len(rows), 1, dtype=torch.float32, device=x.device)
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    weight, eps, weight_after_cast = (rows, 0.0, False) if norm is None else norm
    block = triton.next_power_of_2(size)
    _quantize_kernel[(len(rows),)](
        rows,
        weight,
        bits,
        scale,
        rows.stride(0),
        size,
        eps,
        NORM=norm is not None,
        CAST_FIRST=weight_after_cast,
        LARGEST=float(largest),
        BLOCK=block,
        num_warps=min(16, max(4, block // 512)),
        **PDL_LAUNCH,
    )
    return QuantizedRows(bits, scale)


@triton.jit(do_not_specialize=["M"])
def _gemm_kernel(
    x_ptr,
    scale_x_ptr,
    weight_ptr,
    scale_w_ptr,
    bias_ptr,
    residual_ptr,
    out_ptr,
    M,
    N,
    K,
    stride_residual,
    GATE: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """N outputs. With GATE a tile has columns of the gate and of the other half in turns, so that a
    thread has both."""
    width: tl.constexpr = BLOCK_N // 2 if GATE else BLOCK_N  # outputs of a CTA
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    column = tl.arange(0, BLOCK_N)
    # Outputs beyond the end read the weights of the last one.
    if GATE:
        offs_w = tl.minimum(tl.program_id(0) * width + column // 2, N - 1) + column % 2 * N
    else:
        offs_w = tl.minimum(tl.program_id(0) * width + column, N - 1)
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k = tl.arange(0, BLOCK_K)
    mask_m = (offs_m < M)[:, None]
    scale_w = tl.load(scale_w_ptr + offs_w)
    w_ptrs = weight_ptr + offs_w.to(tl.int64)[None, :] * K + offs_k[:, None]
    x_ptrs = x_ptr + offs_m.to(tl.int64)[:, None] * K + offs_k[None, :]
    pdl_wait(USE_PDL)
    acc = tl.zeros(
        [BLOCK_M, BLOCK_N], tl.int32 if x_ptr.dtype.element_ty == tl.int8 else tl.float32
    )
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs + start, mask_m, 0.0)
            w = tl.load(w_ptrs + start)
        else:
            x = tl.load(x_ptrs + start, mask_m & (offs_k < K - start)[None, :], 0.0)
            w = tl.load(w_ptrs + start, (offs_k < K - start)[:, None], 0.0)
        acc = tl.dot(x, w, acc, out_dtype=acc.dtype)
    scale_x = tl.load(scale_x_ptr + offs_m, offs_m < M, 0.0)
    y = acc.to(tl.float32) * scale_x[:, None] * scale_w[None, :]
    if BIAS:
        y += tl.load(bias_ptr + offs_w).to(tl.float32)[None, :]
    y = y.to(dtype).to(tl.float32)
    if GATE:
        gate, up = tl.split(tl.reshape(y, [BLOCK_M, width, 2]))
        y = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up
    offs_n = tl.program_id(0) * width + tl.arange(0, width)
    mask = mask_m & (offs_n < N)[None, :]
    if ADD:
        residual_ptrs = (
            residual_ptr + offs_m.to(tl.int64)[:, None] * stride_residual + offs_n[None, :]
        )
        y = y.to(dtype).to(tl.float32) + tl.load(residual_ptrs, mask, 0.0).to(tl.float32)
    tl.store(out_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :], y.to(dtype), mask)


def product(
    x: QuantizedRows,
    weight: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
    config: GemmConfig | None = None,
) -> Tensor:
    """x [M, K] times weight [N, K] of its dtype with scale [N, 1] (+ bias [N]) (+ residual [M, N])
    -> [M, N].

    The result has `dtype`. With `gate` it is SwiGLU's silu(first half) * second half, [M, N / 2].
    """
    m, k = x.bits.shape
    n = len(weight) // 2 if gate else len(weight)
    out = torch.empty(m, n, dtype=dtype, device=weight.device)
    if residual is None:
        added = out
    else:
        added = residual
    c = config or w8a8_config(m, len(weight))
    if INTERPRETED:
        c = c.for_interpreter(len(weight), c.block_k)
    _gemm_kernel[(triton.cdiv(len(weight), c.block_n), triton.cdiv(m, c.block_m))](
        x.bits,
        x.scale,
        weight,
        scale,
        weight if bias is None else bias,
        added,
        out,
        m,
        n,
        k,
        added.stride(0),
        GATE=gate,
        BIAS=bias is not None,
        ADD=residual is not None,
        EVEN_K=k % c.block_k == 0,
        **c.launch,
        **PDL_LAUNCH,
    )
    return out


def fused_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    norm: tuple[Tensor, float, bool] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual) for x [..., K], weight [N, K] in int8: see
    `layers.linear`."""
    if gate:
        n = len(weight) // 2
    else:
        n = len(weight)
    if residual is None:
        added = None
    else:
        added = rows_of(residual, n)
    out = product(quantize_rows(x, weight.dtype, norm), weight, scale, x.dtype, added, gate, bias)
    return out.view(*x.shape[:-1], n)
