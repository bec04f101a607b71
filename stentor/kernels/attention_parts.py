"""Parts of attention kernels: norms of the heads and RoPE of what they read, the online softmax,
masks of a text."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.types import QKNormRope, TextWindow


@triton.jit
def load_norm_rope(
    x_ptr, base, offs_d, mask, norm_ptr, cos_ptr, sin_ptr, pos, eps,
    HEAD_DIM: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Elements offs_d of the heads that begin at x_ptr + base, after norm and RoPE at table rows
    pos.

    They are rounded as norm.py and rope.py round. RoPE needs an element and its partner, so both
    are loaded.
    """
    raw = tl.load(x_ptr + base + offs_d, mask, 0.0)
    x = raw.to(tl.float32)
    if NORM_ROPE:
        dtype: tl.constexpr = raw.dtype
        if INTERLEAVED:
            offs_partner = offs_d ^ 1
            offs_cs = offs_d // 2
            sign = tl.where(offs_d % 2 == 0, -1.0, 1.0)
        else:
            first = offs_d < HEAD_DIM // 2
            offs_partner = tl.where(first, offs_d + HEAD_DIM // 2, offs_d - HEAD_DIM // 2)
            offs_cs = tl.where(first, offs_d, offs_d - HEAD_DIM // 2)
            sign = tl.where(first, -1.0, 1.0)
        partner = tl.load(x_ptr + base + offs_partner, mask, 0.0).to(tl.float32)
        cos = tl.load(cos_ptr + pos * (HEAD_DIM // 2) + offs_cs, mask, 0.0)
        sin = tl.load(sin_ptr + pos * (HEAD_DIM // 2) + offs_cs, mask, 0.0)
        if NORM:
            rstd = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
            x = _times_weight(
                x * rstd, tl.load(norm_ptr + offs_d, offs_d < HEAD_DIM, 0.0), dtype, CAST_FIRST
            )
            partner = partner * rstd
            partner = _times_weight(
                partner, tl.load(norm_ptr + offs_partner, offs_d < HEAD_DIM, 0.0), dtype, CAST_FIRST
            )
        x = _rope(x, partner, cos, sin, sign, dtype, IN_FLOAT32)
    return x.to(raw.dtype)


@triton.jit
def _times_weight(x, weight, dtype: tl.constexpr, CAST_FIRST: tl.constexpr):
    """Normalised elements times the norm's weight, rounded as norm.py rounds."""
    if CAST_FIRST:
        x = x.to(dtype).to(tl.float32)
    return (x * weight.to(tl.float32)).to(dtype).to(tl.float32)


@triton.jit
def _rope(x, partner, cos, sin, sign, dtype: tl.constexpr, IN_FLOAT32: tl.constexpr):
    """x cos + sign partner sin, rounded as rope.py rounds but for the last time."""
    if IN_FLOAT32:
        return x * cos + sign * partner * sin
    cos = cos.to(dtype).to(tl.float32)
    sin = sin.to(dtype).to(tl.float32)
    return (x * cos).to(dtype).to(tl.float32) + sign * (partner * sin).to(dtype).to(tl.float32)


@triton.jit
def load_norm_rope_halves(
    x_ptr, base, offs_half, mask, norm_ptr, cos, sin, eps,
    HEAD_DIM: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Load and turn as `load_norm_rope`, as the two halves that are partners in RoPE, offs_half [1,
    half].

    A dot product of queries and keys may take the elements of a head in any order. cos and sin are
    rows of the tables.
    """
    if INTERLEAVED:
        offs_x = 2 * offs_half
        offs_y = 2 * offs_half + 1
    else:
        offs_x = offs_half
        offs_y = offs_half + HEAD_DIM // 2
    x = tl.load(x_ptr + base + offs_x, mask, 0.0)
    y = tl.load(x_ptr + base + offs_y, mask, 0.0)
    if NORM_ROPE:
        dtype: tl.constexpr = x.dtype
        a = x.to(tl.float32)
        b = y.to(tl.float32)
        if NORM:
            rstd = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / HEAD_DIM + eps)[:, None]
            a = _times_weight(
                a * rstd,
                tl.load(norm_ptr + offs_x, offs_half < HEAD_DIM // 2, 0.0),
                dtype,
                CAST_FIRST,
            )
            b = _times_weight(
                b * rstd,
                tl.load(norm_ptr + offs_y, offs_half < HEAD_DIM // 2, 0.0),
                dtype,
                CAST_FIRST,
            )
        x = _rope(a, b, cos, sin, -1.0, dtype, IN_FLOAT32).to(dtype)
        y = _rope(b, a, cos, sin, 1.0, dtype, IN_FLOAT32).to(dtype)
    return x, y


def norm_rope_args(
    args: QKNormRope | None, other: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], float, dict[str, bool]]:
    """(norm weights and tables, eps, constants) for the kernels. `other` takes the place of missing
    tensors."""
    if args is None:
        constants = {
            "NORM_ROPE": False,
            "NORM": False,
            "CAST_FIRST": False,
            "INTERLEAVED": False,
            "IN_FLOAT32": False,
        }
        return (other, other, other, other), 0.0, constants
    q_norm, k_norm, eps, cast_first = (
        (other, other, 0.0, False) if args.norms is None else args.norms
    )
    constants = {"NORM_ROPE": True, "NORM": args.norms is not None, "CAST_FIRST": cast_first}
    constants |= {"INTERLEAVED": args.interleaved, "IN_FLOAT32": args.in_float32}
    return (q_norm, k_norm, args.cos, args.sin), eps, constants


@triton.jit
def softmax_step(q, k, v, visible, m_i, l_i, acc, scale):
    """(m_i, l_i, acc) of queries [M, D] after another block of keys and values [N, D]. visible: [M,
    N] or [1, N]."""
    # Float32 is multiplied as float32. TF32 would keep ten bits of the mantissa.
    qk = tl.dot(q.to(k.dtype), tl.trans(k), input_precision="ieee") * scale
    qk = tl.where(visible, qk, float("-inf"))
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    p = tl.exp(qk - m_ij[:, None])
    alpha = tl.exp(m_i - m_ij)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_ij, l_i, acc


@triton.jit
def load_window(start_ptr, end_ptr, place_ptr, rows, mask):
    """(start, end, place) of the text of rows, as positions of the sequence."""
    start = tl.load(start_ptr + rows, mask, 0)
    place = start + tl.load(place_ptr + rows, mask, 0.0).to(tl.int64)
    return start, tl.load(end_ptr + rows, mask, 0), place


@triton.jit
def seen_text(offs_n, start, end, place, BEHIND: tl.constexpr, AHEAD: tl.constexpr):
    """Whether a row sees the keys at offs_n, as far as its text is concerned."""
    near = (offs_n >= place - BEHIND) & (offs_n <= place + AHEAD)
    return near | (offs_n < start) | (offs_n >= end)


def window_args(window: TextWindow | None) -> tuple[tuple[Any, Any, Any], dict[str, Any]]:
    """Pointers and constants of a kernel that may have a window. Without one the pointers take no
    parameter."""
    if window is None:
        return (None, None, None), {"WINDOW": False, "BEHIND": 0, "AHEAD": 0}
    limits = (window.start, window.end, window.place)
    return limits, {"WINDOW": True, "BEHIND": window.behind, "AHEAD": window.ahead}
