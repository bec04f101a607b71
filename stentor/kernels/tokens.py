"""What stands between the products of a model of patches: tokens made and joined, levels rounded, an end decided.

The formulas, with the same roundings, are those of the family that has a flow.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.between import FlowRows
from stentor.kernels.pdl import EARLY, LAUNCH, wait

WIDTH = 64  # hidden channels of a program that projects
ITEMS = 512  # of a program that does not
TO_NEAREST = tl.constexpr(12582912.0)  # 1.5 * 2^23: added and taken away, it leaves an integer, even at halves


@triton.jit
def _weights(weight, bias, channel, there, d, some, FEAT: tl.constexpr):
    w = tl.load(weight + channel[:, None] * FEAT + d[None, :], there[:, None] & some[None, :], 0.0).to(tl.float32)
    return w, tl.load(bias + channel, there, 0.0).to(tl.float32)


@triton.jit
def _projected(patches, row, p, d, some, w, b, kind: tl.constexpr, PATCH: tl.constexpr, FEAT: tl.constexpr):
    v = tl.load(patches + row * (PATCH * FEAT) + p * FEAT + d, some, 0.0).to(kind).to(tl.float32)
    return (tl.sum(w * v[None, :], 1) + b).to(kind)


@triton.jit
def _patch_tokens(
    patches, weight, bias, first, out, hidden, PATCH: tl.constexpr, FEAT: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    d = tl.arange(0, WIDE)
    some = d < FEAT
    w, b = _weights(weight, bias, channel, there, d, some, FEAT)
    token = tl.load(first + channel, there, 0.0)
    wait(EARLY)
    place = out + row * (PATCH + 1) * hidden + channel
    tl.store(place, token, there)
    for p in tl.static_range(PATCH):
        token = _projected(patches, row, p, d, some, w, b, kind, PATCH, FEAT)
        tl.store(place + (p + 1) * hidden, token, there)


def patch_tokens(patches: Tensor, weight: Tensor, bias: Tensor, first: Tensor) -> Tensor:
    """See `between.patch_tokens`."""
    batch, patch, feat = patches.shape
    hidden = len(weight)
    out = torch.empty(batch, patch + 1, hidden, dtype=weight.dtype, device=weight.device)
    if batch:
        _patch_tokens[(batch, triton.cdiv(hidden, WIDTH))](
            patches.contiguous(), weight, bias, first, out, hidden,
            PATCH=patch, FEAT=feat, WIDE=triton.next_power_of_2(feat), BLOCK=WIDTH, EARLY=EARLY, num_warps=4, **LAUNCH,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["batch", "most", "work", "work_row", "mu_row", "more_mu_row"])
def _flow_tokens(
    mu, more_mu, last, z, last_weight, last_bias, weight, bias, steps, dt, at, times, tokens, dt_out, at_out,
    batch, hidden, mu_row, more_mu_row, most, work, work_row,
    PATCH: tl.constexpr, FEAT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, WORK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = tokens.dtype.element_ty
    length: tl.constexpr = 3 + 2 * PATCH
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    channel = part * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    d = tl.arange(0, WIDE)
    some = d < FEAT
    w, b = _weights(weight, bias, channel, there, d, some, FEAT)
    w_last, b_last = _weights(last_weight, last_bias, channel, there, d, some, FEAT)
    wait(EARLY)
    turn = tl.load(steps + row) * most
    k = tl.arange(0, WORK)
    used = (k < work) & (part == 0)
    tl.store(dt_out + row * work_row + k, tl.load(dt + turn + k, used, 0.0), used)
    tl.store(at_out + row * work_row + k, tl.load(at + turn + k, used, 0), used)
    with_mu = tokens + row * length * hidden + channel
    without = with_mu + batch * length * hidden
    first = tl.load(mu + row * mu_row + channel, there, 0.0)
    nothing = tl.zeros([BLOCK], tl.float32).to(kind)
    tl.store(with_mu, first, there)
    tl.store(with_mu + hidden, tl.load(more_mu + row * more_mu_row + channel, there, 0.0), there)
    tl.store(without, nothing, there)
    tl.store(without + hidden, nothing, there)
    time = tl.load(times + tl.load(at + turn) * hidden + channel, there, 0.0)
    tl.store(with_mu + 2 * hidden, time, there)
    tl.store(without + 2 * hidden, time, there)
    for p in tl.static_range(PATCH):
        token = _projected(last, row, p, d, some, w_last, b_last, kind, PATCH, FEAT)
        tl.store(with_mu + (3 + p) * hidden, token, there)
        tl.store(without + (3 + p) * hidden, token, there)
        token = _projected(z, row, p, d, some, w, b, kind, PATCH, FEAT)
        tl.store(with_mu + (3 + PATCH + p) * hidden, token, there)
        tl.store(without + (3 + PATCH + p) * hidden, token, there)


def flow_tokens(
    mu: tuple[Tensor, Tensor],
    last: Tensor,
    z: Tensor,
    projections: tuple[Tensor, Tensor, Tensor, Tensor],
    steps: Tensor,
    tables: FlowRows,
    work: int,
) -> tuple[Tensor, FlowRows]:
    """See `between.flow_tokens`."""
    batch, patch, feat = z.shape
    hidden = len(projections[0])
    like = projections[0]
    tokens = torch.empty(2 * batch, 3 + 2 * patch, hidden, dtype=like.dtype, device=like.device)
    room = -(-work // 8) * 8
    dt = torch.empty(batch, room, dtype=tables.dt.dtype, device=like.device)
    at = torch.empty(batch, room, dtype=tables.at.dtype, device=like.device)
    _flow_tokens[(batch, triton.cdiv(hidden, WIDTH))](
        *mu, last.contiguous(), z, *projections, steps, *tables, tokens, dt, at, batch, hidden,
        mu[0].stride(0), mu[1].stride(0), tables.dt.shape[1], work, room,
        PATCH=patch, FEAT=feat, WIDE=triton.next_power_of_2(feat), BLOCK=WIDTH, WORK=triton.next_power_of_2(work),
        EARLY=EARLY, num_warps=4, **LAUNCH,
    )  # fmt: skip
    return tokens, FlowRows(dt, at, tables.times)


@triton.jit
def _levels(x, out, size, scale, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    kind: tl.constexpr = out.dtype.element_ty
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, at < size, 0.0).to(tl.float32)
    soft = (1.0 - 2.0 / (tl.exp(2.0 * v) + 1.0)).to(kind).to(tl.float32)
    level = (soft * scale).to(kind).to(tl.float32)
    level = (level + TO_NEAREST) - TO_NEAREST
    tl.store(out + at, (level / scale).to(kind), at < size)


def levels(x: Tensor, scale: float) -> Tensor:
    """See `between.levels`."""
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.numel()
    block = min(ITEMS, triton.next_power_of_2(size))
    _levels[(triton.cdiv(size, block),)](x, out, size, float(scale), BLOCK=block, EARLY=EARLY, num_warps=4, **LAUNCH)
    return out


@triton.jit(do_not_specialize=["audio_row"])
def _joined_halves(h, rounded, feat, audio, out, hidden, audio_row, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    at = row * hidden + channel
    is_audio = tl.load(audio + row * audio_row) != 0
    value = tl.where(is_audio, tl.load(rounded + at, there, 0.0), tl.load(h + at, there, 0.0))
    tl.store(out + 2 * row * hidden + channel, value, there)
    tl.store(out + (2 * row + 1) * hidden + channel, tl.load(feat + at, there, 0.0), there)


def join_halves(h: Tensor, rounded: Tensor, feat: Tensor, audio: Tensor) -> Tensor:
    """See `between.join_halves`."""
    rows, hidden = h.shape
    out = torch.empty(rows, 2 * hidden, dtype=h.dtype, device=h.device)
    block = min(ITEMS, triton.next_power_of_2(hidden))
    _joined_halves[(rows, triton.cdiv(hidden, block))](
        h.contiguous(), rounded.contiguous(), feat.contiguous(), audio.view(torch.uint8), out, hidden, audio.stride(0),
        BLOCK=block, EARLY=EARLY, num_warps=4, **LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _ends(x, weight, out, hidden, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    k = tl.arange(0, BLOCK)
    there = k < hidden
    go = tl.load(weight + k, there, 0.0).to(tl.float32)
    end = tl.load(weight + hidden + k, there, 0.0).to(tl.float32)
    wait(EARLY)
    kind: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    v = tl.load(x + row * hidden + k, there, 0.0).to(tl.float32)
    v = (v / (1.0 + tl.exp(-v))).to(kind).to(tl.float32)
    ended = tl.sum(v * end, 0).to(kind).to(tl.float32) > tl.sum(v * go, 0).to(kind).to(tl.float32)
    tl.store(out + row, ended.to(tl.uint8))


def ends(x: Tensor, weight: Tensor) -> Tensor:
    """See `between.ends`."""
    rows, hidden = x.shape
    out = torch.empty(rows, dtype=torch.uint8, device=x.device)
    _ends[(rows,)](
        x.contiguous(), weight, out, hidden, BLOCK=triton.next_power_of_2(hidden), EARLY=EARLY, num_warps=8, **LAUNCH
    )
    return out.view(torch.bool)
