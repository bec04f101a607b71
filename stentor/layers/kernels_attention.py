"""Attention kernels of the step: over the paged history of a request, and over the few positions of a depth loop.

Lengths and page tables are read on the device, so a captured launch stays valid while requests come and grow.
Softmax is online (Dao et al., 2022), in float32.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.layers.kernels import LOCAL

KEYS = {2: 128, 4: 64}
"""Keys per pass over the history, by bytes of an element: what registers and shared memory hold."""


@triton.jit
def _paged(
    pool, table, slots, positions, q, k, v, out, table_row, value_part, key_slot, q_token, k_token, v_token, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    PAGE: tl.constexpr, KEYS: tl.constexpr, WRITE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pos = tl.load(positions + token)
    pages = table + tl.load(slots + token) * table_row
    at = tl.arange(0, WIDE)
    within = at < DIM
    group = tl.arange(0, ROWS)
    used = (group < GROUP)[:, None] & within[None, :]
    q_at = token * q_token + (head * GROUP + group)[:, None] * DIM + at[None, :]
    queries = tl.load(q + q_at, used, 0.0)
    high = tl.full([ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, WIDE], tl.float32)
    if WRITE:  # the token itself comes from registers: what this program writes it does not read back
        new_k = tl.load(k + token * k_token + head * DIM + at, within, 0.0).to(pool.dtype.element_ty)
        new_v = tl.load(v + token * v_token + head * DIM + at, within, 0.0).to(pool.dtype.element_ty)
        spot = (tl.load(pages + pos // PAGE) * PAGE + pos % PAGE) * key_slot + head * DIM + at
        tl.store(pool + spot, new_k, within)
        tl.store(pool + value_part + spot, new_v, within)
        high = tl.sum(queries.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale
        mass += 1.0
        total += new_v.to(tl.float32)[None, :]
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


def paged(
    pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, q: Tensor, k: Tensor, v: Tensor, write: bool
) -> Tensor:
    """pool [2, pages, page, Hk, D], table [slots, max_pages], slot and pos [N], q [N, Hq, D], k and v [N, Hk, D]."""
    page, heads, dim = pool.shape[2:]
    group = q.shape[1] // heads
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _paged[(len(q), heads)](
        pool, table, slot, pos, q, k, v, out, table.stride(0), pool.stride(0), pool.stride(2),
        q.stride(0), k.stride(0), v.stride(0), dim**-0.5,
        HEADS=heads, GROUP=group, ROWS=max(16, triton.next_power_of_2(group)), DIM=dim,
        WIDE=max(16, triton.next_power_of_2(dim)), PAGE=page,
        KEYS=KEYS[pool.element_size()], WRITE=write, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["length", "new"])
def _depth(
    cache, q, k, v, out, value_part, row_part, length, new, q_row, k_row, v_row, q_token, k_token, v_token, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
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
    k_at = k + row * k_row + (key - length) * k_token + shared * DIM + at
    v_at = v + row * v_row + (key - length) * v_token + shared * DIM + at
    new_k, new_v = tl.load(k_at, fresh, 0.0), tl.load(v_at, fresh, 0.0)
    keys = tl.load(past, old, 0.0).to(tl.float32) + new_k.to(tl.float32)
    values = tl.load(past + value_part, old, 0.0).to(tl.float32) + new_v.to(tl.float32)
    if (head % GROUP == 0) & (token == new - 1):  # one program per head stores what is new
        tl.store(past, new_k, fresh)
        tl.store(past + value_part, new_v, fresh)
    query = tl.load(q + row * q_row + token * q_token + head * DIM + at, within, 0.0).to(tl.float32)
    score = tl.sum(keys * query, 1) * scale
    score = tl.where(tl.arange(0, SPAN) <= length + token, score, float("-inf"))
    weight = tl.exp(score - tl.max(score, 0))
    mean = tl.sum(values * weight[:, None], 0) / tl.sum(weight, 0)
    place = ((row * new + token) * HEADS * GROUP + head) * DIM + tl.arange(0, WIDE)
    tl.store(out + place, mean.to(out.dtype.element_ty), tl.arange(0, WIDE) < DIM)


def depth(cache: Tensor, length: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """cache [2, B, S, Hk, D], q [B, n, Hq, D], k and v [B, n, Hk, D]."""
    heads, dim = cache.shape[3:]
    batch, new, q_heads = q.shape[:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _depth[(batch, new, q_heads)](
        cache, q, k, v, out, cache.stride(0), cache.stride(1), length, new,
        q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), dim**-0.5,
        HEADS=heads, GROUP=q_heads // heads, DIM=dim, WIDE=triton.next_power_of_2(dim),
        SPAN=triton.next_power_of_2(cache.shape[2]), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _local(
    q, k, v, out, q_row, k_row, v_row, q_token, k_token, v_token, queries, keys, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    shared = head // GROUP
    at = tl.arange(0, WIDE)[None, :]
    token = tl.arange(0, SPAN)
    asked = (token < queries)[:, None] & (at < DIM)
    known = (token < keys)[:, None] & (at < DIM)
    a = tl.load(q + row * q_row + token[:, None] * q_token + head * DIM + at, asked, 0.0)
    b = tl.load(k + row * k_row + token[:, None] * k_token + shared * DIM + at, known, 0.0)
    c = tl.load(v + row * v_row + token[:, None] * v_token + shared * DIM + at, known, 0.0)
    score = tl.dot(a, tl.trans(b), input_precision="ieee") * scale
    score = tl.where((token < keys)[None, :], score, float("-inf"))
    weight = tl.exp(score - tl.max(score, 1)[:, None])
    mean = tl.dot(weight.to(c.dtype), c, input_precision="ieee") / tl.sum(weight, 1)[:, None]
    place = ((row * queries + token[:, None]) * HEADS * GROUP + head) * DIM + at
    tl.store(out + place, mean.to(out.dtype.element_ty), asked)


def local(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [B, T, Hq, D], k and v [B, S, Hk, D], T and S at most LOCAL."""
    (batch, queries, q_heads, dim), (keys, heads) = q.shape, k.shape[1:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _local[(batch, q_heads)](
        q, k, v, out, q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), queries, keys,
        dim**-0.5, HEADS=heads, GROUP=q_heads // heads, DIM=dim, WIDE=max(16, triton.next_power_of_2(dim)),
        SPAN=LOCAL, num_warps=2,
    )  # fmt: skip
    return out
