"""Attention kernels of the step: over the paged history of a request, and over the few positions of a depth loop.

Lengths and page tables are read on the device, so a captured launch stays valid while requests come and grow.
Softmax is online (Dao et al., 2022), in float32. With a `Turn` the kernel does the norms of the heads and RoPE itself.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.layers.kernels import LOCAL, Turn
from stentor.layers.kernels_early import EARLY, LAUNCH, wait

KEYS = {2: 128, 4: 64}
"""Keys per pass over the history, by bytes of an element: what registers and shared memory hold."""


@triton.jit
def _turned(
    x, start, at, inside, norm, cos, sin, place, eps, DIM: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr,
    LATE: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Entries `at` of the heads that begin at x + start, after norm and RoPE at table rows `place`, as norm.py and
    rope.py round. Each entry and its partner in the rotation are read and computed where they are needed."""
    raw = tl.load(x + start + at, inside, 0.0)
    y = raw.to(tl.float32)
    if TURN:
        kind: tl.constexpr = raw.dtype
        if INTERLEAVED:
            partner, pair, sign = at ^ 1, at // 2, tl.where(at % 2 == 0, -1.0, 1.0)
        else:
            first = at < DIM // 2
            partner = tl.where(first, at + DIM // 2, at - DIM // 2)
            pair, sign = tl.where(first, at, at - DIM // 2), tl.where(first, -1.0, 1.0)
        z = tl.load(x + start + partner, inside, 0.0).to(tl.float32)
        if NORM:
            factor = tl.rsqrt(tl.sum(y * y, 1) / DIM + eps)[:, None]
            y, z = y * factor, z * factor
            if LATE:
                y, z = y.to(kind).to(tl.float32), z.to(kind).to(tl.float32)
            y = (y * tl.load(norm + at, at < DIM, 0.0).to(tl.float32)).to(kind).to(tl.float32)
            z = (z * tl.load(norm + partner, at < DIM, 0.0).to(tl.float32)).to(kind).to(tl.float32)
        c = tl.load(cos + place * (DIM // 2) + pair, inside, 0.0)
        s = tl.load(sin + place * (DIM // 2) + pair, inside, 0.0)
        if IN_FLOAT32:
            y = y * c + sign * z * s
        else:
            c, s = c.to(kind).to(tl.float32), s.to(kind).to(tl.float32)
            y = (y * c).to(kind).to(tl.float32) + sign * (z * s).to(kind).to(tl.float32)
    return y.to(raw.dtype)


@triton.jit
def _paged(
    pool, table, slots, positions, q, k, v, out, q_norm, k_norm, cos, sin, table_row, value_part, key_slot,
    q_token, k_token, v_token, scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    PAGE: tl.constexpr, KEYS: tl.constexpr, WRITE: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr,
    LATE: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pos = tl.load(positions + token)
    pages = table + tl.load(slots + token) * table_row
    at = tl.arange(0, WIDE)
    within = at < DIM
    group = tl.arange(0, ROWS)
    used = (group < GROUP)[:, None] & within[None, :]
    q_at = token * q_token + (head * GROUP + group)[:, None] * DIM
    queries = _turned(
        q, q_at, at[None, :], used, q_norm, cos, sin, pos, eps, DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32
    )
    high = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, WIDE], tl.float32)
    if WRITE:  # the token itself comes from registers: what this program writes it does not read back
        k_at = token * k_token + head * DIM
        new_k = _turned(
            k, k_at, at[None, :], within[None, :], k_norm, cos, sin, pos, eps,
            DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32,
        ).to(pool.dtype.element_ty)  # fmt: skip
        new_v = tl.load(v + token * v_token + head * DIM + at[None, :], within[None, :], 0.0).to(pool.dtype.element_ty)
        spot = (tl.load(pages + pos // PAGE) * PAGE + pos % PAGE) * key_slot + head * DIM + at[None, :]
        tl.store(pool + spot, new_k, within[None, :])
        tl.store(pool + value_part + spot, new_v, within[None, :])
        high = tl.sum(queries.to(tl.float32) * new_k.to(tl.float32), 1) * scale
        mass += 1.0
        total += new_v.to(tl.float32)
        end = pos
    else:
        end = pos + 1
    for start in range(0, end, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < end
        page = tl.load(pages + key // PAGE, seen, 0)
        place = ((page * PAGE + key % PAGE) * key_slot + head * DIM)[:, None] + at[None, :]
        there = seen[:, None] & within[None, :]
        keys = tl.load(pool + place, there, 0.0)
        values = tl.load(pool + value_part + place, there, 0.0)
        score = tl.dot(queries.to(keys.dtype), tl.trans(keys), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        top = tl.maximum(high, tl.max(score, 1))
        weight = tl.exp(score - top[:, None])
        fade = tl.exp(high - top)
        mass = mass * fade + tl.sum(weight, 1)
        total = total * fade[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
        high = top
    tl.store(
        out + (token * HEADS * GROUP + head * GROUP + group)[:, None] * DIM + at[None, :],
        (total / mass[:, None]).to(out.dtype.element_ty),
        used,
    )


def _turn(turn: Turn | None, other: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], float, dict[str, bool]]:
    """(norm weights and tables, eps, switches) as the kernels take them; `other` stands in for what there is not."""
    if turn is None:
        switches = {"TURN": False, "NORM": False, "LATE": False, "INTERLEAVED": False, "IN_FLOAT32": False}
        return (other, other, other, other), 0.0, switches
    q_norm, k_norm, eps, late = (other, other, 0.0, False) if turn.norms is None else turn.norms
    switches = {"TURN": True, "NORM": turn.norms is not None, "LATE": late}
    switches |= {"INTERLEAVED": turn.interleaved, "IN_FLOAT32": turn.in_float32}
    return (q_norm, k_norm, turn.cos, turn.sin), eps, switches


def paged(
    pool: Tensor,
    table: Tensor,
    slot: Tensor,
    pos: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    write: bool,
    turn: Turn | None = None,
) -> Tensor:
    """pool [2, pages, page, Hk, D], table [slots, max_pages], slot and pos [N], q [N, Hq, D], k and v [N, Hk, D]."""
    page, heads, dim = pool.shape[2:]
    group = q.shape[1] // heads
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, switches = _turn(turn, q)
    _paged[(len(q), heads)](
        pool, table, slot, pos, q, k, v, out, *tables, table.stride(0), pool.stride(0), pool.stride(2),
        q.stride(0), k.stride(0), v.stride(0), dim**-0.5, eps,
        HEADS=heads, GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), DIM=dim,
        WIDE=max(16, triton.next_power_of_2(dim)), PAGE=page,
        KEYS=KEYS[pool.element_size()], WRITE=write, EARLY=EARLY, num_warps=8, num_stages=3, **switches, **LAUNCH,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["length", "new"])
def _depth(
    cache, q, k, v, out, q_norm, k_norm, cos, sin, value_part, row_part, length, new,
    q_row, k_row, v_row, q_token, k_token, v_token, scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
    TURN: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1)
    head = tl.program_id(2)
    shared = head // GROUP
    at = tl.arange(0, WIDE)[None, :]
    within = at < DIM
    key = tl.arange(0, SPAN)[:, None]
    old = (key < length) & within
    fresh = (key >= length) & (key <= length + token) & within
    past = cache + row * row_part + (key * HEADS + shared) * DIM + at
    k_at = row * k_row + (key - length) * k_token + shared * DIM
    v_at = v + row * v_row + (key - length) * v_token + shared * DIM + at
    new_v = tl.load(v_at, fresh, 0.0)
    new_k = _turned(k, k_at, at, fresh, k_norm, cos, sin, key, eps, DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32)
    keys = tl.load(past, old, 0.0).to(tl.float32) + new_k.to(tl.float32)
    values = tl.load(past + value_part, old, 0.0).to(tl.float32) + new_v.to(tl.float32)
    if (head % GROUP == 0) & (token == new - 1):  # one program per head stores what is new
        tl.store(past, new_k, fresh)
        tl.store(past + value_part, new_v, fresh)
    query = _turned(
        q, row * q_row + token * q_token + head * DIM, at, within, q_norm, cos, sin, length + token, eps,
        DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32,
    ).to(tl.float32)  # fmt: skip
    score = tl.sum(keys * query, 1) * scale
    score = tl.where(tl.arange(0, SPAN) <= length + token, score, float("-inf"))
    weight = tl.exp(score - tl.max(score, 0))
    mean = tl.sum(values * weight[:, None], 0) / tl.sum(weight, 0)
    place = ((row * new + token) * HEADS * GROUP + head) * DIM + tl.arange(0, WIDE)
    tl.store(out + place, mean.to(out.dtype.element_ty), tl.arange(0, WIDE) < DIM)


def depth(cache: Tensor, length: int, q: Tensor, k: Tensor, v: Tensor, turn: Turn | None = None) -> Tensor:
    """cache [2, B, S, Hk, D], q [B, n, Hq, D], k and v [B, n, Hk, D]; tokens stand at positions `length` and on."""
    heads, dim = cache.shape[3:]
    batch, new, q_heads = q.shape[:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, switches = _turn(turn, q)
    _depth[(batch, new, q_heads)](
        cache, q, k, v, out, *tables, cache.stride(0), cache.stride(1), length, new,
        q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), dim**-0.5, eps,
        HEADS=heads, GROUP=q_heads // heads, DIM=dim, WIDE=triton.next_power_of_2(dim),
        SPAN=triton.next_power_of_2(cache.shape[2]), EARLY=EARLY, num_warps=4, **switches, **LAUNCH,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["queries", "keys", "first"])
def _local(
    q, k, v, out, q_norm, k_norm, cos, sin, q_row, k_row, v_row, q_token, k_token, v_token, queries, keys, first,
    scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
    TURN: tl.constexpr, NORM: tl.constexpr, LATE: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    shared = head // GROUP
    at = tl.arange(0, WIDE)[None, :]
    token = tl.arange(0, SPAN)
    asked = (token < queries)[:, None] & (at < DIM)
    known = (token < keys)[:, None] & (at < DIM)
    a = _turned(
        q, row * q_row + token[:, None] * q_token + head * DIM, at, asked, q_norm, cos, sin, first + token[:, None],
        eps, DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    b = _turned(
        k, row * k_row + token[:, None] * k_token + shared * DIM, at, known, k_norm, cos, sin, token[:, None], eps,
        DIM, TURN, NORM, LATE, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    c = tl.load(v + row * v_row + token[:, None] * v_token + shared * DIM + at, known, 0.0)
    score = tl.dot(a, tl.trans(b), input_precision="ieee") * scale
    score = tl.where((token < keys)[None, :], score, float("-inf"))
    weight = tl.exp(score - tl.max(score, 1)[:, None])
    mean = tl.dot(weight.to(c.dtype), c, input_precision="ieee") / tl.sum(weight, 1)[:, None]
    place = ((row * queries + token[:, None]) * HEADS * GROUP + head) * DIM + at
    tl.store(out + place, mean.to(out.dtype.element_ty), asked)


def local(q: Tensor, k: Tensor, v: Tensor, turn: Turn | None = None, first: int = 0) -> Tensor:
    """q [B, T, Hq, D], k and v [B, S, Hk, D], T and S at most LOCAL; keys stand at 0, queries at `first` and on."""
    (batch, queries, q_heads, dim), (keys, heads) = q.shape, k.shape[1:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, switches = _turn(turn, q)
    _local[(batch, q_heads)](
        q, k, v, out, *tables, q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1),
        queries, keys, first, dim**-0.5, eps, HEADS=heads, GROUP=q_heads // heads, DIM=dim,
        WIDE=max(16, triton.next_power_of_2(dim)), SPAN=LOCAL, EARLY=EARLY, num_warps=2, **switches, **LAUNCH,
    )  # fmt: skip
    return out
