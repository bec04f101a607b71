"""Triton kernels of this family: the two halves of a block of the codec, in channels-last memory
[B, n, C], and what stands between the products of the diffusion head.

They round where the reference implementations in `codec.py`, `diffusion.py` and `solver.py` round.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.conv1d import clamp_cast
from stentor.kernels.norm_rope import normed
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait

MAX_FUSED_WIDTH = 128
"""Channels of a feed-forward whose rows a CTA holds whole. In wider ones each CTA would read too
many weights."""
ELEMENTS = 2048  # of the inputs of a CTA that mixes steps
MANY_ROWS = 16_384  # fill a GPU with CTAs of any size
Norm = tuple[Tensor, float, bool]
"""Arguments of `layers.norm.RMSNorm.kernel_args`."""


@triton.jit
def _normed_steps(
    x_ptr,
    past_ptr,
    weight,
    place,
    tail,
    mask,
    offs_c,
    stride_xt,
    stride_pt,
    size,
    eps,
    CAST_FIRST: tl.constexpr,
):
    """Steps [M, C] at `place` [M, 1] of the history and the normed inputs behind it."""
    inputs = tl.load(x_ptr + (place - tail) * stride_xt + offs_c, mask & (place >= tail), 0.0)
    y = normed(inputs, weight, size, eps, 1, CAST_FIRST)
    past = tl.load(past_ptr + place * stride_pt + offs_c, mask & (place < tail), 0.0)
    return tl.where(place >= tail, y, past)


@triton.jit(do_not_specialize=["num_steps"])
def _mix_kernel(
    x_ptr,
    past_ptr,
    norm_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    last_ptr,
    num_steps,
    stride_xb,
    stride_xt,
    stride_pb,
    stride_pt,
    stride_tap,
    eps,
    STORE_LAST: tl.constexpr,
    CAST_FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
    BLOCK_T: tl.constexpr,
    C: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    tail: tl.constexpr = TAPS - 1
    offs_c = tl.arange(0, C)[None, :]
    step = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    mask = step < num_steps
    norm = tl.load(norm_ptr + tl.arange(0, C)).to(tl.float32)
    x_ptr += batch * stride_xb
    past_ptr += batch * stride_pb
    acc = tl.zeros((BLOCK_T, C), tl.float32)
    for tap in tl.static_range(TAPS):
        y = _normed_steps(
            x_ptr,
            past_ptr,
            norm,
            step + tap,
            tail,
            mask,
            offs_c,
            stride_xt,
            stride_pt,
            C,
            eps,
            CAST_FIRST,
        )
        acc += y.to(tl.float32) * tl.load(weight_ptr + tap * stride_tap + offs_c).to(tl.float32)
    acc += tl.load(bias_ptr + offs_c).to(tl.float32)
    acc += tl.load(x_ptr + step * stride_xt + offs_c, mask, 0.0).to(tl.float32)
    tl.store(out_ptr + (batch * num_steps + step) * C + offs_c, clamp_cast(acc, out_ptr), mask)
    if STORE_LAST and tl.program_id(0) == 0:
        entry = tl.arange(0, TAIL_BLOCK)[:, None]
        place = entry + num_steps
        is_entry = entry < tail
        last = _normed_steps(
            x_ptr,
            past_ptr,
            norm,
            place,
            tail,
            is_entry,
            offs_c,
            stride_xt,
            stride_pt,
            C,
            eps,
            CAST_FIRST,
        )
        tl.store(last_ptr + (batch * tail + entry) * C + offs_c, last, is_entry)


def mix(
    x: Tensor,
    past: Tensor | None,
    norm: Norm,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """x + depthwise convolution of norm(x), for x [B, n, C], C a power of two: [B, n, C]. Behind it
    the last inputs of the convolution [B, taps - 1, C].

    past: [B, taps - 1, C] of the call before. None: zeros, and the second result is not to be used.
    weight [C, 1, taps] is laid out tap by tap.
    """
    batch, count, channels = x.shape
    taps = weight.shape[2]
    x = x if x.stride(2) == 1 else x.contiguous()
    out = torch.empty(batch, count, channels, dtype=x.dtype, device=x.device)
    stores = past is not None
    if past is None:
        past = x.new_zeros(1, taps - 1, channels).expand(batch, -1, -1)
        last = out
    else:
        past = past if past.stride(2) == 1 else past.contiguous()
        last = torch.empty(batch, taps - 1, channels, dtype=x.dtype, device=x.device)
    scale, eps, cast_first = norm
    block = max(1, ELEMENTS // channels)
    _mix_kernel[(triton.cdiv(count, block), batch)](
        x,
        past,
        scale,
        weight,
        bias,
        out,
        last,
        count,
        x.stride(0),
        x.stride(1),
        past.stride(0),
        past.stride(1),
        weight.stride(2),
        eps,
        STORE_LAST=stores,
        CAST_FIRST=cast_first,
        TAPS=taps,
        TAIL_BLOCK=triton.next_power_of_2(taps - 1),
        BLOCK_T=block,
        C=channels,
        num_warps=4,
    )
    return out, last


@triton.jit
def _gelu(x):
    """The exact GELU (Hendrycks and Gimpel, 2016)."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit(do_not_specialize=["num_rows"])
def _feed_forward_kernel(
    x_ptr,
    norm_ptr,
    up_ptr,
    up_bias_ptr,
    down_ptr,
    down_bias_ptr,
    out_ptr,
    num_rows,
    stride_x,
    eps,
    CAST_FIRST: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
    C: tl.constexpr,
):
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_c = tl.arange(0, C)
    offs_h = tl.arange(0, BLOCK_H)
    mask = offs_m < num_rows
    x = tl.load(x_ptr + offs_m * stride_x + offs_c[None, :], mask, 0.0)
    norm = tl.load(norm_ptr + offs_c).to(tl.float32)
    y = normed(x, norm, C, eps, 1, CAST_FIRST)
    acc = tl.zeros((BLOCK_M, C), tl.float32)
    for start in range(0, HIDDEN, BLOCK_H):
        hidden = start + offs_h
        # the weights [HIDDEN, C] and [C, HIDDEN] lie output by output
        up = tl.load(up_ptr + hidden[None, :] * C + offs_c[:, None])
        h = tl.dot(y, up, input_precision="ieee")
        h += tl.load(up_bias_ptr + hidden)[None, :].to(tl.float32)
        h = _gelu(h.to(x.dtype).to(tl.float32)).to(x.dtype)
        down = tl.load(down_ptr + offs_c[None, :] * HIDDEN + hidden[:, None])
        acc = tl.dot(h, down, acc, input_precision="ieee")
    acc += tl.load(down_bias_ptr + offs_c)[None, :].to(tl.float32)
    acc = acc.to(x.dtype).to(tl.float32) + x.to(tl.float32)
    tl.store(out_ptr + offs_m * C + offs_c[None, :], clamp_cast(acc, out_ptr), mask)


def feed_forward(
    x: Tensor,
    norm: Norm,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
) -> Tensor:
    """x + down(gelu(up(norm(x)))) for x [B, n, C]: [B, n, C].

    up [H, C], down [C, H]. C and H are powers of two, C at most `MAX_FUSED_WIDTH`.
    """
    channels = x.shape[-1]
    rows = x.reshape(-1, channels)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = torch.empty(len(rows), channels, dtype=x.dtype, device=x.device)
    hidden = len(up)
    scale, eps, cast_first = norm
    if len(rows) < MANY_ROWS:
        block_m = 16
        block_h = min(128, hidden)
    else:
        block_m = 64
        block_h = min(64, hidden)
    _feed_forward_kernel[(triton.cdiv(len(rows), block_m),)](
        rows,
        scale,
        up,
        up_bias,
        down,
        down_bias,
        out,
        len(rows),
        rows.stride(0),
        eps,
        CAST_FIRST=cast_first,
        HIDDEN=hidden,
        BLOCK_M=block_m,
        BLOCK_H=block_h,
        C=channels,
        num_warps=4,
        num_stages=2,
    )
    return out.view(x.shape)


@triton.jit
def _add_modulated_norm_kernel(
    x_ptr,
    delta_ptr,
    gate_ptr,
    norm_ptr,
    scale_ptr,
    shift_ptr,
    sum_ptr,
    out_ptr,
    stride_modulation,
    size,
    eps,
    HAS_DELTA: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    at = row * size + offs
    modulation = row * stride_modulation + offs
    x = tl.load(x_ptr + at, mask, 0.0)
    dtype = x.dtype
    if HAS_DELTA:
        gate = tl.load(gate_ptr + modulation, mask, 0.0).to(tl.float32)
        delta = tl.load(delta_ptr + at, mask, 0.0).to(tl.float32)
        x = (x.to(tl.float32) + (gate * delta).to(dtype).to(tl.float32)).to(dtype)
        tl.store(sum_ptr + at, x, mask)
    y = x.to(tl.float32)
    y = (y * tl.rsqrt(tl.sum(y * y, 0) / size + eps)).to(dtype).to(tl.float32)
    if HAS_NORM:
        y = (y * tl.load(norm_ptr + offs, mask, 0.0).to(tl.float32)).to(dtype).to(tl.float32)
    scale = (1.0 + tl.load(scale_ptr + modulation, mask, 0.0).to(tl.float32)).to(dtype)
    y = (y * scale.to(tl.float32)).to(dtype).to(tl.float32)
    y += tl.load(shift_ptr + modulation, mask, 0.0).to(tl.float32)
    tl.store(out_ptr + at, y.to(dtype), mask)


def add_modulated_norm(
    x: Tensor,
    delta: Tensor | None,
    gate: Tensor | None,
    weight: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """(s, rms_norm(s) * weight * (1 + scale) + shift) for s = x + gate * delta, without what is
    None. x and delta [B, C] are contiguous. gate, scale and shift [B, C] are parts of one
    tensor's rows."""
    rows, size = x.shape
    out = torch.empty_like(x)
    total = x if delta is None else torch.empty_like(x)
    _add_modulated_norm_kernel[(rows,)](
        x,
        x if delta is None else delta,
        scale if gate is None else gate,
        x if weight is None else weight,
        scale,
        shift,
        total,
        out,
        scale.stride(0),
        size,
        eps,
        HAS_DELTA=delta is not None,
        HAS_NORM=weight is not None,
        BLOCK=triton.next_power_of_2(size),
        num_warps=4,
        **PDL_LAUNCH,
    )
    return total, out


@triton.jit(do_not_specialize=["step"])
def _condition_kernel(
    condition_ptr,
    times_ptr,
    steps_ptr,
    out_ptr,
    rows,
    step,
    stride_number,
    stride_step,
    size,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    number = tl.load(steps_ptr + row % rows)
    time = tl.load(times_ptr + number * stride_number + step * stride_step + offs, mask, 0.0)
    condition = tl.load(condition_ptr + row * size + offs, mask, 0.0)
    x = (condition.to(tl.float32) + time.to(tl.float32)).to(condition.dtype).to(tl.float32)
    y = x / (1.0 + tl.exp(-x))
    tl.store(out_ptr + row * size + offs, y.to(condition.dtype), mask)


def active_conditions(conditions: Tensor, times: Tensor, steps: Tensor, step: int) -> Tensor:
    """silu(conditions + embedded timestep) of both branches [2 B, C], for conditions [2 B, C].

    times: [numbers of steps, steps, C] by a row's number of steps, steps [B], and the present step.
    """
    branches, size = conditions.shape
    out = torch.empty_like(conditions)
    _condition_kernel[(branches,)](
        conditions,
        times,
        steps,
        out,
        len(steps),
        step,
        times.stride(0),
        times.stride(1),
        size,
        BLOCK=triton.next_power_of_2(size),
        num_warps=4,
        **PDL_LAUNCH,
    )
    return out


@triton.jit(do_not_specialize=["step"])
def _solver_kernel(
    z_ptr,
    velocity_ptr,
    clean_ptr,
    guidance_ptr,
    table_ptr,
    steps_ptr,
    z_out_ptr,
    noisy_ptr,
    clean_out_ptr,
    rows,
    step,
    stride_part,
    stride_number,
    size,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    at = row * size + offs
    numbers = table_ptr + tl.load(steps_ptr + row) * stride_number + step
    alpha = tl.load(numbers)
    sigma = tl.load(numbers + stride_part)
    keep = tl.load(numbers + 2 * stride_part)
    add = tl.load(numbers + 3 * stride_part)
    slope = tl.load(numbers + 4 * stride_part)
    z = tl.load(z_ptr + at, mask, 0.0)
    guided = tl.load(velocity_ptr + at, mask, 0.0).to(tl.float32)
    free = tl.load(velocity_ptr + rows * size + at, mask, 0.0).to(tl.float32)
    v = free + tl.load(guidance_ptr + row) * (guided - free)
    clean = alpha * z - sigma * v
    before = tl.zeros_like(clean)
    if not FIRST:
        before = tl.load(clean_ptr + at, mask, 0.0)
    z = keep * z + add * (clean + slope * (clean - before))
    rounded = z.to(noisy_ptr.dtype.element_ty)
    tl.store(z_out_ptr + at, rounded.to(tl.float32), mask)
    tl.store(noisy_ptr + at, rounded, mask)
    tl.store(noisy_ptr + rows * size + at, rounded, mask)
    tl.store(clean_out_ptr + at, clean, mask)


def solver_step(
    z: Tensor,
    velocity: Tensor,
    before: Tensor | None,
    guidance: Tensor,
    table: Tensor,
    steps: Tensor,
    step: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take latents z [B, latent] float32 one step on: (z, z of both branches in the dtype of
    `velocity`, clean).

    velocity: [2 B, latent], the guided branch first. before: clean of the step before, None at the
    first. guidance, steps: [B]. table: of `solver_table`. step: the number of the step.
    """
    rows, size = z.shape
    z_out = torch.empty_like(z)
    noisy = torch.empty_like(velocity)
    clean = torch.empty_like(z)
    _solver_kernel[(rows,)](
        z,
        velocity,
        z if before is None else before,
        guidance,
        table,
        steps,
        z_out,
        noisy,
        clean,
        rows,
        step,
        table.stride(0),
        table.stride(1),
        size,
        FIRST=before is None,
        BLOCK=triton.next_power_of_2(size),
        num_warps=1,
        **PDL_LAUNCH,
    )
    return z_out, noisy, clean
