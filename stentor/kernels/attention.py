"""Attention kernels of the step: over the paged history of a request, and over the few positions of a depth loop.

Lengths and page tables are read on the device, so a captured launch stays valid while requests come and grow.
Softmax is online (Dao et al., 2022), in float32. With a `QKNormRope` the kernel applies the norms of
the heads and RoPE itself. A CTA computes query heads that share a key head, so that keys are read and rotated once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.configs import (
    LOCAL_TOKENS,
    DepthConfig,
    LocalConfig,
    PagedConfig,
    depth_config,
    local_config,
    paged_config,
)
from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.kernels.types import QKNormRope


@triton.jit
def _load_norm_rope(
    x, start, at, inside, norm, cos, sin, place, eps, DIM: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr,
    CAST_FIRST: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Entries `at` of the heads that begin at x + start, after norm and RoPE at table rows `place`, as norm.py and
    rope.py round. Each entry and its partner in the rotation are read and computed where they are needed."""
    raw = tl.load(x + start + at, inside, 0.0)
    y = raw.to(tl.float32)
    if NORM_ROPE:
        kind: tl.constexpr = raw.dtype
        if INTERLEAVED:
            partner, pair, sign = at ^ 1, at // 2, tl.where(at % 2 == 0, -1.0, 1.0)
        else:
            first = at < DIM // 2
            partner = tl.where(first, at + DIM // 2, at - DIM // 2)
            pair, sign = tl.where(first, at, at - DIM // 2), tl.where(first, -1.0, 1.0)
        z = tl.load(x + start + partner, inside, 0.0).to(tl.float32)
        c = tl.load(cos + place * (DIM // 2) + pair, inside, 0.0)
        s = tl.load(sin + place * (DIM // 2) + pair, inside, 0.0)
        if NORM:
            factor = tl.rsqrt(tl.sum(y * y, 1) / DIM + eps)[:, None]
            y = _times_weight(y * factor, tl.load(norm + at, at < DIM, 0.0), kind, CAST_FIRST)
            z = _times_weight(z * factor, tl.load(norm + partner, at < DIM, 0.0), kind, CAST_FIRST)
        y = _rope(y, z, c, s, sign, kind, IN_FLOAT32)
    return y.to(raw.dtype)


@triton.jit
def _times_weight(y, weight, kind: tl.constexpr, CAST_FIRST: tl.constexpr):
    """Normalised entries times the norm's weight, rounded as norm.py does."""
    if CAST_FIRST:
        y = y.to(kind).to(tl.float32)
    return (y * weight.to(tl.float32)).to(kind).to(tl.float32)


@triton.jit
def _rope(y, z, c, s, sign, kind: tl.constexpr, IN_FLOAT32: tl.constexpr):
    """y c + sign z s, rounded as rope.py does but for the last time."""
    if IN_FLOAT32:
        return y * c + sign * z * s
    c, s = c.to(kind).to(tl.float32), s.to(kind).to(tl.float32)
    return (y * c).to(kind).to(tl.float32) + sign * (z * s).to(kind).to(tl.float32)


@triton.jit
def _repeat_rows(x, ROWS: tl.constexpr):
    """Every row of x [G, W] so often that there are ROWS."""
    copies: tl.constexpr = ROWS // x.shape[0]
    if copies > 1:
        x = tl.reshape(tl.broadcast_to(x[:, None, :], (x.shape[0], copies, x.shape[1])), (ROWS, x.shape[1]))
    return x


@triton.jit
def _store_kv(new_k, v, v_at, spot, within, value_part):
    """Store a new key [1, W] and the value from v, at spot and value_part behind it; both as they are stored."""
    new_k = new_k.to(spot.dtype.element_ty)
    new_v = tl.load(v + v_at, within, 0.0).to(spot.dtype.element_ty)
    tl.store(spot, new_k, within)
    tl.store(spot + value_part, new_v, within)
    return new_k, new_v


@triton.jit
def _store_output(
    total, high, mass, out, parts, first, part, GROUP: tl.constexpr, COPIES: tl.constexpr, DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Store the outputs of the query heads from `first` on or, for `_combine_splits_kernel`, what a split gives:
    parts [N, Hq, SPLITS, DIM + 2] has the sum of values, the highest score and the sum of weights."""
    row, at = tl.arange(0, total.shape[0]), tl.arange(0, total.shape[1])[None, :]
    once = (row % COPIES == 0) & (row // COPIES < GROUP)
    place = first + row // COPIES
    there = once[:, None] & (at < DIM)
    if SPLITS == 1:
        tl.store(out + place[:, None] * DIM + at, (total / mass[:, None]).to(out.dtype.element_ty), there)
    else:
        place = (place * SPLITS + part) * (DIM + 2)
        tl.store(parts + place[:, None] + at, total, there)
        tl.store(parts + place + DIM, high, once)
        tl.store(parts + place + DIM + 1, mass, once)


@triton.jit
def _paged_kernel(
    pool, table, slots, positions, q, k, v, out, parts, q_norm, k_norm, cos, sin, table_row, value_part, key_slot,
    q_token, k_token, v_token, scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    WRITE: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """One token's queries of one head of keys, over a share of its history. The matrix units take ROWS queries, so
    each of the MEMBERS (the group, padded to a power of two) goes in several times."""
    pdl_wait(USE_PDL)
    head = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    pos = tl.load(positions + token)
    pages = table + tl.load(slots + token) * table_row
    end = pos if WRITE else pos + 1
    share = tl.cdiv(tl.cdiv(end, KEYS), SPLITS) * KEYS
    begin = part * share
    stop = tl.minimum(begin + share, end)
    at = tl.arange(0, WIDE)
    within = at < DIM
    member = tl.arange(0, MEMBERS)
    used = (member < GROUP)[:, None] & within[None, :]
    q_at = token * q_token + (head * GROUP + member)[:, None] * DIM
    queries = _load_norm_rope(
        q,
        q_at,
        at[None, :],
        used,
        q_norm,
        cos,
        sin,
        pos,
        eps,
        DIM,
        NORM_ROPE,
        NORM,
        CAST_FIRST,
        INTERLEAVED,
        IN_FLOAT32,
    )
    queries = _repeat_rows(queries, ROWS)
    high = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, WIDE], tl.float32)
    if WRITE and part == 0:  # the token itself comes from registers: what this program writes it does not read back
        new_k = _load_norm_rope(
            k, token * k_token + head * DIM, at[None, :], within[None, :], k_norm, cos, sin, pos, eps,
            DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
        )  # fmt: skip
        v_at = token * v_token + head * DIM + at[None, :]
        spot = (tl.load(pages + pos // PAGE) * PAGE + pos % PAGE) * key_slot + head * DIM + at[None, :]
        new_k, new_v = _store_kv(new_k, v, v_at, pool + spot, within[None, :], value_part)
        high = tl.sum(queries.to(tl.float32) * new_k.to(tl.float32), 1) * scale
        mass += 1.0
        total += new_v.to(tl.float32)
    key = begin + tl.arange(0, KEYS)
    page = tl.load(pages + key // PAGE, key < stop, 0)
    for start in range(begin, stop, KEYS):
        key = start + tl.arange(0, KEYS)
        seen = key < stop
        place = ((page * PAGE + key % PAGE) * key_slot + head * DIM)[:, None] + at[None, :]
        there = seen[:, None] & within[None, :]
        keys = tl.load(pool + place, there, 0.0)
        values = tl.load(pool + value_part + place, there, 0.0)
        page = tl.load(pages + (key + KEYS) // PAGE, key + KEYS < stop, 0)  # of the next pass
        score = tl.dot(queries.to(keys.dtype), tl.trans(keys), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        top = tl.maximum(high, tl.max(score, 1))
        weight = tl.exp(score - top[:, None])
        fade = tl.exp(high - top)
        mass = mass * fade + tl.sum(weight, 1)
        total = total * fade[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
        high = top
    first = (token * HEADS + head) * GROUP
    _store_output(total, high, mass, out, parts, first, part, GROUP, ROWS // MEMBERS, DIM, SPLITS)


@triton.jit
def _combine_splits_kernel(
    parts, out, DIM: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr, USE_PDL: tl.constexpr
):
    """One query head's output from what the programs of `_paged_kernel` found in their shares."""
    pdl_wait(USE_PDL)
    place = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    at = tl.arange(0, WIDE)
    found = parts + (place * SPLITS + tl.arange(0, SPLITS)) * (DIM + 2)
    total = tl.load(found[:, None] + at[None, :], (at < DIM)[None, :], 0.0)
    high = tl.load(found + DIM)
    weight = tl.exp(high - tl.max(high, 0))  # an empty share has a highest score of -inf
    mass = tl.sum(weight * tl.load(found + DIM + 1), 0)
    mean = tl.sum(total * weight[:, None], 0) / mass
    tl.store(out + place * DIM + at, mean.to(out.dtype.element_ty), at < DIM)


def _norm_rope_args(
    args: QKNormRope | None, other: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], float, dict[str, bool]]:
    """(norm weights and tables, eps, switches) as the kernels take them; `other` stands in for what there is not."""
    if args is None:
        switches = {
            "NORM_ROPE": False,
            "NORM": False,
            "CAST_FIRST": False,
            "INTERLEAVED": False,
            "IN_FLOAT32": False,
        }
        return (other, other, other, other), 0.0, switches
    q_norm, k_norm, eps, late = (other, other, 0.0, False) if args.norms is None else args.norms
    switches = {"NORM_ROPE": True, "NORM": args.norms is not None, "CAST_FIRST": late}
    switches |= {"INTERLEAVED": args.interleaved, "IN_FLOAT32": args.in_float32}
    return (q_norm, k_norm, args.cos, args.sin), eps, switches


def paged_attention(
    pool: Tensor,
    table: Tensor,
    slot: Tensor,
    pos: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qk_norm_rope: QKNormRope | None = None,
    config: PagedConfig | None = None,
) -> Tensor:
    """Attention of one token per row: its k and v [N, Hk, D] are stored in the pages of its slot, and q [N, Hq, D] sees
    them and all that came before.

    pool [2, pages, page, Hk, D] of one layer, table [slots, max_pages], slot [N], pos [N] positions of the tokens.
    """
    return _launch_paged(pool, table, slot, pos, (q, k, v), True, qk_norm_rope, config)


def paged_prefill_attention(
    pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, q: Tensor, config: PagedConfig | None = None
) -> Tensor:
    """Attention of q [N, Hq, D] over what is in the pages (`kv_cache.store_kv`), each token up to its own position."""
    return _launch_paged(pool, table, slot, pos, (q, q, q), False, None, config)


def _launch_paged(
    pool: Tensor,
    table: Tensor,
    slot: Tensor,
    pos: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    write: bool,
    qk_norm_rope: QKNormRope | None,
    config: PagedConfig | None,
) -> Tensor:
    q, k, v = qkv
    page, heads, dim = pool.shape[2:]
    group = q.shape[1] // heads
    t = config or paged_config(len(q) * heads, group, pool.element_size())
    members, wide = triton.next_power_of_2(group), max(16, triton.next_power_of_2(dim))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    parts = out
    if t.num_splits > 1:
        parts = torch.empty((*q.shape[:2], t.num_splits, dim + 2), dtype=torch.float32, device=q.device)
    tables, eps, switches = _norm_rope_args(qk_norm_rope, q)
    _paged_kernel[(heads, len(q), t.num_splits)](
        pool, table, slot, pos, q, k, v, out, parts, *tables, table.stride(0), pool.stride(0), pool.stride(2),
        q.stride(0), k.stride(0), v.stride(0), dim**-0.5, eps,
        HEADS=heads, GROUP=group, MEMBERS=members, ROWS=max(16, members), DIM=dim, WIDE=wide, PAGE=page, KEYS=t.block_n,
        SPLITS=t.num_splits, WRITE=write, USE_PDL=USE_PDL,
        num_warps=t.num_warps, num_stages=t.num_stages, **switches, **PDL_LAUNCH,
    )  # fmt: skip
    if t.num_splits > 1:
        _combine_splits_kernel[(q.shape[1], len(q))](
            parts, out, DIM=dim, WIDE=wide, SPLITS=t.num_splits, USE_PDL=USE_PDL, num_warps=1, **PDL_LAUNCH
        )
    return out


@triton.jit(do_not_specialize=["length"])
def _depth_kernel(
    cache, q, k, v, out, q_norm, k_norm, cos, sin, value_part, row_part, length,
    q_row, k_row, v_row, q_token, k_token, v_token, scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
    NEW: tl.constexpr, ROOM: tl.constexpr, MEMBERS: tl.constexpr, NORM_ROPE: tl.constexpr,
    NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """MEMBERS of the query heads of one row that share a head of keys: NEW tokens (padded to ROOM) after at most SPAN
    earlier ones."""
    pdl_wait(USE_PDL)
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, WIDE)[None, :]
    within = at < DIM
    key = tl.arange(0, SPAN)
    old = key < length
    past = cache + row * row_part + head * DIM + at
    keys = tl.load(past + key[:, None] * (HEADS * DIM), old[:, None] & within, 0.0)
    values = tl.load(past + value_part + key[:, None] * (HEADS * DIM), old[:, None] & within, 0.0)
    fresh = tl.arange(0, ROOM)
    here = (fresh < NEW)[:, None] & within
    new_v = tl.load(v + row * v_row + fresh[:, None] * v_token + head * DIM + at, here, 0.0)
    new_k = _load_norm_rope(
        k, row * k_row + fresh[:, None] * k_token + head * DIM, at, here, k_norm, cos, sin, length + fresh[:, None],
        eps, DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    spot = past + (length + fresh[:, None]) * (HEADS * DIM)
    mine = here & (tl.program_id(2) == 0)
    tl.store(spot, new_k, mine)
    tl.store(spot + value_part, new_v, mine)
    for i in tl.static_range(NEW * MEMBERS):
        token, member = i // MEMBERS, head * GROUP + tl.program_id(2) * MEMBERS + i % MEMBERS
        query = _load_norm_rope(
            q, row * q_row + token * q_token + member * DIM, at, within, q_norm, cos, sin, length + token, eps,
            DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
        ).to(tl.float32)  # fmt: skip
        before = tl.where(old, tl.sum(keys.to(tl.float32) * query, 1) * scale, float("-inf"))
        now = tl.where(fresh <= token, tl.sum(new_k.to(tl.float32) * query, 1) * scale, float("-inf"))
        high = tl.maximum(tl.max(before, 0), tl.max(now, 0))
        before, now = tl.exp(before - high), tl.exp(now - high)
        total = tl.sum(values.to(tl.float32) * before[:, None], 0) + tl.sum(new_v.to(tl.float32) * now[:, None], 0)
        mean = total / (tl.sum(before, 0) + tl.sum(now, 0))
        place = ((row * NEW + token) * HEADS * GROUP + member) * DIM + tl.arange(0, WIDE)
        tl.store(out + place, mean.to(out.dtype.element_ty), tl.arange(0, WIDE) < DIM)


def depth_attention(
    cache: Tensor,
    length: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qk_norm_rope: QKNormRope | None = None,
    config: DepthConfig | None = None,
) -> Tensor:
    """Attention of n new tokens q [B, n, Hq, D] over `length` earlier ones in cache [2, B, S, Hk, D] and, causally,
    each other.

    k and v [B, n, Hk, D] are stored behind the earlier ones. The new tokens stand at position `length` and on.
    """
    positions, heads, dim = cache.shape[2:]
    batch, new, q_heads = q.shape[:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, switches = _norm_rope_args(qk_norm_rope, q)
    group = q_heads // heads
    t = config or depth_config(batch * heads, group)
    _depth_kernel[(heads, batch, group // t.block_h)](
        cache, q, k, v, out, *tables, cache.stride(0), cache.stride(1), length,
        q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), dim**-0.5, eps,
        HEADS=heads, GROUP=group, DIM=dim, WIDE=triton.next_power_of_2(dim),
        SPAN=triton.next_power_of_2(max(1, positions - 1)), NEW=new, ROOM=triton.next_power_of_2(new),
        MEMBERS=t.block_h,
        USE_PDL=USE_PDL, num_warps=t.num_warps, **switches, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _load_norm_rope_halves(
    x, start, at, inside, norm, c, s, eps, DIM: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr,
    CAST_FIRST: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """What `_load_norm_rope` gives, as the two halves that are partners in RoPE, `at` [1, half]: for dot products of
    queries and keys, which may take the entries of a head in any order. c and s: rows of the tables."""
    if INTERLEAVED:
        one, other = 2 * at, 2 * at + 1
    else:
        one, other = at, at + DIM // 2
    raw = tl.load(x + start + one, inside, 0.0)
    partner = tl.load(x + start + other, inside, 0.0)
    if NORM_ROPE:
        kind: tl.constexpr = raw.dtype
        y, z = raw.to(tl.float32), partner.to(tl.float32)
        if NORM:
            factor = tl.rsqrt((tl.sum(y * y, 1) + tl.sum(z * z, 1)) / DIM + eps)[:, None]
            y = _times_weight(y * factor, tl.load(norm + one, at < DIM // 2, 0.0), kind, CAST_FIRST)
            z = _times_weight(z * factor, tl.load(norm + other, at < DIM // 2, 0.0), kind, CAST_FIRST)
        raw = _rope(y, z, c, s, -1.0, kind, IN_FLOAT32).to(kind)
        partner = _rope(z, y, c, s, 1.0, kind, IN_FLOAT32).to(kind)
    return raw, partner


@triton.jit(do_not_specialize=["queries", "keys", "first"])
def _local_kernel(
    q, k, v, out, q_norm, k_norm, cos, sin, q_row, k_row, v_row, q_token, k_token, v_token, queries, keys, first,
    scale, eps,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    SPAN: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """PER query heads of one sequence that share a head of keys, SPAN rows each."""
    pdl_wait(USE_PDL)
    head = tl.program_id(0) * PER
    row = tl.program_id(1).to(tl.int64)
    shared = head // GROUP
    half = tl.arange(0, WIDE // 2)[None, :]
    inside = half < DIM // 2
    token = tl.arange(0, SPAN)
    stacked = tl.arange(0, PER * SPAN)
    member, asking = head + stacked // SPAN, stacked % SPAN
    known = (token < keys)[:, None] & inside
    asked = (asking < queries)[:, None] & inside
    k_cos, k_sin, q_cos, q_sin = 0.0, 0.0, 0.0, 0.0
    if NORM_ROPE:
        k_place, q_place = token[:, None] * (DIM // 2) + half, (first + asking)[:, None] * (DIM // 2) + half
        k_cos, k_sin = tl.load(cos + k_place, known, 0.0), tl.load(sin + k_place, known, 0.0)
        q_cos, q_sin = tl.load(cos + q_place, asked, 0.0), tl.load(sin + q_place, asked, 0.0)
    at = tl.arange(0, WIDE)[None, :]
    seen = (token < keys)[:, None] & (at < DIM)
    c = tl.load(v + row * v_row + token[:, None] * v_token + shared * DIM + at, seen, 0.0)
    b, b_partner = _load_norm_rope_halves(
        k, row * k_row + token[:, None] * k_token + shared * DIM, half, known, k_norm, k_cos, k_sin, eps,
        DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    a, a_partner = _load_norm_rope_halves(
        q, row * q_row + asking[:, None] * q_token + member[:, None] * DIM, half, asked, q_norm, q_cos, q_sin, eps,
        DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    score = tl.dot(a, tl.trans(b), input_precision="ieee")
    score = tl.dot(a_partner, tl.trans(b_partner), score, input_precision="ieee") * scale
    score = tl.where((token < keys)[None, :], score, float("-inf"))
    weight = tl.exp(score - tl.max(score, 1)[:, None])
    mean = tl.dot(weight.to(c.dtype), c, input_precision="ieee") / tl.sum(weight, 1)[:, None]
    place = ((row * queries + asking[:, None]) * HEADS * GROUP + member[:, None]) * DIM + at
    tl.store(out + place, mean.to(out.dtype.element_ty), (asking < queries)[:, None] & (at < DIM))


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qk_norm_rope: QKNormRope | None = None,
    first: int = 0,
    config: LocalConfig | None = None,
) -> Tensor:
    """Attention in which every token sees every other: q [B, T, Hq, D], k and v [B, S, Hk, D], T and S at most
    LOCAL_TOKENS. For RoPE, keys stand at position 0 and on, queries at `first` and on."""
    (batch, queries, q_heads, dim), (keys, heads) = q.shape, k.shape[1:3]
    t = config or local_config(batch, q_heads // heads)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, switches = _norm_rope_args(qk_norm_rope, q)
    _local_kernel[(q_heads // t.block_h, batch)](
        q, k, v, out, *tables, q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1),
        queries, keys, first, dim**-0.5, eps, HEADS=heads, GROUP=q_heads // heads, PER=t.block_h, DIM=dim,
        WIDE=max(32, triton.next_power_of_2(dim)), SPAN=LOCAL_TOKENS, USE_PDL=USE_PDL, num_warps=t.num_warps,
        **switches, **PDL_LAUNCH,
    )  # fmt: skip
    return out
