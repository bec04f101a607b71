"""One launch between two evaluations of a guided flow: CFG-Zero*, the Euler step, and the next evaluation's tokens.

The formulas, with the same roundings, are `guided` and `solve` of the family that has a flow.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import EARLY, LAUNCH, wait

WIDTH = 64  # hidden channels of a program


@triton.jit
def _advance(
    both, x, guidance, dt, at, times, weight, bias, x_out, tokens, batch, dt_row, at_row, token_row, hidden, eps,
    PATCH: tl.constexpr, FEAT: tl.constexpr, WIDE: tl.constexpr, LENGTH: tl.constexpr, TIME: tl.constexpr,
    FEED: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
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
    wait(EARLY)
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


def advance(
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
    _advance[(batch, 1 if feed is None else triton.cdiv(hidden, WIDTH))](
        both, x, guidance, dt, at, table, weight, bias, out, tokens,
        batch, dt.stride(0), at.stride(0), tokens.stride(0), hidden, eps,
        PATCH=patch, FEAT=feat, WIDE=triton.next_power_of_2(feat), LENGTH=length, TIME=time_at, FEED=feed is not None,
        BLOCK=WIDTH, EARLY=EARLY, num_warps=4, **LAUNCH,
    )  # fmt: skip
    return out
