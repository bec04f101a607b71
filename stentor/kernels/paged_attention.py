"""Attention of a step over the pages of each request.

Lengths and page tables are read on the device, so a captured launch stays valid while requests come
and grow. The softmax is online (Dao et al., 2022) and in float32. With a `QKNormRope` the kernel
applies the norms of the heads and RoPE itself. A CTA computes query heads that share a key head, so
that keys are read and rotated once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.attention_parts import (
    load_norm_rope,
    load_window,
    norm_rope_args,
    seen_text,
    softmax_step,
    window_args,
)
from stentor.kernels.configs import PagedConfig, paged_config
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.types import QKNormRope, TextWindow


@triton.jit
def _repeat_rows(x, BLOCK_M: tl.constexpr):
    """Every row of x [G, D] repeated so often that there are BLOCK_M rows."""
    copies: tl.constexpr = BLOCK_M // x.shape[0]
    if copies > 1:
        x = tl.reshape(
            tl.broadcast_to(x[:, None, :], (x.shape[0], copies, x.shape[1])), (BLOCK_M, x.shape[1])
        )
    return x


@triton.jit
def _store_kv(new_k, v_ptr, v_offs, cache_ptr, mask, stride_kv):
    """Store a new key [1, D] at cache_ptr and its value at cache_ptr + stride_kv. Returns both as
    they are stored."""
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

    With several splits, store acc, m_i and l_i instead, [N, Hq, NUM_SPLITS, HEAD_DIM + 2], for
    _combine_splits_kernel.
    """
    offs_m = tl.arange(0, acc.shape[0])
    offs_d = tl.arange(0, acc.shape[1])[None, :]
    # The copies of a head have the same output. The first is stored.
    mask_m = (offs_m % COPIES == 0) & (offs_m // COPIES < GROUP)
    head = first_head + offs_m // COPIES
    mask = mask_m[:, None] & (offs_d < HEAD_DIM)
    if NUM_SPLITS == 1:
        tl.store(
            out_ptr + head[:, None] * HEAD_DIM + offs_d,
            (acc / l_i[:, None]).to(out_ptr.dtype.element_ty),
            mask,
        )
    else:
        offs = (head * NUM_SPLITS + split) * (HEAD_DIM + 2)
        tl.store(split_ptr + offs[:, None] + offs_d, acc, mask)
        tl.store(split_ptr + offs + HEAD_DIM, m_i, mask_m)
        tl.store(split_ptr + offs + HEAD_DIM + 1, l_i, mask_m)


@triton.jit
def _split_range(seqlen, split, BLOCK_N: tl.constexpr, NUM_SPLITS: tl.constexpr):
    """(first position, position after the last) of a split. Splits are whole blocks, so the last
    ones may be empty."""
    split_len = tl.cdiv(tl.cdiv(seqlen, BLOCK_N), NUM_SPLITS) * BLOCK_N
    split_start = split * split_len
    return split_start, tl.minimum(split_start + split_len, seqlen)


@triton.jit
def _paged_kernel(
    pool_ptr, table_ptr, slot_ptr, pos_ptr, q_ptr, k_ptr, v_ptr, out_ptr, split_ptr, q_norm_ptr, k_norm_ptr, cos_ptr,
    sin_ptr, text_start_ptr, text_end_ptr, place_ptr,
    stride_table, stride_kv, stride_pos, stride_q, stride_k, stride_v, scale, eps,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_SPLITS: tl.constexpr, NORM_ROPE: tl.constexpr, NORM: tl.constexpr,
    CAST_FIRST: tl.constexpr, INTERLEAVED: tl.constexpr, IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
    WINDOW: tl.constexpr, BEHIND: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Attention of one token's query heads of one key head over a split of its history.

    Tensor cores take BLOCK_M queries, so each of the BLOCK_G heads (the group, padded to a power of
    two) is repeated.
    """
    pdl_wait(USE_PDL)
    kv_head = tl.program_id(0)
    token = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    pos = tl.load(pos_ptr + token)
    pages_ptr = table_ptr + tl.load(slot_ptr + token) * stride_table
    split_start, split_end = _split_range(pos, split, BLOCK_N, NUM_SPLITS)
    if WINDOW:
        text_start, text_end, place = load_window(
            text_start_ptr, text_end_ptr, place_ptr, token, token >= 0
        )
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    offs_g = tl.arange(0, BLOCK_G)
    mask_q = (offs_g < GROUP)[:, None] & mask_d[None, :]
    q_base = token * stride_q + (kv_head * GROUP + offs_g)[:, None] * HEAD_DIM
    q = load_norm_rope(
        q_ptr, q_base, offs_d[None, :], mask_q, q_norm_ptr, cos_ptr, sin_ptr, pos, eps,
        HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    q = _repeat_rows(q, BLOCK_M)
    # With a window a row may see nothing of a block, so the maximum has to be finite.
    m_i = tl.full([BLOCK_M], -1e30 if WINDOW else float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if split == 0:  # a CTA does not read back what it stores: its own token stays in registers
        new_k = load_norm_rope(
            k_ptr, token * stride_k + kv_head * HEAD_DIM, offs_d[None, :], mask_d[None, :], k_norm_ptr, cos_ptr,
            sin_ptr, pos, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
        )  # fmt: skip
        v_offs = token * stride_v + kv_head * HEAD_DIM + offs_d[None, :]
        new_page = tl.load(pages_ptr + pos // PAGE_SIZE)
        new_offs = (
            (new_page * PAGE_SIZE + pos % PAGE_SIZE) * stride_pos
            + kv_head * HEAD_DIM
            + offs_d[None, :]
        )
        new_k, new_v = _store_kv(
            new_k, v_ptr, v_offs, pool_ptr + new_offs, mask_d[None, :], stride_kv
        )
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
        if WINDOW:
            mask_n = mask_n & seen_text(offs_n, text_start, text_end, place, BEHIND, AHEAD)
        m_i, l_i, acc = softmax_step(q, k, v, mask_n[None, :], m_i, l_i, acc, scale)
    first_head = (token * NUM_KV_HEADS + kv_head) * GROUP
    _store_output(
        acc,
        m_i,
        l_i,
        out_ptr,
        split_ptr,
        first_head,
        split,
        GROUP,
        BLOCK_M // BLOCK_G,
        HEAD_DIM,
        NUM_SPLITS,
    )


@triton.jit
def _combine_splits_kernel(
    split_ptr,
    out_ptr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
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
    tl.store(
        out_ptr + head * HEAD_DIM + offs_d, out.to(out_ptr.dtype.element_ty), offs_d < HEAD_DIM
    )


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
    window: TextWindow | None = None,
) -> Tensor:
    """Attention of one token per row: its k and v [N, Hk, D] are stored in the pages of its slot,
    and q [N, Hq, D] sees them and all that came before. window: the part of their text that the
    rows see, if not all.

    pool [2, pages, page, Hk, D] of one layer, table [slots, max_pages], slot [N], pos [N] positions
    of the tokens.
    """
    page_size, kv_heads, dim = pool.shape[2:]
    group = q.shape[1] // kv_heads
    c = config or paged_config(len(q) * kv_heads, group, pool.element_size())
    block_g = triton.next_power_of_2(group)
    block_d = max(16, triton.next_power_of_2(dim))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    splits = out
    if c.num_splits > 1:
        splits = torch.empty(
            (*q.shape[:2], c.num_splits, dim + 2), dtype=torch.float32, device=q.device
        )
    tables, eps, constants = norm_rope_args(qk_norm_rope, q)
    bounds, limits = window_args(window)
    _paged_kernel[(kv_heads, len(q), c.num_splits)](
        pool, table, slot, pos, q, k, v, out, splits, *tables, *bounds, table.stride(0), pool.stride(0), pool.stride(2),
        q.stride(0), k.stride(0), v.stride(0), dim**-0.5, eps,
        NUM_KV_HEADS=kv_heads, GROUP=group, BLOCK_G=block_g, BLOCK_M=max(16, block_g), HEAD_DIM=dim, BLOCK_D=block_d,
        PAGE_SIZE=page_size, BLOCK_N=c.block_n, NUM_SPLITS=c.num_splits,
        num_warps=c.num_warps, num_stages=c.num_stages, **constants, **limits,
        **PDL_LAUNCH,
    )  # fmt: skip
    if c.num_splits == 1:
        return out
    _combine_splits_kernel[(q.shape[1], len(q))](
        splits,
        out,
        HEAD_DIM=dim,
        BLOCK_D=block_d,
        NUM_SPLITS=c.num_splits,
        num_warps=1,
        **PDL_LAUNCH,
    )
    return out
