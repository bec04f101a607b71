"""Kernels around the GEMMs of a decoder block: norms with the residual addition, head norms with RoPE, SwiGLU's gate.

Each rounds where the formula in `norm.py`, `rope.py` or `transformer.py` rounds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.kernels.types import RopeArgs

HEADS = 8  # of a token that one program rotates


@triton.jit
def _add_rms_norm_kernel(
    x, delta, weight, out_sum, out, x_stride, delta_stride, size, eps,
    ADD: tl.constexpr, CAST_FIRST: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    a = tl.load(x + row * x_stride + at, inside, 0.0)
    if ADD:
        b = tl.load(delta + row * delta_stride + at, inside, 0.0)
        a = (a.to(tl.float32) + b.to(tl.float32)).to(a.dtype)
        tl.store(out_sum + row * size + at, a, inside)
    w = tl.load(weight + at, inside, 0.0).to(tl.float32)
    y = a.to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / size + eps)
    if CAST_FIRST:
        y = y.to(a.dtype).to(tl.float32)
    tl.store(out + row * size + at, (y * w).to(a.dtype), inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_after_cast: bool) -> Tensor:
    """RMSNorm over the last dimension of x [..., H]."""
    return _launch_rms_norm(x, None, weight, eps, weight_after_cast)[1]


def add_rms_norm(
    x: Tensor, delta: Tensor, weight: Tensor, eps: float, weight_after_cast: bool
) -> tuple[Tensor, Tensor]:
    """(x + delta, its RMSNorm) for x and delta [..., H]."""
    return _launch_rms_norm(x, delta, weight, eps, weight_after_cast)


def _launch_rms_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, weight_after_cast: bool
) -> tuple[Tensor, Tensor]:
    """(x + delta, or x where there is no delta; its norm)."""
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(size)
    warps = 4 if block <= 2048 else 8
    if delta is None:
        total, other = rows, rows
    else:
        total, other = torch.empty_like(out), delta.reshape(-1, size)
    _add_rms_norm_kernel[(len(rows),)](
        rows, other, weight, total, out, rows.stride(0), other.stride(0), size, eps,
        ADD=delta is not None, CAST_FIRST=weight_after_cast, BLOCK=block, USE_PDL=USE_PDL, num_warps=warps,
        **PDL_LAUNCH,
    )  # fmt: skip
    return (x if delta is None else total.view(x.shape)), out.view(x.shape)


@triton.jit
def _silu_and_mul_kernel(gate_up, out, stride, size, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(gate_up + row * stride + at, inside, 0.0)
    up = tl.load(gate_up + row * stride + size + at, inside, 0.0).to(tl.float32)
    g = gate.to(tl.float32)
    act = (g / (1.0 + tl.exp(-g))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * size + at, (act * up).to(gate.dtype), inside)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up [..., 2 F]: [..., F]."""
    size = gate_up.shape[-1] // 2
    rows = gate_up.reshape(-1, 2 * size)
    out = torch.empty(len(rows), size, dtype=rows.dtype, device=rows.device)
    block = min(1024, triton.next_power_of_2(size))
    _silu_and_mul_kernel[(len(rows), triton.cdiv(size, block))](
        rows, out, rows.stride(0), size, BLOCK=block, USE_PDL=USE_PDL, num_warps=4, **PDL_LAUNCH
    )
    return out.view(*gate_up.shape[:-1], size)


@triton.jit
def _qk_norm_rope_kernel(
    q, k, q_weight, k_weight, cos, sin, q_out, k_out, q_token, k_token, q_heads, k_heads, period, eps,
    DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr, HEADS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    pair = tl.arange(0, HALF)[None, :]
    even = pair < DIM // 2
    if INTERLEAVED:
        first, second = 2 * pair, 2 * pair + 1
    else:
        first, second = pair, pair + DIM // 2
    asks, answers = even & (head < q_heads), even & (head >= q_heads) & (head < q_heads + k_heads)
    q_at = token * q_token + head * DIM
    k_at = token * k_token + (head - q_heads) * DIM
    raw_a = tl.load(q + q_at + first, asks, 0.0) + tl.load(k + k_at + first, answers, 0.0)
    raw_b = tl.load(q + q_at + second, asks, 0.0) + tl.load(k + k_at + second, answers, 0.0)
    a, b = raw_a.to(tl.float32), raw_b.to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / DIM + eps)[:, None]
        a, b = a * scale, b * scale
        if CAST_FIRST:
            a, b = a.to(raw_a.dtype).to(tl.float32), b.to(raw_a.dtype).to(tl.float32)
        is_q = head < q_heads
        q_a, k_a = tl.load(q_weight + first, even, 0.0), tl.load(k_weight + first, even, 0.0)
        q_b, k_b = tl.load(q_weight + second, even, 0.0), tl.load(k_weight + second, even, 0.0)
        a *= tl.where(is_q, q_a, k_a).to(tl.float32)
        b *= tl.where(is_q, q_b, k_b).to(tl.float32)
        a, b = a.to(raw_a.dtype).to(tl.float32), b.to(raw_a.dtype).to(tl.float32)
    at = (token % period) * (DIM // 2) + pair
    c, s = tl.load(cos + at, even, 0.0), tl.load(sin + at, even, 0.0)
    if IN_FLOAT32:
        x, y = a * c - b * s, b * c + a * s
    else:
        c, s = c.to(raw_a.dtype).to(tl.float32), s.to(raw_a.dtype).to(tl.float32)
        ac, bs = (a * c).to(raw_a.dtype).to(tl.float32), (b * s).to(raw_a.dtype).to(tl.float32)
        bc, a_s = (b * c).to(raw_a.dtype).to(tl.float32), (a * s).to(raw_a.dtype).to(tl.float32)
        x, y = ac - bs, bc + a_s
    q_to, k_to = (token * q_heads + head) * DIM, (token * k_heads + head - q_heads) * DIM
    x, y = x.to(raw_a.dtype), y.to(raw_a.dtype)
    tl.store(q_out + q_to + first, x, asks)
    tl.store(q_out + q_to + second, y, asks)
    tl.store(k_out + k_to + first, x, answers)
    tl.store(k_out + k_to + second, y, answers)


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    weight_after_cast: bool,
    rope: RopeArgs,
) -> tuple[Tensor, Tensor]:
    """Norms of q [..., Hq, D] and k [..., Hk, D] per head, if there are weights, and then RoPE; contiguous results.

    q and k are slices of one projection, each token's heads side by side.
    """
    (q_heads, dim), k_heads = q.shape[-2:], k.shape[-2]
    flat_q, flat_k = q.flatten(0, -3), k.flatten(0, -3)
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    _qk_norm_rope_kernel[(len(flat_q), triton.cdiv(q_heads + k_heads, HEADS))](
        flat_q, flat_k, q if q_weight is None else q_weight, k if k_weight is None else k_weight, rope.cos, rope.sin,
        q_out, k_out, flat_q.stride(0), flat_k.stride(0), q_heads, k_heads, rope.cos.numel() // (dim // 2), eps,
        DIM=dim, HALF=triton.next_power_of_2(dim // 2), NORM=q_weight is not None, CAST_FIRST=weight_after_cast,
        INTERLEAVED=rope.interleaved, IN_FLOAT32=rope.in_float32, HEADS=HEADS, USE_PDL=USE_PDL, num_warps=2,
        **PDL_LAUNCH,
    )  # fmt: skip
    return q_out, k_out


def apply_rope(x: Tensor, rope: RopeArgs) -> Tensor:
    """RoPE of x [..., H, D] by the tables of its tokens."""
    heads, dim = x.shape[-2:]
    flat = x.flatten(0, -3)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _qk_norm_rope_kernel[(len(flat), triton.cdiv(heads, HEADS))](
        flat, flat, x, x, rope.cos, rope.sin, out, out, flat.stride(0), flat.stride(0), heads, 0,
        rope.cos.numel() // (dim // 2), 0.0,
        DIM=dim, HALF=triton.next_power_of_2(dim // 2), NORM=False, CAST_FIRST=False,
        INTERLEAVED=rope.interleaved, IN_FLOAT32=rope.in_float32, HEADS=HEADS, USE_PDL=USE_PDL, num_warps=2,
        **PDL_LAUNCH,
    )  # fmt: skip
    return out
