"""Products of one or two rows with a weight matrix: bound by reading the weights once, at full width.

The norm in front, the gate or the residual addition behind belong to the same launch; each rounds where the layers do.
"""

# ruff: noqa: ANN001, ANN202, N803, PLR0912
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.layers.kernels import INTERPRETED

SPAN = 1024  # weights of one output that a program reads at a time


@triton.jit
def _scale(x, size, eps, BLOCK: tl.constexpr, CHUNKS: tl.constexpr):
    """1 / rms of a row."""
    squares = tl.zeros([BLOCK], tl.float32)
    for c in tl.static_range(CHUNKS):
        k = c * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + k, k < size, 0.0).to(tl.float32)
        squares += v * v
    return tl.rsqrt(tl.sum(squares, 0) / size + eps)


@triton.jit
def _entry(x, norm, k, size, scale, NORM: tl.constexpr, LATE: tl.constexpr):
    """A stretch of a row, normalised and rounded as RMSNorm does, in float32."""
    raw = tl.load(x + k, k < size, 0.0)
    v = raw.to(tl.float32)
    if NORM:
        v = v * scale
        if LATE:
            v = v.to(raw.dtype).to(tl.float32)
        v = (v * tl.load(norm + k, k < size, 0.0).to(tl.float32)).to(raw.dtype).to(tl.float32)
    return v


@triton.jit
def _narrow(
    x, weight, norm, residual, out, x_stride, residual_stride, width, size, eps,
    ROWS: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr,
    OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = n < width
    start = n.to(tl.int64)[:, None] * size
    k = tl.arange(0, BLOCK)
    there = inside[:, None] & (k < size)[None, :]
    first = tl.load(weight + start + k[None, :], there, 0.0)  # on its way while the norm is worked out
    upper = first
    if GATE:
        upper = tl.load(weight + width.to(tl.int64) * size + start + k[None, :], there, 0.0)
    scale, other_scale = 1.0, 1.0
    if NORM:
        scale = _scale(x, size, eps, BLOCK, CHUNKS)
        if ROWS == 2:
            other_scale = _scale(x + x_stride, size, eps, BLOCK, CHUNKS)
    a = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    b = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    a_up = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    b_up = tl.zeros([OUTPUTS, BLOCK], tl.float32)
    for c in tl.static_range(CHUNKS):
        k = c * BLOCK + tl.arange(0, BLOCK)
        there = inside[:, None] & (k < size)[None, :]
        if c > 0:
            first = tl.load(weight + start + k[None, :], there, 0.0)
            if GATE:
                upper = tl.load(weight + width.to(tl.int64) * size + start + k[None, :], there, 0.0)
        v = _entry(x, norm, k, size, scale, NORM, LATE)
        a += first.to(tl.float32) * v[None, :]
        if GATE:
            a_up += upper.to(tl.float32) * v[None, :]
        if ROWS == 2:
            v = _entry(x + x_stride, norm, k, size, other_scale, NORM, LATE)
            b += first.to(tl.float32) * v[None, :]
            if GATE:
                b_up += upper.to(tl.float32) * v[None, :]
    kind = out.dtype.element_ty
    y = tl.sum(a, 1).to(kind).to(tl.float32)
    if GATE:
        y = (y / (1.0 + tl.exp(-y))).to(kind).to(tl.float32) * tl.sum(a_up, 1).to(kind).to(tl.float32)
    if ADD:
        y += tl.load(residual + n, inside, 0.0).to(tl.float32)
    tl.store(out + n, y.to(kind), inside)
    if ROWS == 2:
        y = tl.sum(b, 1).to(kind).to(tl.float32)
        if GATE:
            y = (y / (1.0 + tl.exp(-y))).to(kind).to(tl.float32) * tl.sum(b_up, 1).to(kind).to(tl.float32)
        if ADD:
            y += tl.load(residual + residual_stride + n, inside, 0.0).to(tl.float32)
        tl.store(out + width + n, y.to(kind), inside)


def narrow(
    x: Tensor, weight: Tensor, norm: tuple[Tensor, float, bool] | None, residual: Tensor | None, gate: bool
) -> Tensor:
    """x [..., K] of one or two rows; `norm` is (weight, eps, late_weight); `gate`: silu(first half) * second half."""
    size = x.shape[-1]
    width = len(weight) // 2 if gate else len(weight)
    rows = x.reshape(-1, size)
    added = rows if residual is None else residual.reshape(-1, width)
    out = torch.empty(len(rows), width, dtype=x.dtype, device=x.device)
    norm_weight, eps, late = (weight, 0.0, False) if norm is None else norm
    block = min(SPAN, triton.next_power_of_2(size))
    outputs = 2 if gate else 4
    if INTERPRETED:
        outputs = min(512, triton.next_power_of_2(width))
    _narrow[(triton.cdiv(width, outputs),)](
        rows, weight, norm_weight, added, out, rows.stride(0), added.stride(0), width, size, eps,
        ROWS=len(rows), NORM=norm is not None, LATE=late, GATE=gate, ADD=residual is not None,
        OUTPUTS=outputs, BLOCK=block, CHUNKS=triton.cdiv(size, block), num_warps=4,
    )  # fmt: skip
    return out.view(*x.shape[:-1], width)
