"""Products of one or two rows with a weight matrix: bound by reading the weights once, at full width.

The norm in front, the gate, bias or residual addition behind belong to the same launch. A norm's weight multiplies the
row as it is read, and its factor 1 / rms the finished sum: the row is read once and no weight waits for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.configs import GemvConfig, gemv_config
from stentor.kernels.pdl import LINE, PDL_LAUNCH, USE_PDL, pdl_wait, prefetch_l2
from stentor.kernels.switches import INTERPRETED


@triton.jit
def _load_weights(weight, start, k, size, rows, EVEN: tl.constexpr):
    """A stretch of some outputs' weights, which nobody reads again in this step."""
    if EVEN:
        w = tl.load(weight + start + k[None, :], eviction_policy="evict_first")
    else:
        w = tl.load(weight + start + k[None, :], rows & (k < size)[None, :], 0.0, eviction_policy="evict_first")
    return w


@triton.jit
def _load_row(x, norm, k, size, NORM: tl.constexpr):
    """(what multiplies the weights, its square before the norm's weight) in float32."""
    v = tl.load(x + k, k < size, 0.0).to(tl.float32)
    square = v * v
    if NORM:
        v = v * tl.load(norm + k, k < size, 0.0).to(tl.float32)
    return v, square


@triton.jit
def _epilogue(a, a_up, square, residual, bias, n, inside, size, eps, kind: tl.constexpr, NORM: tl.constexpr,
            GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """The outputs of one row from its sums, rounded as the layers round."""
    y = tl.sum(a, 1)
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(tl.sum(square, 0) / size + eps)
        y *= scale
    if BIAS:
        y += tl.load(bias + n, inside, 0.0).to(tl.float32)
    y = y.to(kind).to(tl.float32)
    if GATE:
        y = (y / (1.0 + tl.exp(-y))).to(kind).to(tl.float32) * (tl.sum(a_up, 1) * scale).to(kind).to(tl.float32)
    if ADD:
        y += tl.load(residual + n, inside, 0.0).to(tl.float32)
    return y.to(kind)


@triton.jit
def _gemv_kernel(
    x, weight, norm, residual, bias, out, x_stride, residual_stride, width, size, eps,
    ROWS: tl.constexpr, NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, EVEN: tl.constexpr, LINES: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = n < width
    rows = inside[:, None]
    start = tl.minimum(n, width - 1).to(tl.int64)[:, None] * size
    upper_start = start + tl.cast(width, tl.int64) * size  # a width of 1 is a constant, without .to()
    k = tl.arange(0, BLOCK)
    first = _load_weights(weight, start, k, size, rows, EVEN)  # on its way while the kernel in front ends
    upper = first
    if GATE:
        upper = _load_weights(weight, upper_start, k, size, rows, EVEN)
    if LINES > 0:
        prefetch_l2(weight, start, size, LINES)
        if GATE:
            prefetch_l2(weight, upper_start, size, LINES)
    pdl_wait(USE_PDL)
    a = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    b, a_up, b_up = a, a, a
    square = tl.zeros([BLOCK], tl.float32)
    other_square = square
    for c in tl.static_range(CHUNKS):
        k = c * BLOCK + tl.arange(0, BLOCK)
        now, now_up = first, upper
        if c + 1 < CHUNKS:
            first = _load_weights(weight, start, k + BLOCK, size, rows, EVEN)
            if GATE:
                upper = _load_weights(weight, upper_start, k + BLOCK, size, rows, EVEN)
        v, s = _load_row(x, norm, k, size, NORM)
        square += s
        a += now.to(tl.float32) * v[None, :]
        if GATE:
            a_up += now_up.to(tl.float32) * v[None, :]
        if ROWS == 2:
            v, s = _load_row(x + x_stride, norm, k, size, NORM)
            other_square += s
            b += now.to(tl.float32) * v[None, :]
            if GATE:
                b_up += now_up.to(tl.float32) * v[None, :]
    kind: tl.constexpr = out.dtype.element_ty
    y = _epilogue(a, a_up, square, residual, bias, n, inside, size, eps, kind, NORM, GATE, ADD, BIAS)
    tl.store(out + n, y, inside)
    if ROWS == 2:
        more = residual + residual_stride
        y = _epilogue(b, b_up, other_square, more, bias, n, inside, size, eps, kind, NORM, GATE, ADD, BIAS)
        tl.store(out + width + n, y, inside)


def fused_linear(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float, bool] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
    config: GemvConfig | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual), for x [..., K] of one or two rows (`kernels.is_gemv`), weight [N, K].

    `norm` is an RMSNorm as (weight, eps, weight_after_cast). With `gate`, the result is SwiGLU's silu(first half) *
    second half, [..., N / 2], without bias.
    """
    size = x.shape[-1]
    width = len(weight) // 2 if gate else len(weight)
    rows = x.reshape(-1, size)
    added = rows if residual is None else residual.reshape(-1, width)
    out = torch.empty(len(rows), width, dtype=x.dtype, device=x.device)
    norm_weight, eps = (weight, 0.0) if norm is None else norm[:2]
    config = config or gemv_config(width, size, gate)
    block = min(config.block_k, triton.next_power_of_2(size))
    outputs = config.block_n
    if INTERPRETED:
        outputs = min(512, triton.next_power_of_2(width))
    lines = triton.next_power_of_2(triton.cdiv(size, LINE.value)) if config.prefetch and USE_PDL else 0
    _gemv_kernel[(triton.cdiv(width, outputs),)](
        rows, weight, norm_weight, added, weight if bias is None else bias, out, rows.stride(0), added.stride(0),
        width, size, eps,
        ROWS=len(rows), NORM=norm is not None, GATE=gate, ADD=residual is not None, BIAS=bias is not None,
        OUTPUTS=outputs, BLOCK=block, CHUNKS=triton.cdiv(size, block), LINES=lines,
        EVEN=size % block == 0, USE_PDL=USE_PDL, num_warps=config.num_warps, **PDL_LAUNCH,
    )  # fmt: skip
    return out.view(*x.shape[:-1], width)
