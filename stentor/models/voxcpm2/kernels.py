"""Triton kernels of this family: patch tokens, FSQ, the stop head, and the steps of the flow.

They round where the reference implementations in `ops.py` round.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.models.voxcpm2.schedule import EulerSchedule

BLOCK_H = 64  # hidden channels of a CTA that projects
MAX_BLOCK = 512  # elements of a CTA that does not
# 1.5 * 2^23: added and taken away, it leaves an integer, even at halves
TO_NEAREST = tl.constexpr(12582912.0)


@triton.jit
def _load_projection(weight_ptr, bias_ptr, offs_h, mask_h, offs_d, mask_d, PATCH_DIM: tl.constexpr):
    """(weight [H, D], bias [H]) of a block of channels, in float32."""
    weight_ptrs = weight_ptr + offs_h[:, None] * PATCH_DIM + offs_d[None, :]
    weight = tl.load(weight_ptrs, mask_h[:, None] & mask_d[None, :], 0.0).to(tl.float32)
    return weight, tl.load(bias_ptr + offs_h, mask_h, 0.0).to(tl.float32)


@triton.jit
def _project_patch(
    patches_ptr,
    row,
    p,
    offs_d,
    mask_d,
    w,
    b,
    dtype: tl.constexpr,
    PATCH_SIZE: tl.constexpr,
    PATCH_DIM: tl.constexpr,
):
    """The projection of latent p of a row's patch, rounded."""
    x = tl.load(patches_ptr + row * (PATCH_SIZE * PATCH_DIM) + p * PATCH_DIM + offs_d, mask_d, 0.0)
    x = x.to(dtype).to(tl.float32)
    return (tl.sum(w * x[None, :], 1) + b).to(dtype)


@triton.jit
def _patch_tokens_kernel(
    patches_ptr, weight_ptr, bias_ptr, first_ptr, out_ptr, hidden,
    PATCH_SIZE: tl.constexpr, PATCH_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    mask_h = offs_h < hidden
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < PATCH_DIM
    w, b = _load_projection(weight_ptr, bias_ptr, offs_h, mask_h, offs_d, mask_d, PATCH_DIM)
    token = tl.load(first_ptr + offs_h, mask_h, 0.0)
    pdl_wait(USE_PDL)
    token_ptr = out_ptr + row * (PATCH_SIZE + 1) * hidden + offs_h
    tl.store(token_ptr, token, mask_h)
    for p in tl.static_range(PATCH_SIZE):
        token = _project_patch(
            patches_ptr, row, p, offs_d, mask_d, w, b, dtype, PATCH_SIZE, PATCH_DIM
        )
        tl.store(token_ptr + (p + 1) * hidden, token, mask_h)


def patch_tokens(patches: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
    """Tokens [N, 1 + P, H] of patches [N, P, D]: `first` [..., H], and the patches, rounded to its
    dtype, projected by weight [H, D] and bias."""
    batch, patch, feat = patches.shape
    hidden = len(weight)
    out = torch.empty(batch, patch + 1, hidden, dtype=weight.dtype, device=weight.device)
    if batch:
        _patch_tokens_kernel[(batch, triton.cdiv(hidden, BLOCK_H))](
            patches.contiguous(), weight, bias, first, out, hidden,
            PATCH_SIZE=patch, PATCH_DIM=feat, BLOCK_D=triton.next_power_of_2(feat), BLOCK_H=BLOCK_H,
            num_warps=4, **PDL_LAUNCH,
        )  # fmt: skip
    return out


@triton.jit(
    do_not_specialize=["batch", "max_evals", "num_evals", "stride_evals", "stride_mu", "stride_mu2"]
)
def _dit_input_tokens_kernel(
    mu_ptr, mu2_ptr, last_ptr, z_ptr, last_weight_ptr, last_bias_ptr, weight_ptr, bias_ptr, steps_ptr, dt_ptr,
    time_idx_ptr, times_ptr, tokens_ptr, dt_out_ptr, time_idx_out_ptr, batch, hidden, stride_mu, stride_mu2, max_evals,
    num_evals, stride_evals,
    PATCH_SIZE: tl.constexpr, PATCH_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_EVALS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = tokens_ptr.dtype.element_ty
    length: tl.constexpr = 3 + 2 * PATCH_SIZE
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    offs_h = block * BLOCK_H + tl.arange(0, BLOCK_H)
    mask_h = offs_h < hidden
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < PATCH_DIM
    w, b = _load_projection(weight_ptr, bias_ptr, offs_h, mask_h, offs_d, mask_d, PATCH_DIM)
    w_last, b_last = _load_projection(
        last_weight_ptr, last_bias_ptr, offs_h, mask_h, offs_d, mask_d, PATCH_DIM
    )
    pdl_wait(USE_PDL)
    row_start = tl.load(steps_ptr + row) * max_evals
    k = tl.arange(0, BLOCK_EVALS)
    mask_k = (k < num_evals) & (block == 0)
    tl.store(
        dt_out_ptr + row * stride_evals + k, tl.load(dt_ptr + row_start + k, mask_k, 0.0), mask_k
    )
    tl.store(
        time_idx_out_ptr + row * stride_evals + k,
        tl.load(time_idx_ptr + row_start + k, mask_k, 0),
        mask_k,
    )
    cond_ptr = tokens_ptr + row * length * hidden + offs_h
    uncond_ptr = cond_ptr + batch * length * hidden
    mu = tl.load(mu_ptr + row * stride_mu + offs_h, mask_h, 0.0)
    zeros = tl.zeros([BLOCK_H], tl.float32).to(dtype)
    tl.store(cond_ptr, mu, mask_h)
    tl.store(cond_ptr + hidden, tl.load(mu2_ptr + row * stride_mu2 + offs_h, mask_h, 0.0), mask_h)
    tl.store(uncond_ptr, zeros, mask_h)
    tl.store(uncond_ptr + hidden, zeros, mask_h)
    time = tl.load(times_ptr + tl.load(time_idx_ptr + row_start) * hidden + offs_h, mask_h, 0.0)
    tl.store(cond_ptr + 2 * hidden, time, mask_h)
    tl.store(uncond_ptr + 2 * hidden, time, mask_h)
    for p in tl.static_range(PATCH_SIZE):
        token = _project_patch(
            last_ptr, row, p, offs_d, mask_d, w_last, b_last, dtype, PATCH_SIZE, PATCH_DIM
        )
        tl.store(cond_ptr + (3 + p) * hidden, token, mask_h)
        tl.store(uncond_ptr + (3 + p) * hidden, token, mask_h)
        token = _project_patch(z_ptr, row, p, offs_d, mask_d, w, b, dtype, PATCH_SIZE, PATCH_DIM)
        tl.store(cond_ptr + (3 + PATCH_SIZE + p) * hidden, token, mask_h)
        tl.store(uncond_ptr + (3 + PATCH_SIZE + p) * hidden, token, mask_h)


def dit_input_tokens(
    mu: tuple[Tensor, Tensor],
    last: Tensor,
    z: Tensor,
    projections: tuple[Tensor, Tensor, Tensor, Tensor],
    steps: Tensor,
    schedules: EulerSchedule,
    num_evals: int,
) -> tuple[Tensor, EulerSchedule]:
    """Tokens [2B, 3 + 2P, H] of a flow's first evaluation, and each row's schedule of `num_evals`
    evaluations.

    A row's tokens are mu, two tokens [B, H] (zeros in the second half), the time, and the projected
    patches `last` and z [B, P, D]. projections: weight [H, D] and bias [H] of either. steps: [B]
    int64.
    """
    batch, patch, feat = z.shape
    hidden = len(projections[0])
    like = projections[0]
    tokens = torch.empty(2 * batch, 3 + 2 * patch, hidden, dtype=like.dtype, device=like.device)
    width = -(-num_evals // 8) * 8
    dt = torch.empty(batch, width, dtype=schedules.dt.dtype, device=like.device)
    time_idx = torch.empty(batch, width, dtype=schedules.at.dtype, device=like.device)
    _dit_input_tokens_kernel[(batch, triton.cdiv(hidden, BLOCK_H))](
        *mu, last.contiguous(), z, *projections, steps, schedules.dt, schedules.at, schedules.times, tokens, dt,
        time_idx, batch, hidden, mu[0].stride(0), mu[1].stride(0), schedules.dt.shape[1], num_evals, width,
        PATCH_SIZE=patch, PATCH_DIM=feat, BLOCK_D=triton.next_power_of_2(feat), BLOCK_H=BLOCK_H,
        BLOCK_EVALS=triton.next_power_of_2(schedules.dt.shape[1]), num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
    return tokens, EulerSchedule(dt, time_idx, schedules.times)


@triton.jit
def _fsq_round_kernel(x_ptr, out_ptr, size, scale, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, offs < size, 0.0).to(tl.float32)
    soft = (1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)).to(dtype).to(tl.float32)
    level = (soft * scale).to(dtype).to(tl.float32)
    level = (level + TO_NEAREST) - TO_NEAREST
    tl.store(out_ptr + offs, (level / scale).to(dtype), offs < size)


def fsq_round(x: Tensor, scale: float) -> Tensor:
    """round(tanh(x) * scale) / scale."""
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.numel()
    block = min(MAX_BLOCK, triton.next_power_of_2(size))
    _fsq_round_kernel[(triton.cdiv(size, block),)](
        x, out, size, float(scale), BLOCK=block, num_warps=4, **PDL_LAUNCH
    )
    return out


@triton.jit(do_not_specialize=["stride_audio"])
def _select_and_concat_kernel(
    h_ptr,
    rounded_ptr,
    feat_ptr,
    audio_ptr,
    out_ptr,
    hidden,
    stride_audio,
    BLOCK_H: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    mask_h = offs_h < hidden
    offs = row * hidden + offs_h
    is_audio = tl.load(audio_ptr + row * stride_audio) != 0
    value = tl.where(
        is_audio, tl.load(rounded_ptr + offs, mask_h, 0.0), tl.load(h_ptr + offs, mask_h, 0.0)
    )
    tl.store(out_ptr + 2 * row * hidden + offs_h, value, mask_h)
    tl.store(
        out_ptr + (2 * row + 1) * hidden + offs_h, tl.load(feat_ptr + offs, mask_h, 0.0), mask_h
    )


def select_and_concat(h: Tensor, rounded: Tensor, feat: Tensor, audio: Tensor) -> Tensor:
    """[N, 2H]: (`rounded` where audio [N] bool is set, else h) and feat side by side, from [N, H]
    each."""
    rows, hidden = h.shape
    out = torch.empty(rows, 2 * hidden, dtype=h.dtype, device=h.device)
    block = min(MAX_BLOCK, triton.next_power_of_2(hidden))
    _select_and_concat_kernel[(rows, triton.cdiv(hidden, block))](
        h.contiguous(), rounded.contiguous(), feat.contiguous(), audio.view(torch.uint8), out, hidden, audio.stride(0),
        BLOCK_H=block, num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _stop_head_kernel(
    x_ptr, weight_ptr, out_ptr, hidden, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr
):
    offs_h = tl.arange(0, BLOCK_H)
    mask_h = offs_h < hidden
    weight_go = tl.load(weight_ptr + offs_h, mask_h, 0.0).to(tl.float32)
    weight_stop = tl.load(weight_ptr + hidden + offs_h, mask_h, 0.0).to(tl.float32)
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(x_ptr + row * hidden + offs_h, mask_h, 0.0).to(tl.float32)
    x = (x / (1.0 + tl.exp(-x))).to(dtype).to(tl.float32)
    stop = tl.sum(x * weight_stop, 0).to(dtype).to(tl.float32) > tl.sum(x * weight_go, 0).to(
        dtype
    ).to(tl.float32)
    tl.store(out_ptr + row, stop.to(tl.uint8))


def stop_head(x: Tensor, weight: Tensor) -> Tensor:
    """Whether the second of silu(x [N, H]) @ weight.T [2, H] is the larger: [N] bool."""
    rows, hidden = x.shape
    out = torch.empty(rows, dtype=torch.uint8, device=x.device)
    block = triton.next_power_of_2(hidden)
    _stop_head_kernel[(rows,)](
        x.contiguous(), weight, out, hidden, BLOCK_H=block, num_warps=8, **PDL_LAUNCH
    )
    return out.view(torch.bool)


@triton.jit(
    do_not_specialize=["batch", "stride_dt", "stride_time_idx"],
    do_not_specialize_on_alignment=[
        "dt_ptr",
        "time_idx_ptr",
    ],  # columns of a schedule, one after the other
)
def _cfg_euler_step_kernel(
    both_ptr, x_ptr, cfg_ptr, dt_ptr, time_idx_ptr, times_ptr, weight_ptr, bias_ptr, x_out_ptr, tokens_ptr, batch,
    stride_dt, stride_time_idx, stride_tokens, hidden, eps,
    PATCH_SIZE: tl.constexpr, PATCH_DIM: tl.constexpr, BLOCK_D: tl.constexpr, NUM_TOKENS: tl.constexpr,
    TIME_TOKEN: tl.constexpr, HAS_NEXT: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < PATCH_DIM
    offs_h = block * BLOCK_H + tl.arange(0, BLOCK_H)
    mask_h = offs_h < hidden
    dtype: tl.constexpr = both_ptr.dtype.element_ty
    if HAS_NEXT:
        w, b = _load_projection(weight_ptr, bias_ptr, offs_h, mask_h, offs_d, mask_d, PATCH_DIM)
    pdl_wait(USE_PDL)
    cond_ptr = both_ptr + row * (PATCH_SIZE * PATCH_DIM)
    uncond_ptr = cond_ptr + batch * (PATCH_SIZE * PATCH_DIM)
    dot = tl.zeros([BLOCK_D], tl.float32)
    norm_sq = tl.zeros([BLOCK_D], tl.float32)
    for p in tl.static_range(PATCH_SIZE):
        cond = tl.load(cond_ptr + p * PATCH_DIM + offs_d, mask_d, 0.0).to(tl.float32)
        uncond = tl.load(uncond_ptr + p * PATCH_DIM + offs_d, mask_d, 0.0).to(tl.float32)
        dot += (cond * uncond).to(dtype).to(tl.float32)
        norm_sq += (uncond * uncond).to(dtype).to(tl.float32)
    denominator = (tl.sum(norm_sq, 0).to(dtype).to(tl.float32) + eps).to(dtype).to(tl.float32)
    scale = (tl.sum(dot, 0).to(dtype).to(tl.float32) / denominator).to(dtype).to(tl.float32)
    cfg = tl.load(cfg_ptr + row)
    dt = tl.load(dt_ptr + row * stride_dt).to(tl.float32)
    for p in tl.static_range(PATCH_SIZE):
        cond = tl.load(cond_ptr + p * PATCH_DIM + offs_d, mask_d, 0.0).to(tl.float32)
        uncond = tl.load(uncond_ptr + p * PATCH_DIM + offs_d, mask_d, 0.0).to(tl.float32)
        x = tl.load(
            x_ptr + row * (PATCH_SIZE * PATCH_DIM) + p * PATCH_DIM + offs_d, mask_d, 0.0
        ).to(tl.float32)
        base = (uncond * scale).to(dtype).to(tl.float32)
        guidance = (cfg * (cond - base).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        velocity = (base + guidance).to(dtype).to(tl.float32)
        new = (x - (dt * velocity).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        # A row with fewer evaluations than its batch has steps of 0 at the end. They leave x as it
        # is.
        new = tl.where(dt != 0, new, x)
        tl.store(
            x_out_ptr + row * (PATCH_SIZE * PATCH_DIM) + p * PATCH_DIM + offs_d,
            new.to(dtype),
            mask_d & (block == 0),
        )
        if HAS_NEXT:
            token = (tl.sum(w * new[None, :], 1) + b).to(dtype)
            offs = (NUM_TOKENS - PATCH_SIZE + p) * hidden + offs_h
            tl.store(tokens_ptr + row * stride_tokens + offs, token, mask_h)
            tl.store(tokens_ptr + (row + batch) * stride_tokens + offs, token, mask_h)
    if HAS_NEXT:
        time = tl.load(
            times_ptr + tl.load(time_idx_ptr + row * stride_time_idx) * hidden + offs_h, mask_h, 0.0
        )
        tl.store(tokens_ptr + row * stride_tokens + TIME_TOKEN * hidden + offs_h, time, mask_h)
        tl.store(
            tokens_ptr + (row + batch) * stride_tokens + TIME_TOKEN * hidden + offs_h, time, mask_h
        )


def cfg_euler_step(
    both: Tensor,
    x: Tensor,
    guidance: Tensor,
    dt: Tensor,
    eps: float,
    tokens: Tensor,
    feed: tuple[Tensor, Tensor, Tensor, Tensor] | None,
    time_at: int,
) -> Tensor:
    """x [B, P, D] after an Euler step dt [B] along the velocities both [2B, P, D] with CFG-Zero*
    guidance [B] float32.

    `feed`, unless this was the last evaluation, is (rows [B] of the table of time tokens, that
    table [K, H], and the weight [H, D] and bias [H] of the patch's projection). With it, the tokens
    [2B, T, H] of the next evaluation are written in place: the time token at `time_at`, and the new
    patch at the end.
    """
    batch, patch, feat = x.shape
    length, hidden = tokens.shape[1:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    at, table, weight, bias = (dt, tokens, tokens, tokens) if feed is None else feed
    _cfg_euler_step_kernel[(batch, 1 if feed is None else triton.cdiv(hidden, BLOCK_H))](
        both, x, guidance, dt, at, table, weight, bias, out, tokens,
        batch, dt.stride(0), at.stride(0), tokens.stride(0), hidden, eps,
        PATCH_SIZE=patch, PATCH_DIM=feat, BLOCK_D=triton.next_power_of_2(feat), NUM_TOKENS=length, TIME_TOKEN=time_at,
        HAS_NEXT=feed is not None, BLOCK_H=BLOCK_H, num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
    return out
