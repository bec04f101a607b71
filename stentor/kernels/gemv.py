"""GEMV: linear layers of one or two rows, bound by reading the weights once.

The norm before, and the gate, bias or residual addition after are fused. The norm's weight
multiplies the row as it is read, and 1 / rms multiplies the finished sum. So the row is read once,
and no weight waits for it. Weights in 8 bits are multiplied as they are, and their scale multiplies
the finished sum too, where an output has one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.configs import GemvConfig, gemv_config
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.quantized import GROUPED, PER_OUTPUT, read_scale, weight_bits, widen
from stentor.kernels.switches import INTERPRETED


@triton.jit
def _load_weights(weight_ptr, row_offs, offs_k, K, mask_n, EVEN_K: tl.constexpr):
    """BLOCK_K weights of some outputs. Nothing reads them again in this step."""
    if EVEN_K:
        w = tl.load(weight_ptr + row_offs + offs_k[None, :], eviction_policy="evict_first")
    else:
        ptrs = weight_ptr + row_offs + offs_k[None, :]
        w = tl.load(ptrs, mask_n & (offs_k < K)[None, :], 0.0, eviction_policy="evict_first")
    return w


@triton.jit
def _widened(w, scale_ptr, offs_n, offs_k, N, K, groups, SCALE: tl.constexpr):
    """Weights [BLOCK_N, BLOCK_K] in float32, times the scales of their groups if outputs have
    several."""
    w = widen(w)
    if SCALE == GROUPED:
        w *= read_scale(scale_ptr, offs_n[:, None], offs_k[None, :], N, K, groups)
    return w


@triton.jit
def _scales(scale_ptr, offs_n, mask, N, GATE: tl.constexpr, SCALE: tl.constexpr):
    """Load the scales of some outputs, and of the second half's."""
    scale = 1.0
    scale_up = 1.0
    if SCALE == PER_OUTPUT:
        scale = tl.load(scale_ptr + offs_n, mask, 0.0)
        if GATE:
            scale_up = tl.load(scale_ptr + N + offs_n, mask, 0.0)
    return scale, scale_up


@triton.jit
def _load_row(x_ptr, norm_ptr, offs_k, K, NORM: tl.constexpr):
    """(BLOCK_K elements of a row times the norm's weight, their squares before that) in float32."""
    x = tl.load(x_ptr + offs_k, offs_k < K, 0.0).to(tl.float32)
    square = x * x
    if NORM:
        x = x * tl.load(norm_ptr + offs_k, offs_k < K, 0.0).to(tl.float32)
    return x, square


@triton.jit
def _epilogue(
    y, up, squares, residual_ptr, bias_ptr, offs_n, mask_n, K, eps,
    dtype: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """The outputs of one row from its sums, rounded as the layers round."""
    rstd = 1.0
    if NORM:
        rstd = tl.rsqrt(tl.sum(squares, 0) / K + eps)
        y *= rstd
    if BIAS:
        y += tl.load(bias_ptr + offs_n, mask_n, 0.0).to(tl.float32)
    y = y.to(dtype).to(tl.float32)
    if GATE:
        y = (y / (1.0 + tl.exp(-y))).to(dtype).to(tl.float32) * (up * rstd).to(dtype).to(tl.float32)
    if ADD:
        y += tl.load(residual_ptr + offs_n, mask_n, 0.0).to(tl.float32)
    return y.to(dtype)


@triton.jit
def _gemv_kernel(
    x_ptr, weight_ptr, scale_ptr, norm_ptr, residual_ptr, bias_ptr, out_ptr, stride_x, stride_residual, N, K, groups,
    eps, SCALE: tl.constexpr,
    M: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NUM_BLOCKS: tl.constexpr, EVEN_K: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offs_n < N
    mask_n = mask[:, None]
    # Outputs beyond N read the last row, so loads need no mask where K is even.
    row_offs = tl.minimum(offs_n, N - 1).to(tl.int64)[:, None] * K
    up_offs = row_offs + tl.cast(N, tl.int64) * K  # an N of 1 is a constant, which has no .to()
    offs_k = tl.arange(0, BLOCK_K)
    # loads while the kernel in front ends
    next_w = _load_weights(weight_ptr, row_offs, offs_k, K, mask_n, EVEN_K)
    next_up = next_w
    if GATE:
        next_up = _load_weights(weight_ptr, up_offs, offs_k, K, mask_n, EVEN_K)
    pdl_wait(USE_PDL)
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    acc1 = acc
    acc_up = acc
    acc1_up = acc
    squares = tl.zeros([BLOCK_K], tl.float32)
    squares1 = squares
    for i in tl.static_range(NUM_BLOCKS):
        offs_k = i * BLOCK_K + tl.arange(0, BLOCK_K)
        w = next_w
        w_up = next_up
        if i + 1 < NUM_BLOCKS:
            # The next weights load while these are multiplied.
            next_w = _load_weights(weight_ptr, row_offs, offs_k + BLOCK_K, K, mask_n, EVEN_K)
            if GATE:
                next_up = _load_weights(weight_ptr, up_offs, offs_k + BLOCK_K, K, mask_n, EVEN_K)
        x, square = _load_row(x_ptr, norm_ptr, offs_k, K, NORM)
        squares += square
        w = _widened(w, scale_ptr, offs_n, offs_k, N, K, groups, SCALE)
        acc += w * x[None, :]
        if GATE:
            w_up = _widened(w_up, scale_ptr, N + offs_n, offs_k, 2 * N, K, groups, SCALE)
            acc_up += w_up * x[None, :]
        if M == 2:
            x, square = _load_row(x_ptr + stride_x, norm_ptr, offs_k, K, NORM)
            squares1 += square
            acc1 += w * x[None, :]
            if GATE:
                acc1_up += w_up * x[None, :]
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    scale, scale_up = _scales(scale_ptr, offs_n, mask, N, GATE, SCALE)
    y = tl.sum(acc, 1) * scale
    up = tl.sum(acc_up, 1) * scale_up
    y = _epilogue(
        y, up, squares, residual_ptr, bias_ptr, offs_n, mask, K, eps, dtype, NORM, GATE, ADD, BIAS
    )
    tl.store(out_ptr + offs_n, y, mask)
    if M == 2:
        residual_ptr += stride_residual
        y = tl.sum(acc1, 1) * scale
        up = tl.sum(acc1_up, 1) * scale_up
        y = _epilogue(
            y,
            up,
            squares1,
            residual_ptr,
            bias_ptr,
            offs_n,
            mask,
            K,
            eps,
            dtype,
            NORM,
            GATE,
            ADD,
            BIAS,
        )
        tl.store(out_ptr + N + offs_n, y, mask)


def fused_linear(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float, bool] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
    config: GemvConfig | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual), for x [..., K] of one or two rows, weight [N, K].
    See `layers.linear`.

    `norm` is an RMSNorm as (weight, eps, weight_after_cast). With `gate`, the result is SwiGLU's
    silu(first half) * second half, [..., N / 2], without bias. With `scale` [N, groups] float32 the
    weight is quantised.
    """
    k = x.shape[-1]
    if gate:
        n = len(weight) // 2
    else:
        n = len(weight)
    rows = rows_of(x, k)
    if residual is None:
        added = rows
    else:
        added = rows_of(residual, n)
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    norm_weight, eps = (weight, 0.0) if norm is None else norm[:2]
    config = config or gemv_config(n, k, gate)
    block_k = min(config.block_k, triton.next_power_of_2(k))
    block_n = config.block_n
    if INTERPRETED:
        # The interpreter runs CTAs one after the other, so it gets few of them.
        block_n = min(512, triton.next_power_of_2(n))
    if scale is None:
        groups = 0
    else:
        groups = scale.shape[1]
    bits = weight_bits(weight)
    _gemv_kernel[(triton.cdiv(n, block_n),)](
        rows, bits, bits if scale is None else scale, norm_weight, added, bits if bias is None else bias, out,
        rows.stride(0), added.stride(0), n, k, groups, eps,
        SCALE=min(groups, GROUPED.value),
        M=len(rows), NORM=norm is not None, GATE=gate, ADD=residual is not None, BIAS=bias is not None,
        BLOCK_N=block_n, BLOCK_K=block_k, NUM_BLOCKS=triton.cdiv(k, block_k), EVEN_K=k % block_k == 0,
        num_warps=config.num_warps, **PDL_LAUNCH,
    )  # fmt: skip
    return out.view(*x.shape[:-1], n)
