"""Attention kernels of the step: over the paged history of a request, and over the few positions of a depth loop.

Lengths and page tables are read on the device, so a captured launch stays valid while requests come and grow. The
softmax is online (Dao et al., 2022) and in float32. With a `QKNormRope` the kernel applies the norms of the heads and
RoPE itself. A CTA computes query heads that share a key head, so that keys are read and rotated once.
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
    x_ptr, base, offs_d, mask, norm_ptr, cos_ptr, sin_ptr, pos, eps,
    HEAD_DIM: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """Elements offs_d of the heads that begin at x_ptr + base, after norm and RoPE at table rows pos.

    They are rounded as norm.py and rope.py round. RoPE needs an element and its partner, so both are loaded.
    """
    raw = tl.load(x_ptr + base + offs_d, mask, 0.0)
    x = raw.to(tl.float32)
    if NORM_ROPE:
        dtype: tl.constexpr = raw.dtype
        if INTERLEAVED:
            offs_partner, offs_cs, sign = offs_d ^ 1, offs_d // 2, tl.where(offs_d % 2 == 0, -1.0, 1.0)
        else:
            first = offs_d < HEAD_DIM // 2
            offs_partner = tl.where(first, offs_d + HEAD_DIM // 2, offs_d - HEAD_DIM // 2)
            offs_cs, sign = tl.where(first, offs_d, offs_d - HEAD_DIM // 2), tl.where(first, -1.0, 1.0)
        partner = tl.load(x_ptr + base + offs_partner, mask, 0.0).to(tl.float32)
        cos = tl.load(cos_ptr + pos * (HEAD_DIM // 2) + offs_cs, mask, 0.0)
        sin = tl.load(sin_ptr + pos * (HEAD_DIM // 2) + offs_cs, mask, 0.0)
        if NORM:
            rstd = tl.rsqrt(tl.sum(x * x, 1) / HEAD_DIM + eps)[:, None]
            x = _times_weight(x * rstd, tl.load(norm_ptr + offs_d, offs_d < HEAD_DIM, 0.0), dtype, CAST_FIRST)
            partner = partner * rstd
            partner = _times_weight(
                partner, tl.load(norm_ptr + offs_partner, offs_d < HEAD_DIM, 0.0), dtype, CAST_FIRST
            )
        x = _rope(x, partner, cos, sin, sign, dtype, IN_FLOAT32)
    return x.to(raw.dtype)


@triton.jit
def _times_weight(x, weight, dtype: tl.constexpr, CAST_FIRST: tl.constexpr):
    """Normalised elements times the norm's weight, rounded as norm.py rounds."""
    if CAST_FIRST:
        x = x.to(dtype).to(tl.float32)
    return (x * weight.to(tl.float32)).to(dtype).to(tl.float32)


@triton.jit
def _rope(x, partner, cos, sin, sign, dtype: tl.constexpr, IN_FLOAT32: tl.constexpr):
    """x cos + sign partner sin, rounded as rope.py rounds but for the last time."""
    if IN_FLOAT32:
        return x * cos + sign * partner * sin
    cos, sin = cos.to(dtype).to(tl.float32), sin.to(dtype).to(tl.float32)
    return (x * cos).to(dtype).to(tl.float32) + sign * (partner * sin).to(dtype).to(tl.float32)


@triton.jit
def _repeat_rows(x, BLOCK_M: tl.constexpr):
    """Every row of x [G, D] repeated so often that there are BLOCK_M rows."""
    copies: tl.constexpr = BLOCK_M // x.shape[0]
    if copies > 1:
        x = tl.reshape(tl.broadcast_to(x[:, None, :], (x.shape[0], copies, x.shape[1])), (BLOCK_M, x.shape[1]))
    return x


@triton.jit
def _store_kv(new_k, v_ptr, v_offs, cache_ptr, mask, stride_kv):
    """Store a new key [1, D] at cache_ptr and its value at cache_ptr + stride_kv. Returns both as they are stored."""
    new_k = new_k.to(cache_ptr.dtype.element_ty)
    new_v = tl.load(v_ptr + v_offs, mask, 0.0).to(cache_ptr.dtype.element_ty)
    tl.store(cache_ptr, new_k, mask)
    tl.store(cache_ptr + stride_kv, new_v, mask)
    return new_k, new_v


@triton.jit
def _store_output(
    acc, m_i, l_i, out_ptr, split_ptr, first_head, split,
    GROUP: tl.constexpr, COPIES: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr,
):  # fmt: skip
    """Store the outputs of the query heads from first_head on.

    With several splits, store acc, m_i and l_i instead, [N, Hq, NUM_SPLITS, HEAD_DIM + 2], for _combine_splits_kernel.
    """
    offs_m, offs_d = tl.arange(0, acc.shape[0]), tl.arange(0, acc.shape[1])[None, :]
    mask_m = (offs_m % COPIES == 0) & (offs_m // COPIES < GROUP)
    head = first_head + offs_m // COPIES
    mask = mask_m[:, None] & (offs_d < HEAD_DIM)
    if NUM_SPLITS == 1:
        tl.store(out_ptr + head[:, None] * HEAD_DIM + offs_d, (acc / l_i[:, None]).to(out_ptr.dtype.element_ty), mask)
    else:
        offs = (head * NUM_SPLITS + split) * (HEAD_DIM + 2)
        tl.store(split_ptr + offs[:, None] + offs_d, acc, mask)
        tl.store(split_ptr + offs + HEAD_DIM, m_i, mask_m)
        tl.store(split_ptr + offs + HEAD_DIM + 1, l_i, mask_m)


@triton.jit
def _paged_kernel(
    pool_ptr, table_ptr, slot_ptr, pos_ptr, q_ptr, k_ptr, v_ptr, out_ptr, split_ptr, q_norm_ptr, k_norm_ptr, cos_ptr,
    sin_ptr, stride_table, stride_kv, stride_pos, stride_q, stride_k, stride_v, scale, eps,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_SPLITS: tl.constexpr, STORE_KV: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr,
    CAST_FIRST: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Attention of one token's query heads of one key head over a split of its history.

    Tensor cores take BLOCK_M queries, so each of the BLOCK_G heads (the group, padded to a power of two) is repeated.
    """
    pdl_wait(USE_PDL)
    kv_head = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    pos = tl.load(pos_ptr + token)
    pages_ptr = table_ptr + tl.load(slot_ptr + token) * stride_table
    seqlen = pos if STORE_KV else pos + 1
    split_len = tl.cdiv(tl.cdiv(seqlen, BLOCK_N), NUM_SPLITS) * BLOCK_N
    split_start = split * split_len
    split_end = tl.minimum(split_start + split_len, seqlen)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    offs_g = tl.arange(0, BLOCK_G)
    mask_q = (offs_g < GROUP)[:, None] & mask_d[None, :]
    q_base = token * stride_q + (kv_head * GROUP + offs_g)[:, None] * HEAD_DIM
    q = _load_norm_rope(
        q_ptr, q_base, offs_d[None, :], mask_q, q_norm_ptr, cos_ptr, sin_ptr, pos, eps,
        HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    q = _repeat_rows(q, BLOCK_M)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if STORE_KV and split == 0:  # this CTA does not read back what it stores: its own token stays in registers
        new_k = _load_norm_rope(
            k_ptr, token * stride_k + kv_head * HEAD_DIM, offs_d[None, :], mask_d[None, :], k_norm_ptr, cos_ptr,
            sin_ptr, pos, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
        )  # fmt: skip
        v_offs = token * stride_v + kv_head * HEAD_DIM + offs_d[None, :]
        new_page = tl.load(pages_ptr + pos // PAGE_SIZE)
        new_offs = (new_page * PAGE_SIZE + pos % PAGE_SIZE) * stride_pos + kv_head * HEAD_DIM + offs_d[None, :]
        new_k, new_v = _store_kv(new_k, v_ptr, v_offs, pool_ptr + new_offs, mask_d[None, :], stride_kv)
        m_i = tl.sum(q.to(tl.float32) * new_k.to(tl.float32), 1) * scale
        l_i += 1.0
        acc += new_v.to(tl.float32)
    offs_n = split_start + tl.arange(0, BLOCK_N)
    page = tl.load(pages_ptr + offs_n // PAGE_SIZE, offs_n < split_end, 0)
    for start_n in range(split_start, split_end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_n = offs_n < split_end
        kv_base = (page * PAGE_SIZE + offs_n % PAGE_SIZE) * stride_pos + kv_head * HEAD_DIM
        kv_offs = kv_base[:, None] + offs_d[None, :]
        mask_kv = mask_n[:, None] & mask_d[None, :]
        k = tl.load(pool_ptr + kv_offs, mask_kv, 0.0)
        v = tl.load(pool_ptr + stride_kv + kv_offs, mask_kv, 0.0)
        # The pages of the next iteration are loaded while this one computes.
        page = tl.load(pages_ptr + (offs_n + BLOCK_N) // PAGE_SIZE, offs_n + BLOCK_N < split_end, 0)
        qk = tl.dot(q.to(k.dtype), tl.trans(k), input_precision="ieee") * scale
        qk = tl.where(mask_n[None, :], qk, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_ij[:, None])
        alpha = tl.exp(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_ij
    first_head = (token * NUM_KV_HEADS + kv_head) * GROUP
    _store_output(acc, m_i, l_i, out_ptr, split_ptr, first_head, split, GROUP, BLOCK_M // BLOCK_G, HEAD_DIM, NUM_SPLITS)


@triton.jit
def _combine_splits_kernel(
    split_ptr, out_ptr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, NUM_SPLITS: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """The output of one query head from the splits of its history."""
    pdl_wait(USE_PDL)
    head = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    offs_d = tl.arange(0, BLOCK_D)
    ptrs = split_ptr + (head * NUM_SPLITS + tl.arange(0, NUM_SPLITS)) * (HEAD_DIM + 2)
    acc = tl.load(ptrs[:, None] + offs_d[None, :], (offs_d < HEAD_DIM)[None, :], 0.0)
    m_i = tl.load(ptrs + HEAD_DIM)
    alpha = tl.exp(m_i - tl.max(m_i, 0))  # m_i of an empty split is -inf
    l_i = tl.sum(alpha * tl.load(ptrs + HEAD_DIM + 1), 0)
    out = tl.sum(acc * alpha[:, None], 0) / l_i
    tl.store(out_ptr + head * HEAD_DIM + offs_d, out.to(out_ptr.dtype.element_ty), offs_d < HEAD_DIM)


def _norm_rope_args(
    args: QKNormRope | None, other: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], float, dict[str, bool]]:
    """(norm weights and tables, eps, constants) for the kernels. `other` takes the place of missing tensors."""
    if args is None:
        constants = {"NORM_ROPE": False, "NORM": False, "CAST_FIRST": False, "INTERLEAVED": False, "IN_FLOAT32": False}
        return (other, other, other, other), 0.0, constants
    q_norm, k_norm, eps, cast_first = (other, other, 0.0, False) if args.norms is None else args.norms
    constants = {"NORM_ROPE": True, "NORM": args.norms is not None, "CAST_FIRST": cast_first}
    constants |= {"INTERLEAVED": args.interleaved, "IN_FLOAT32": args.in_float32}
    return (q_norm, k_norm, args.cos, args.sin), eps, constants


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
    store_kv: bool,
    qk_norm_rope: QKNormRope | None,
    config: PagedConfig | None,
) -> Tensor:
    q, k, v = qkv
    page_size, kv_heads, dim = pool.shape[2:]
    group = q.shape[1] // kv_heads
    c = config or paged_config(len(q) * kv_heads, group, pool.element_size())
    block_g, block_d = triton.next_power_of_2(group), max(16, triton.next_power_of_2(dim))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    splits = out
    if c.num_splits > 1:
        splits = torch.empty((*q.shape[:2], c.num_splits, dim + 2), dtype=torch.float32, device=q.device)
    tables, eps, constants = _norm_rope_args(qk_norm_rope, q)
    _paged_kernel[(kv_heads, len(q), c.num_splits)](
        pool, table, slot, pos, q, k, v, out, splits, *tables, table.stride(0), pool.stride(0), pool.stride(2),
        q.stride(0), k.stride(0), v.stride(0), dim**-0.5, eps,
        NUM_KV_HEADS=kv_heads, GROUP=group, BLOCK_G=block_g, BLOCK_M=max(16, block_g), HEAD_DIM=dim, BLOCK_D=block_d,
        PAGE_SIZE=page_size, BLOCK_N=c.block_n, NUM_SPLITS=c.num_splits, STORE_KV=store_kv, USE_PDL=USE_PDL,
        num_warps=c.num_warps, num_stages=c.num_stages, **constants, **PDL_LAUNCH,
    )  # fmt: skip
    if c.num_splits > 1:
        _combine_splits_kernel[(q.shape[1], len(q))](
            splits, out, HEAD_DIM=dim, BLOCK_D=block_d, NUM_SPLITS=c.num_splits, USE_PDL=USE_PDL, num_warps=1,
            **PDL_LAUNCH,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["length"])
def _depth_kernel(
    cache_ptr, q_ptr, k_ptr, v_ptr, out_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, stride_kv, stride_cb, length,
    stride_qb, stride_kb, stride_vb, stride_qt, stride_kt, stride_vt, scale, eps,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, NUM_NEW: tl.constexpr, BLOCK_NEW: tl.constexpr, BLOCK_H: tl.constexpr,
    NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr, INTERLEAVED: tl.constexpr,
    IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_H query heads of one row that share a key head. NUM_NEW tokens (padded to BLOCK_NEW) follow at
    most BLOCK_N earlier ones."""
    pdl_wait(USE_PDL)
    kv_head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask_d = offs_d < HEAD_DIM
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n < length
    past_ptr = cache_ptr + row * stride_cb + kv_head * HEAD_DIM + offs_d
    k = tl.load(past_ptr + offs_n[:, None] * (NUM_KV_HEADS * HEAD_DIM), mask_n[:, None] & mask_d, 0.0)
    v = tl.load(past_ptr + stride_kv + offs_n[:, None] * (NUM_KV_HEADS * HEAD_DIM), mask_n[:, None] & mask_d, 0.0)
    offs_new = tl.arange(0, BLOCK_NEW)
    mask_new = (offs_new < NUM_NEW)[:, None] & mask_d
    new_v = tl.load(
        v_ptr + row * stride_vb + offs_new[:, None] * stride_vt + kv_head * HEAD_DIM + offs_d, mask_new, 0.0
    )
    new_k = _load_norm_rope(
        k_ptr, row * stride_kb + offs_new[:, None] * stride_kt + kv_head * HEAD_DIM, offs_d, mask_new, k_norm_ptr,
        cos_ptr, sin_ptr, length + offs_new[:, None], eps,
        HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    new_ptr = past_ptr + (length + offs_new[:, None]) * (NUM_KV_HEADS * HEAD_DIM)
    mask_store = mask_new & (tl.program_id(2) == 0)
    tl.store(new_ptr, new_k, mask_store)
    tl.store(new_ptr + stride_kv, new_v, mask_store)
    for i in tl.static_range(NUM_NEW * BLOCK_H):
        token, head = i // BLOCK_H, kv_head * GROUP + tl.program_id(2) * BLOCK_H + i % BLOCK_H
        q = _load_norm_rope(
            q_ptr, row * stride_qb + token * stride_qt + head * HEAD_DIM, offs_d, mask_d, q_norm_ptr, cos_ptr, sin_ptr,
            length + token, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
        ).to(tl.float32)  # fmt: skip
        qk = tl.where(mask_n, tl.sum(k.to(tl.float32) * q, 1) * scale, float("-inf"))
        qk_new = tl.where(offs_new <= token, tl.sum(new_k.to(tl.float32) * q, 1) * scale, float("-inf"))
        m_i = tl.maximum(tl.max(qk, 0), tl.max(qk_new, 0))
        p, p_new = tl.exp(qk - m_i), tl.exp(qk_new - m_i)
        acc = tl.sum(v.to(tl.float32) * p[:, None], 0) + tl.sum(new_v.to(tl.float32) * p_new[:, None], 0)
        out = acc / (tl.sum(p, 0) + tl.sum(p_new, 0))
        offs_out = ((row * NUM_NEW + token) * NUM_KV_HEADS * GROUP + head) * HEAD_DIM + tl.arange(0, BLOCK_D)
        tl.store(out_ptr + offs_out, out.to(out_ptr.dtype.element_ty), tl.arange(0, BLOCK_D) < HEAD_DIM)


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

    k and v [B, n, Hk, D] are stored after the earlier ones. The new tokens stand at `length`, `length` + 1, ...
    """
    positions, kv_heads, dim = cache.shape[2:]
    batch, new, q_heads = q.shape[:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, constants = _norm_rope_args(qk_norm_rope, q)
    group = q_heads // kv_heads
    c = config or depth_config(batch * kv_heads, group)
    _depth_kernel[(kv_heads, batch, group // c.block_h)](
        cache, q, k, v, out, *tables, cache.stride(0), cache.stride(1), length,
        q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), dim**-0.5, eps,
        NUM_KV_HEADS=kv_heads, GROUP=group, HEAD_DIM=dim, BLOCK_D=triton.next_power_of_2(dim),
        BLOCK_N=triton.next_power_of_2(max(1, positions - 1)), NUM_NEW=new, BLOCK_NEW=triton.next_power_of_2(new),
        BLOCK_H=c.block_h, USE_PDL=USE_PDL, num_warps=c.num_warps, **constants, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _load_norm_rope_halves(
    x_ptr, base, offs_half, mask, norm_ptr, cos, sin, eps,
    HEAD_DIM: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr,
):  # fmt: skip
    """What `_load_norm_rope` returns, as the two halves that are partners in RoPE, offs_half [1, half].

    A dot product of queries and keys may take the elements of a head in any order. cos and sin are rows of the tables.
    """
    if INTERLEAVED:
        offs_x, offs_y = 2 * offs_half, 2 * offs_half + 1
    else:
        offs_x, offs_y = offs_half, offs_half + HEAD_DIM // 2
    x = tl.load(x_ptr + base + offs_x, mask, 0.0)
    y = tl.load(x_ptr + base + offs_y, mask, 0.0)
    if NORM_ROPE:
        dtype: tl.constexpr = x.dtype
        a, b = x.to(tl.float32), y.to(tl.float32)
        if NORM:
            rstd = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / HEAD_DIM + eps)[:, None]
            a = _times_weight(a * rstd, tl.load(norm_ptr + offs_x, offs_half < HEAD_DIM // 2, 0.0), dtype, CAST_FIRST)
            b = _times_weight(b * rstd, tl.load(norm_ptr + offs_y, offs_half < HEAD_DIM // 2, 0.0), dtype, CAST_FIRST)
        x = _rope(a, b, cos, sin, -1.0, dtype, IN_FLOAT32).to(dtype)
        y = _rope(b, a, cos, sin, 1.0, dtype, IN_FLOAT32).to(dtype)
    return x, y


@triton.jit(do_not_specialize=["num_queries", "num_keys", "first_pos"])
def _local_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, stride_qb, stride_kb, stride_vb, stride_qt,
    stride_kt, stride_vt, num_queries, num_keys, first_pos, scale, eps,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr,
    INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_H query heads of one sequence that share a key head, BLOCK_N rows each."""
    pdl_wait(USE_PDL)
    first_head = tl.program_id(0) * BLOCK_H
    batch = tl.program_id(1).to(tl.int64)
    kv_head = first_head // GROUP
    offs_half = tl.arange(0, BLOCK_D // 2)[None, :]
    mask_half = offs_half < HEAD_DIM // 2
    offs_n = tl.arange(0, BLOCK_N)
    offs_m = tl.arange(0, BLOCK_H * BLOCK_N)  # the queries of all heads, one head after the other
    head, offs_t = first_head + offs_m // BLOCK_N, offs_m % BLOCK_N
    mask_k = (offs_n < num_keys)[:, None] & mask_half
    mask_q = (offs_t < num_queries)[:, None] & mask_half
    k_cos, k_sin, q_cos, q_sin = 0.0, 0.0, 0.0, 0.0
    if NORM_ROPE:
        k_offs = offs_n[:, None] * (HEAD_DIM // 2) + offs_half
        q_offs = (first_pos + offs_t)[:, None] * (HEAD_DIM // 2) + offs_half
        k_cos, k_sin = tl.load(cos_ptr + k_offs, mask_k, 0.0), tl.load(sin_ptr + k_offs, mask_k, 0.0)
        q_cos, q_sin = tl.load(cos_ptr + q_offs, mask_q, 0.0), tl.load(sin_ptr + q_offs, mask_q, 0.0)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask_v = (offs_n < num_keys)[:, None] & (offs_d < HEAD_DIM)
    v = tl.load(v_ptr + batch * stride_vb + offs_n[:, None] * stride_vt + kv_head * HEAD_DIM + offs_d, mask_v, 0.0)
    k_x, k_y = _load_norm_rope_halves(
        k_ptr, batch * stride_kb + offs_n[:, None] * stride_kt + kv_head * HEAD_DIM, offs_half, mask_k, k_norm_ptr,
        k_cos, k_sin, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    q_x, q_y = _load_norm_rope_halves(
        q_ptr, batch * stride_qb + offs_t[:, None] * stride_qt + head[:, None] * HEAD_DIM, offs_half, mask_q,
        q_norm_ptr, q_cos, q_sin, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    qk = tl.dot(q_x, tl.trans(k_x), input_precision="ieee")
    qk = tl.dot(q_y, tl.trans(k_y), qk, input_precision="ieee") * scale
    qk = tl.where((offs_n < num_keys)[None, :], qk, float("-inf"))
    p = tl.exp(qk - tl.max(qk, 1)[:, None])
    out = tl.dot(p.to(v.dtype), v, input_precision="ieee") / tl.sum(p, 1)[:, None]
    offs_out = ((batch * num_queries + offs_t[:, None]) * NUM_KV_HEADS * GROUP + head[:, None]) * HEAD_DIM + offs_d
    mask_out = (offs_t < num_queries)[:, None] & (offs_d < HEAD_DIM)
    tl.store(out_ptr + offs_out, out.to(out_ptr.dtype.element_ty), mask_out)


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
    (batch, num_queries, q_heads, dim), (num_keys, kv_heads) = q.shape, k.shape[1:3]
    c = config or local_config(batch, q_heads // kv_heads)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, constants = _norm_rope_args(qk_norm_rope, q)
    _local_kernel[(q_heads // c.block_h, batch)](
        q, k, v, out, *tables, q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1),
        num_queries, num_keys, first, dim**-0.5, eps,
        NUM_KV_HEADS=kv_heads, GROUP=q_heads // kv_heads, BLOCK_H=c.block_h, HEAD_DIM=dim,
        BLOCK_D=max(32, triton.next_power_of_2(dim)), BLOCK_N=LOCAL_TOKENS, USE_PDL=USE_PDL, num_warps=c.num_warps,
        **constants, **PDL_LAUNCH,
    )  # fmt: skip
    return out
