"""Triton kernels of this family: patch tokens, FSQ, the stop head, and the steps of the flow.

They round where the reference implementations in `ops.py` round.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.models.voxcpm2.schedule import EulerSchedule

WIDTH = 64  # hidden channels of a CTA that projects
ITEMS = 512  # of a CTA that does not
TO_NEAREST = tl.constexpr(12582912.0)  # 1.5 * 2^23: added and taken away, it leaves an integer, even at halves


@triton.jit
def _load_projection(weight, bias, channel, there, d, some, FEAT: tl.constexpr):
    w = tl.load(weight + channel[:, None] * FEAT + d[None, :], there[:, None] & some[None, :], 0.0).to(tl.float32)
    return w, tl.load(bias + channel, there, 0.0).to(tl.float32)


@triton.jit
def _project_patch(patches, row, p, d, some, w, b, kind: tl.constexpr, PATCH: tl.constexpr, FEAT: tl.constexpr):
    v = tl.load(patches + row * (PATCH * FEAT) + p * FEAT + d, some, 0.0).to(kind).to(tl.float32)
    return (tl.sum(w * v[None, :], 1) + b).to(kind)


@triton.jit
def _patch_tokens_kernel(
    patches, weight, bias, first, out, hidden, PATCH: tl.constexpr, FEAT: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    d = tl.arange(0, WIDE)
    some = d < FEAT
    w, b = _load_projection(weight, bias, channel, there, d, some, FEAT)
    token = tl.load(first + channel, there, 0.0)
    pdl_wait(USE_PDL)
    place = out + row * (PATCH + 1) * hidden + channel
    tl.store(place, token, there)
    for p in tl.static_range(PATCH):
        token = _project_patch(patches, row, p, d, some, w, b, kind, PATCH, FEAT)
        tl.store(place + (p + 1) * hidden, token, there)


def patch_tokens(patches: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
    """Tokens [N, 1 + P, H] of patches [N, P, D]: `first` [..., H], and the patches, rounded to its dtype, projected by
    weight [H, D] and bias."""
    batch, patch, feat = patches.shape
    hidden = len(weight)
    out = torch.empty(batch, patch + 1, hidden, dtype=weight.dtype, device=weight.device)
    if batch:
        _patch_tokens_kernel[(batch, triton.cdiv(hidden, WIDTH))](
            patches.contiguous(), weight, bias, first, out, hidden,
            PATCH=patch, FEAT=feat, WIDE=triton.next_power_of_2(feat), BLOCK=WIDTH, USE_PDL=USE_PDL, num_warps=4,
            **PDL_LAUNCH,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["batch", "most", "work", "work_row", "mu_row", "more_mu_row"])
def _dit_input_tokens_kernel(
    mu, more_mu, last, z, last_weight, last_bias, weight, bias, steps, dt, at, times, tokens, dt_out, at_out,
    batch, hidden, mu_row, more_mu_row, most, work, work_row,
    PATCH: tl.constexpr, FEAT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, WORK: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = tokens.dtype.element_ty
    length: tl.constexpr = 3 + 2 * PATCH
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    channel = part * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    d = tl.arange(0, WIDE)
    some = d < FEAT
    w, b = _load_projection(weight, bias, channel, there, d, some, FEAT)
    w_last, b_last = _load_projection(last_weight, last_bias, channel, there, d, some, FEAT)
    pdl_wait(USE_PDL)
    start = tl.load(steps + row) * most
    k = tl.arange(0, WORK)
    used = (k < work) & (part == 0)
    tl.store(dt_out + row * work_row + k, tl.load(dt + start + k, used, 0.0), used)
    tl.store(at_out + row * work_row + k, tl.load(at + start + k, used, 0), used)
    with_mu = tokens + row * length * hidden + channel
    without = with_mu + batch * length * hidden
    first = tl.load(mu + row * mu_row + channel, there, 0.0)
    nothing = tl.zeros([BLOCK], tl.float32).to(kind)
    tl.store(with_mu, first, there)
    tl.store(with_mu + hidden, tl.load(more_mu + row * more_mu_row + channel, there, 0.0), there)
    tl.store(without, nothing, there)
    tl.store(without + hidden, nothing, there)
    time = tl.load(times + tl.load(at + start) * hidden + channel, there, 0.0)
    tl.store(with_mu + 2 * hidden, time, there)
    tl.store(without + 2 * hidden, time, there)
    for p in tl.static_range(PATCH):
        token = _project_patch(last, row, p, d, some, w_last, b_last, kind, PATCH, FEAT)
        tl.store(with_mu + (3 + p) * hidden, token, there)
        tl.store(without + (3 + p) * hidden, token, there)
        token = _project_patch(z, row, p, d, some, w, b, kind, PATCH, FEAT)
        tl.store(with_mu + (3 + PATCH + p) * hidden, token, there)
        tl.store(without + (3 + PATCH + p) * hidden, token, there)


def dit_input_tokens(
    mu: tuple[Tensor, Tensor],
    last: Tensor,
    z: Tensor,
    projections: tuple[Tensor, Tensor, Tensor, Tensor],
    steps: Tensor,
    tables: EulerSchedule,
    work: int,
) -> tuple[Tensor, EulerSchedule]:
    """Tokens [2B, 3 + 2P, H] of a flow's first evaluation, and the schedule of its `work` evaluations for each row.

    A row's tokens are mu, two tokens [B, H] (zeros in the second half), the time, and the projected patches `last` and
    z [B, P, D]. projections: weight [H, D] and bias [H] of either; steps [B] int64.
    """
    batch, patch, feat = z.shape
    hidden = len(projections[0])
    like = projections[0]
    tokens = torch.empty(2 * batch, 3 + 2 * patch, hidden, dtype=like.dtype, device=like.device)
    room = -(-work // 8) * 8
    dt = torch.empty(batch, room, dtype=tables.dt.dtype, device=like.device)
    at = torch.empty(batch, room, dtype=tables.at.dtype, device=like.device)
    _dit_input_tokens_kernel[(batch, triton.cdiv(hidden, WIDTH))](
        *mu, last.contiguous(), z, *projections, steps, tables.dt, tables.at, tables.times, tokens, dt, at,
        batch, hidden, mu[0].stride(0), mu[1].stride(0), tables.dt.shape[1], work, room,
        PATCH=patch, FEAT=feat, WIDE=triton.next_power_of_2(feat), BLOCK=WIDTH, WORK=triton.next_power_of_2(work),
        USE_PDL=USE_PDL, num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
    return tokens, EulerSchedule(dt, at, tables.times)


@triton.jit
def _fsq_round_kernel(x, out, size, scale, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    pdl_wait(USE_PDL)
    kind: tl.constexpr = out.dtype.element_ty
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < size, 0.0).to(tl.float32)
    soft = (1.0 - 2.0 / (tl.exp(2.0 * v) + 1.0)).to(kind).to(tl.float32)
    level = (soft * scale).to(kind).to(tl.float32)
    level = (level + TO_NEAREST) - TO_NEAREST
    tl.store(out + at, (level / scale).to(kind), at < size)


def fsq_round(x: Tensor, scale: float) -> Tensor:
    """round(tanh(x) * scale) / scale."""
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.numel()
    block = min(ITEMS, triton.next_power_of_2(size))
    _fsq_round_kernel[(triton.cdiv(size, block),)](
        x, out, size, float(scale), BLOCK=block, USE_PDL=USE_PDL, num_warps=4, **PDL_LAUNCH
    )
    return out


@triton.jit(do_not_specialize=["audio_row"])
def _select_and_concat_kernel(
    h, rounded, feat, audio, out, hidden, audio_row, BLOCK: tl.constexpr, USE_PDL: tl.constexpr
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    at = row * hidden + channel
    is_audio = tl.load(audio + row * audio_row) != 0
    value = tl.where(is_audio, tl.load(rounded + at, there, 0.0), tl.load(h + at, there, 0.0))
    tl.store(out + 2 * row * hidden + channel, value, there)
    tl.store(out + (2 * row + 1) * hidden + channel, tl.load(feat + at, there, 0.0), there)


def select_and_concat(h: Tensor, rounded: Tensor, feat: Tensor, audio: Tensor) -> Tensor:
    """[N, 2H]: `rounded` where audio [N] bool, else h, and beside it feat; [N, H] each."""
    rows, hidden = h.shape
    out = torch.empty(rows, 2 * hidden, dtype=h.dtype, device=h.device)
    block = min(ITEMS, triton.next_power_of_2(hidden))
    _select_and_concat_kernel[(rows, triton.cdiv(hidden, block))](
        h.contiguous(), rounded.contiguous(), feat.contiguous(), audio.view(torch.uint8), out, hidden, audio.stride(0),
        BLOCK=block, USE_PDL=USE_PDL, num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _stop_head_kernel(x, weight, out, hidden, BLOCK: tl.constexpr, USE_PDL: tl.constexpr):
    k = tl.arange(0, BLOCK)
    there = k < hidden
    go = tl.load(weight + k, there, 0.0).to(tl.float32)
    end = tl.load(weight + hidden + k, there, 0.0).to(tl.float32)
    pdl_wait(USE_PDL)
    kind: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    v = tl.load(x + row * hidden + k, there, 0.0).to(tl.float32)
    v = (v / (1.0 + tl.exp(-v))).to(kind).to(tl.float32)
    ended = tl.sum(v * end, 0).to(kind).to(tl.float32) > tl.sum(v * go, 0).to(kind).to(tl.float32)
    tl.store(out + row, ended.to(tl.uint8))


def stop_head(x: Tensor, weight: Tensor) -> Tensor:
    """Whether the second of silu(x [N, H]) @ weight.T [2, H] is the larger: [N] bool."""
    rows, hidden = x.shape
    out = torch.empty(rows, dtype=torch.uint8, device=x.device)
    _stop_head_kernel[(rows,)](
        x.contiguous(),
        weight,
        out,
        hidden,
        BLOCK=triton.next_power_of_2(hidden),
        USE_PDL=USE_PDL,
        num_warps=8,
        **PDL_LAUNCH,
    )
    return out.view(torch.bool)


@triton.jit
def _cfg_euler_step_kernel(
    both, x, guidance, dt, at, times, weight, bias, x_out, tokens, batch, dt_row, at_row, token_row, hidden, eps,
    PATCH: tl.constexpr, FEAT: tl.constexpr, WIDE: tl.constexpr, LENGTH: tl.constexpr, TIME: tl.constexpr,
    FEED: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    d = tl.arange(0, WIDE)
    some = d < FEAT
    channel = part * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    kind: tl.constexpr = both.dtype.element_ty
    if FEED:
        w = tl.load(weight + channel[:, None] * FEAT + d[None, :], there[:, None] & some[None, :], 0.0).to(tl.float32)
        b = tl.load(bias + channel, there, 0.0).to(tl.float32)
    pdl_wait(USE_PDL)
    with_mu = both + row * (PATCH * FEAT)
    without = with_mu + batch * (PATCH * FEAT)
    along, power = tl.zeros([WIDE], tl.float32), tl.zeros([WIDE], tl.float32)
    for p in tl.static_range(PATCH):
        c = tl.load(with_mu + p * FEAT + d, some, 0.0).to(tl.float32)
        u = tl.load(without + p * FEAT + d, some, 0.0).to(tl.float32)
        along += (c * u).to(kind).to(tl.float32)
        power += (u * u).to(kind).to(tl.float32)
    bottom = (tl.sum(power, 0).to(kind).to(tl.float32) + eps).to(kind).to(tl.float32)
    scale = (tl.sum(along, 0).to(kind).to(tl.float32) / bottom).to(kind).to(tl.float32)
    strength = tl.load(guidance + row)
    step = tl.load(dt + row * dt_row).to(tl.float32)
    for p in tl.static_range(PATCH):
        c = tl.load(with_mu + p * FEAT + d, some, 0.0).to(tl.float32)
        u = tl.load(without + p * FEAT + d, some, 0.0).to(tl.float32)
        old = tl.load(x + row * (PATCH * FEAT) + p * FEAT + d, some, 0.0).to(tl.float32)
        base = (u * scale).to(kind).to(tl.float32)
        push = (strength * (c - base).to(kind).to(tl.float32)).to(kind).to(tl.float32)
        velocity = (base + push).to(kind).to(tl.float32)
        new = (old - (step * velocity).to(kind).to(tl.float32)).to(kind).to(tl.float32)
        new = tl.where(step != 0, new, old)
        tl.store(x_out + row * (PATCH * FEAT) + p * FEAT + d, new.to(kind), some & (part == 0))
        if FEED:
            token = (tl.sum(w * new[None, :], 1) + b).to(kind)
            place = (LENGTH - PATCH + p) * hidden + channel
            tl.store(tokens + row * token_row + place, token, there)
            tl.store(tokens + (row + batch) * token_row + place, token, there)
    if FEED:
        time = tl.load(times + tl.load(at + row * at_row) * hidden + channel, there, 0.0)
        tl.store(tokens + row * token_row + TIME * hidden + channel, time, there)
        tl.store(tokens + (row + batch) * token_row + TIME * hidden + channel, time, there)


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
    """x [B, P, D] after a step dt [B] along the guided velocities both [2B, P, D]; guidance [B] float32.

    `feed`, unless this was the last evaluation: (rows [B] of the table of time tokens, that table [K, H], and the
    weight [H, D] and bias [H] of the patch's projection) go into tokens [2B, T, H] in place, at `time_at` and at the
    end.
    """
    batch, patch, feat = x.shape
    length, hidden = tokens.shape[1:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    at, table, weight, bias = (dt, tokens, tokens, tokens) if feed is None else feed
    _cfg_euler_step_kernel[(batch, 1 if feed is None else triton.cdiv(hidden, WIDTH))](
        both, x, guidance, dt, at, table, weight, bias, out, tokens,
        batch, dt.stride(0), at.stride(0), tokens.stride(0), hidden, eps,
        PATCH=patch, FEAT=feat, WIDE=triton.next_power_of_2(feat), LENGTH=length, TIME=time_at, FEED=feed is not None,
        BLOCK=WIDTH, USE_PDL=USE_PDL, num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
    return out
