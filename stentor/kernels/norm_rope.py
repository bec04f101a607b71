"""Kernels around the GEMMs of a decoder block: norms with the addition before, head norms with
RoPE, SwiGLU's gate.

Each rounds where its reference in `layers/norm.py`, `rope.py` or `linear.py` rounds. The last is
the adaptive layer norm of a diffusion transformer: the gated residual addition before it, then
scale and shift.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.types import RopeArgs

BLOCK_H = 8  # heads of a token that a CTA rotates


@triton.jit
def normed(x, weight, size, eps, AXIS: tl.constexpr, CAST_FIRST: tl.constexpr):
    """The RMSNorm of x [BLOCK], or with AXIS 1 of each row of x [M, BLOCK], for weight [BLOCK] in
    float32."""
    y = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(y * y, AXIS) / size + eps)
    if AXIS == 1:
        scale = scale[:, None]
        weight = weight[None, :]
    y = y * scale
    if CAST_FIRST:
        y = y.to(x.dtype).to(tl.float32)
    return (y * weight).to(x.dtype)


@triton.jit
def _add_rms_norm_kernel(
    x_ptr, delta_ptr, weight_ptr, sum_ptr, out_ptr, stride_x, stride_delta, size, eps,
    ADD: tl.constexpr, CAST_FIRST: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    x = tl.load(x_ptr + row * stride_x + offs, mask, 0.0)
    if ADD:
        delta = tl.load(delta_ptr + row * stride_delta + offs, mask, 0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)
        tl.store(sum_ptr + row * size + offs, x, mask)
    weight = tl.load(weight_ptr + offs, mask, 0.0).to(tl.float32)
    y = normed(x, weight, size, eps, 0, CAST_FIRST)
    tl.store(out_ptr + row * size + offs, y, mask)


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
    """(x + delta, or x where there is no delta, and the norm of that)."""
    size = x.shape[-1]
    rows = rows_of(x, size)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    block = triton.next_power_of_2(size)
    if block <= 2048:
        warps = 4
    else:
        warps = 8
    if delta is None:
        total = rows
        other = rows
    else:
        total = torch.empty_like(out)
        other = rows_of(delta, size)
    _add_rms_norm_kernel[(len(rows),)](
        rows, other, weight, total, out, rows.stride(0), other.stride(0), size, eps,
        ADD=delta is not None, CAST_FIRST=weight_after_cast, BLOCK=block, num_warps=warps,
        **PDL_LAUNCH,
    )  # fmt: skip
    return (x if delta is None else total.view(x.shape)), out.view(x.shape)


@triton.jit
def _silu_and_mul_kernel(
    gate_up_ptr, out_ptr, stride_x, size, BLOCK: tl.constexpr, USE_PDL: tl.constexpr
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < size
    gate = tl.load(gate_up_ptr + row * stride_x + offs, mask, 0.0)
    up = tl.load(gate_up_ptr + row * stride_x + size + offs, mask, 0.0).to(tl.float32)
    gate_f32 = gate.to(tl.float32)
    act = (gate_f32 / (1.0 + tl.exp(-gate_f32))).to(gate.dtype).to(tl.float32)
    tl.store(out_ptr + row * size + offs, (act * up).to(gate.dtype), mask)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up [..., 2 F]: [..., F]."""
    size = gate_up.shape[-1] // 2
    rows = rows_of(gate_up, 2 * size)
    out = torch.empty(len(rows), size, dtype=rows.dtype, device=rows.device)
    block = min(1024, triton.next_power_of_2(size))
    _silu_and_mul_kernel[(len(rows), triton.cdiv(size, block))](
        rows, out, rows.stride(0), size, BLOCK=block, num_warps=4, **PDL_LAUNCH
    )
    return out.view(*gate_up.shape[:-1], size)


@triton.jit(do_not_specialize=["period"])
def _qk_norm_rope_kernel(
    q_ptr, k_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, stride_q, stride_k, num_q_heads,
    num_k_heads, period, eps,
    HEAD_DIM: tl.constexpr, BLOCK_HALF: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    offs_half = tl.arange(0, BLOCK_HALF)[None, :]
    mask_half = offs_half < HEAD_DIM // 2
    if INTERLEAVED:
        offs_x = 2 * offs_half
        offs_y = 2 * offs_half + 1
    else:
        offs_x = offs_half
        offs_y = offs_half + HEAD_DIM // 2
    mask_q = mask_half & (head < num_q_heads)
    mask_k = mask_half & (head >= num_q_heads) & (head < num_q_heads + num_k_heads)
    q_base = token * stride_q + head * HEAD_DIM
    k_base = token * stride_k + (head - num_q_heads) * HEAD_DIM
    # One of the two loads is masked and gives 0, so a CTA may have heads of q and of k.
    raw_x = tl.load(q_ptr + q_base + offs_x, mask_q, 0.0) + tl.load(
        k_ptr + k_base + offs_x, mask_k, 0.0
    )
    raw_y = tl.load(q_ptr + q_base + offs_y, mask_q, 0.0) + tl.load(
        k_ptr + k_base + offs_y, mask_k, 0.0
    )
    x = raw_x.to(tl.float32)
    y = raw_y.to(tl.float32)
    if NORM:
        rstd = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / HEAD_DIM + eps)[:, None]
        x = x * rstd
        y = y * rstd
        if CAST_FIRST:
            x = x.to(raw_x.dtype).to(tl.float32)
            y = y.to(raw_x.dtype).to(tl.float32)
        is_q = head < num_q_heads
        q_wx = tl.load(q_norm_ptr + offs_x, mask_half, 0.0)
        k_wx = tl.load(k_norm_ptr + offs_x, mask_half, 0.0)
        q_wy = tl.load(q_norm_ptr + offs_y, mask_half, 0.0)
        k_wy = tl.load(k_norm_ptr + offs_y, mask_half, 0.0)
        x *= tl.where(is_q, q_wx, k_wx).to(tl.float32)
        y *= tl.where(is_q, q_wy, k_wy).to(tl.float32)
        x = x.to(raw_x.dtype).to(tl.float32)
        y = y.to(raw_x.dtype).to(tl.float32)
    # Tables of one sequence, `period` positions, serve every sequence of a batch.
    offs_cs = (token % period) * (HEAD_DIM // 2) + offs_half
    cos = tl.load(cos_ptr + offs_cs, mask_half, 0.0)
    sin = tl.load(sin_ptr + offs_cs, mask_half, 0.0)
    if IN_FLOAT32:
        x_out = x * cos - y * sin
        y_out = y * cos + x * sin
    else:
        cos = cos.to(raw_x.dtype).to(tl.float32)
        sin = sin.to(raw_x.dtype).to(tl.float32)
        x_cos = (x * cos).to(raw_x.dtype).to(tl.float32)
        y_sin = (y * sin).to(raw_x.dtype).to(tl.float32)
        y_cos = (y * cos).to(raw_x.dtype).to(tl.float32)
        x_sin = (x * sin).to(raw_x.dtype).to(tl.float32)
        x_out = x_cos - y_sin
        y_out = y_cos + x_sin
    q_offs = (token * num_q_heads + head) * HEAD_DIM
    k_offs = (token * num_k_heads + head - num_q_heads) * HEAD_DIM
    x_out = x_out.to(raw_x.dtype)
    y_out = y_out.to(raw_x.dtype)
    tl.store(q_out_ptr + q_offs + offs_x, x_out, mask_q)
    tl.store(q_out_ptr + q_offs + offs_y, y_out, mask_q)
    tl.store(k_out_ptr + k_offs + offs_x, x_out, mask_k)
    tl.store(k_out_ptr + k_offs + offs_y, y_out, mask_k)


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    weight_after_cast: bool,
    rope: RopeArgs,
) -> tuple[Tensor, Tensor]:
    """Norms of q [..., Hq, D] and k [..., Hk, D] per head, if there are weights, then RoPE. Results
    are contiguous.

    q and k are slices of one projection, each token's heads side by side.
    """
    q_heads, dim = q.shape[-2:]
    k_heads = k.shape[-2]
    flat_q = q.flatten(0, -3)
    flat_k = k.flatten(0, -3)
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    _qk_norm_rope_kernel[(len(flat_q), triton.cdiv(q_heads + k_heads, BLOCK_H))](
        flat_q, flat_k, q if q_weight is None else q_weight, k if k_weight is None else k_weight, rope.cos, rope.sin,
        q_out, k_out, flat_q.stride(0), flat_k.stride(0), q_heads, k_heads, rope.cos.numel() // (dim // 2), eps,
        HEAD_DIM=dim, BLOCK_HALF=triton.next_power_of_2(dim // 2), NORM=q_weight is not None,
        CAST_FIRST=weight_after_cast, INTERLEAVED=rope.interleaved, IN_FLOAT32=rope.in_float32, BLOCK_H=BLOCK_H,
        num_warps=2, **PDL_LAUNCH,
    )  # fmt: skip
    return q_out, k_out


def apply_rope(x: Tensor, rope: RopeArgs) -> Tensor:
    """RoPE of x [..., H, D] by the tables of its tokens."""
    heads, dim = x.shape[-2:]
    flat = x.flatten(0, -3)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _qk_norm_rope_kernel[(len(flat), triton.cdiv(heads, BLOCK_H))](
        flat, flat, x, x, rope.cos, rope.sin, out, out, flat.stride(0), flat.stride(0), heads, 0,
        rope.cos.numel() // (dim // 2), 0.0,
        HEAD_DIM=dim, BLOCK_HALF=triton.next_power_of_2(dim // 2), NORM=False, CAST_FIRST=False,
        INTERLEAVED=rope.interleaved, IN_FLOAT32=rope.in_float32, BLOCK_H=BLOCK_H, num_warps=2,
        **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tokens"])
def _add_norm_kernel(
    x_ptr, delta_ptr, gate_ptr, scale_ptr, shift_ptr, sum_ptr, out_ptr, tokens, stride_x, stride_token, stride_gate,
    stride_scale, stride_shift, dim, eps,
    HAS_DELTA: tl.constexpr, CONSTANT: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """One token. CONSTANT: scale and shift are weights, which may be read before the kernel in
    front has ended."""
    if not CONSTANT:
        pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    sequence = row // tokens
    offs = tl.arange(0, BLOCK)
    mask = offs < dim
    scale = tl.load(scale_ptr + sequence * stride_scale + offs, mask, 0.0).to(tl.float32)
    shift = tl.load(shift_ptr + sequence * stride_shift + offs, mask, 0.0).to(tl.float32)
    if CONSTANT:
        pdl_wait(USE_PDL)
    at = row * dim + offs
    x = tl.load(
        x_ptr + sequence * stride_x + (row - sequence * tokens) * stride_token + offs, mask, 0.0
    )
    if HAS_DELTA:
        gate = tl.load(gate_ptr + sequence * stride_gate + offs, mask, 0.0).to(tl.float32)
        x = (x.to(tl.float32) + gate * tl.load(delta_ptr + at, mask, 0.0).to(tl.float32)).to(
            x.dtype
        )
        tl.store(sum_ptr + at, x, mask)
    y = tl.where(mask, x.to(tl.float32), 0.0)
    y = tl.where(mask, y - tl.sum(y, 0) / dim, 0.0)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / dim + eps) * scale + shift
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask)


def add_modulated_norm(
    x: Tensor,
    delta: Tensor | None,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    constant: bool = False,
) -> tuple[Tensor, Tensor]:
    """(s, norm(s) * scale + shift) for s = x + gate * delta, or s = x without delta.

    x and delta [..., T, C]. gate, scale and shift [C], or of each sequence of x [S, T, C] as [S, C]
    or [1, C]. constant: they are weights. What a step computes is not.
    """
    tokens, dim = x.shape[-2:]
    rows = x.reshape(-1, tokens, dim)
    if rows.stride(2) != 1:
        rows = rows.contiguous()
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    if delta is None:
        total = rows
    else:
        total = torch.empty_like(out)
    _add_norm_kernel[(len(rows) * tokens,)](
        rows, rows if delta is None else delta.contiguous(), gate, scale, shift, total, out, tokens, rows.stride(0),
        rows.stride(1), _stride(gate), _stride(scale), _stride(shift), dim, eps,
        HAS_DELTA=delta is not None, CONSTANT=constant, BLOCK=triton.next_power_of_2(dim), num_warps=4,
        **PDL_LAUNCH,
    )  # fmt: skip
    return (x if delta is None else total.view(x.shape)), out.view(x.shape)


def _stride(numbers: Tensor) -> int:
    """From a sequence's numbers to the next one's. 0: all sequences have the same."""
    assert numbers.stride(-1) == 1
    if numbers.ndim == 1 or len(numbers) == 1:
        return 0
    return numbers.stride(0)
