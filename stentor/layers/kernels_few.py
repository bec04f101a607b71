"""Products of a few rows (3 to 32) with a weight matrix, on the matrix units, bound by reading the weights once.

As in kernels_narrow.py the norm, gate, bias and residual addition are inside; the norm's factor multiplies the sums.
"""

# ruff: noqa: ANN001, ANN202, N803, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.layers.kernels_early import EARLY, LAUNCH, LINE, prefetch, wait
from stentor.layers.tiles import Tile, few_tile


@triton.jit(do_not_specialize=["count", "inner"])
def _few(
    x, weight, norm, residual, bias, out, count, inner, x_token, x_outer, residual_stride, width, size, eps,
    NORM: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, LINES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    m = tl.arange(0, ROWS)
    used = m < count
    inside = n < width
    start = tl.minimum(n, width - 1).to(tl.int64) * size
    upper = width.to(tl.int64) * size
    if LINES > 0:
        prefetch(weight, start[:, None], size, LINES)
        if GATE:
            prefetch(weight, start[:, None] + upper, size, LINES)
    if NORM:
        first = tl.arange(0, DEPTH)
        gain = tl.load(norm + first, first < size, 0.0).to(tl.float32)
    wait(EARLY)
    row = (m // inner) * x_outer + (m % inner) * x_token
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    total_up = total
    squares = tl.zeros([ROWS, DEPTH], tl.float32)
    for at in range(0, size, DEPTH):
        k = at + tl.arange(0, DEPTH)
        if EVEN:
            v = tl.load(x + row[:, None] + k[None, :], used[:, None], 0.0)
            w = tl.load(weight + start[None, :] + k[:, None])
        else:
            v = tl.load(x + row[:, None] + k[None, :], used[:, None] & (k < size)[None, :], 0.0)
            w = tl.load(weight + start[None, :] + k[:, None], (k < size)[:, None], 0.0)
        if NORM:
            wide = v.to(tl.float32)
            squares += wide * wide
            v = (wide * gain[None, :]).to(v.dtype)
            gain = tl.load(norm + k + DEPTH, k + DEPTH < size, 0.0).to(tl.float32)  # for the next pass
        total = tl.dot(v, w, total, input_precision="ieee")
        if GATE:
            if EVEN:
                w = tl.load(weight + upper + start[None, :] + k[:, None])
            else:
                w = tl.load(weight + upper + start[None, :] + k[:, None], (k < size)[:, None], 0.0)
            total_up = tl.dot(v, w, total_up, input_precision="ieee")
    kind: tl.constexpr = out.dtype.element_ty
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 1) / size + eps)[:, None]
        total *= scale
        total_up *= scale
    if BIAS:
        total += tl.load(bias + n, inside, 0.0).to(tl.float32)[None, :]
    y = total.to(kind).to(tl.float32)
    if GATE:
        y = (y / (1.0 + tl.exp(-y))).to(kind).to(tl.float32) * total_up.to(kind).to(tl.float32)
    there = used[:, None] & inside[None, :]
    if ADD:
        y += tl.load(residual + m[:, None] * residual_stride + n[None, :], there, 0.0).to(tl.float32)
    tl.store(out + m[:, None] * width + n[None, :], y.to(kind), there)


def few(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float, bool] | None,
    residual: Tensor | None,
    gate: bool,
    bias: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """x [..., K] of a few rows in two dimensions of any strides; the rest as in `kernels_narrow.narrow`."""
    size = x.shape[-1]
    width = len(weight) // 2 if gate else len(weight)
    rows = x if x.ndim == 3 and x.stride(-1) == 1 else x.reshape(1, -1, size)
    count = rows.shape[0] * rows.shape[1]
    added = x if residual is None else residual.reshape(-1, width)
    out = torch.empty(count, width, dtype=x.dtype, device=x.device)
    norm_weight, eps = (weight, 0.0) if norm is None else norm[:2]
    tile = tile or few_tile(count, width, size, gate)
    depth = min(tile.depth, max(16, triton.next_power_of_2(size)))
    lines = triton.next_power_of_2(triton.cdiv(size, LINE.value)) if tile.prefetch and EARLY else 0
    _few[(triton.cdiv(width, tile.outputs),)](
        rows, weight, norm_weight, added, weight if bias is None else bias, out,
        count, rows.shape[1], rows.stride(1), rows.stride(0), added.stride(-2), width, size, eps,
        NORM=norm is not None, GATE=gate, ADD=residual is not None, BIAS=bias is not None, EVEN=size % depth == 0,
        ROWS=max(16, triton.next_power_of_2(count)), OUTPUTS=tile.outputs, DEPTH=depth, LINES=lines,
        EARLY=EARLY, num_warps=tile.warps, num_stages=tile.stages, **LAUNCH,
    )  # fmt: skip
    return out.view(*x.shape[:-1], width)
