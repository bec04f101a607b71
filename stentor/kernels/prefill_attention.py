"""Attention of packed prompts over the pages of each request: FlashAttention's form (Dao, 2023)
with paged keys.

A CTA computes a tile of consecutive packed tokens and the query heads that share a key head, so
that a block of keys and values is read once for the tile and not once for each token. Slots,
positions and page tables are read on the device: a captured launch stays valid for other prompts. A
token sees the blocks of its history in their order and alone decides what it sees of each, so its
result does not depend on the tokens beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.attention_parts import load_window, seen_text, window_args
from stentor.kernels.configs import PrefillConfig, prefill_config
from stentor.kernels.constants import LOG2_E
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.switches import is_batch_invariant
from stentor.kernels.types import TextWindow


@triton.jit
def _load_kv(
    pool_ptr,
    pages_ptr,
    offs_n,
    offs_d,
    mask_n,
    stride_pos,
    PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Rows [N, D] of a pool's keys or values at the positions offs_n of one request."""
    page = tl.load(pages_ptr + offs_n // PAGE_SIZE, mask_n, 0)
    rows = (page * PAGE_SIZE + offs_n % PAGE_SIZE) * stride_pos
    return tl.load(
        pool_ptr + rows[:, None] + offs_d[None, :],
        mask_n[:, None] & (offs_d < HEAD_DIM)[None, :],
        0.0,
    )


@triton.jit
def _prefill_block(
    q, m_i, l_i, acc, keys_ptr, values_ptr, pages_ptr, offs_n, offs_d, last_pos, seen_pos, text_start, text_end, place,
    stride_pos, scale, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr, BEHIND: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """(m_i, l_i, acc) after the keys and values at offs_n. A row sees those up to its seen_pos, and
    with WINDOW of its text those near its place."""
    mask_n = offs_n <= last_pos
    k = _load_kv(keys_ptr, pages_ptr, offs_n, offs_d, mask_n, stride_pos, PAGE_SIZE, HEAD_DIM)
    qk = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    is_seen = offs_n[None, :] <= seen_pos[:, None]
    if WINDOW:
        near = seen_text(
            offs_n[None, :], text_start[:, None], text_end[:, None], place[:, None], BEHIND, AHEAD
        )
        is_seen = is_seen & near
    qk = tl.where(is_seen, qk, float("-inf"))
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    p = tl.exp2(qk - m_ij[:, None])
    alpha = tl.exp2(m_i - m_ij)
    v = _load_kv(values_ptr, pages_ptr, offs_n, offs_d, mask_n, stride_pos, PAGE_SIZE, HEAD_DIM)
    new_acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    # 0 times NaN is NaN: a row keeps what it has where it sees nothing, so that a broken request
    # breaks no other.
    acc = tl.where((seen_pos >= 0)[:, None], new_acc, acc)
    return m_ij, l_i * alpha + tl.sum(p, 1), acc


@triton.jit
def _prefill_kernel(
    pool_ptr, table_ptr, slot_ptr, pos_ptr, q_ptr, out_ptr, text_start_ptr, text_end_ptr, place_ptr,
    num_tokens, stride_table, stride_kv, stride_pos, stride_q, scale,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_T: tl.constexpr,
    TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    USE_PDL: tl.constexpr, WINDOW: tl.constexpr, BEHIND: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Attention of TOKENS tokens (at most BLOCK_T) and the query heads of one key head. The tokens
    may belong to several requests."""
    pdl_wait(USE_PDL)
    kv_head = tl.program_id(0)
    # Packed prompts end with their longest histories, and what takes longest should start first.
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * TOKENS
    end = tl.minimum(first + TOKENS, num_tokens)
    offs_m = tl.arange(0, BLOCK_T * BLOCK_G)
    offs_d = tl.arange(0, BLOCK_D)
    token = first + offs_m // BLOCK_G
    in_group = offs_m % BLOCK_G
    mask_m = (token < end) & (in_group < GROUP)
    slot = tl.load(slot_ptr + token, mask_m, -1)
    pos = tl.load(pos_ptr + token, mask_m, -1)
    text_start = pos
    text_end = pos
    place = pos
    if WINDOW:
        text_start, text_end, place = load_window(
            text_start_ptr, text_end_ptr, place_ptr, token, mask_m
        )
    offs_q = (kv_head * GROUP + in_group)[:, None] * HEAD_DIM + offs_d[None, :]
    mask_q = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + token.to(tl.int64)[:, None] * stride_q + offs_q, mask_q, 0.0)
    q = q.to(pool_ptr.dtype.element_ty)
    keys_ptr = pool_ptr + kv_head * HEAD_DIM
    # finite: a row may see nothing of a block
    m_i = tl.full([BLOCK_T * BLOCK_G], -1e30, tl.float32)
    l_i = tl.zeros([BLOCK_T * BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_T * BLOCK_G, BLOCK_D], tl.float32)
    while first < end:  # the next request in the tile: tokens of the same slot
        row_slot = tl.load(slot_ptr + first)
        seen_pos = tl.where((slot == row_slot) & (token >= first), pos, -1)
        last_pos = tl.max(seen_pos, 0)
        pages_ptr = table_ptr + row_slot * stride_table
        for start_n in range(0, last_pos + 1, BLOCK_N):
            m_i, l_i, acc = _prefill_block(
                q, m_i, l_i, acc, keys_ptr, keys_ptr + stride_kv, pages_ptr, start_n + tl.arange(0, BLOCK_N), offs_d,
                last_pos, seen_pos, text_start, text_end, place, stride_pos, scale, PAGE_SIZE, HEAD_DIM,
                WINDOW, BEHIND, AHEAD,
            )  # fmt: skip
        first += tl.sum(((seen_pos >= 0) & (in_group == 0)).to(tl.int32), 0)
    out_base = (token.to(tl.int64) * NUM_KV_HEADS * GROUP * HEAD_DIM)[:, None]
    l_i = tl.where(l_i == 0.0, 1.0, l_i)  # rows of padding saw nothing
    tl.store(out_ptr + out_base + offs_q, (acc / l_i[:, None]).to(out_ptr.dtype.element_ty), mask_q)


def prefill_attention(
    pool: Tensor,
    table: Tensor,
    slot: Tensor,
    pos: Tensor,
    q: Tensor,
    config: PrefillConfig | None = None,
    alone: bool = False,
    window: TextWindow | None = None,
) -> Tensor:
    """Attention of q [N, Hq, D] over what is in the pages (`kv_cache.store_kv`), each token up to
    its own position.

    pool [2, pages, page, Hk, D] of one layer, table [slots, max_pages], slot [N], pos [N]. The
    tokens of a slot stand side by side. `alone`: no two tokens have the same history, so each has
    CTAs of its own. window: the part of its text that each token sees, if not all. Returns [N, Hq,
    D].
    """
    page_size, kv_heads, dim = pool.shape[2:]
    group = q.shape[1] // kv_heads
    block_g = triton.next_power_of_2(group)
    c = config or prefill_config(block_g, pool.element_size(), is_batch_invariant())
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    block_t = c.block_m // block_g
    if alone:
        tokens = 1
    else:
        tokens = block_t
    bounds, limits = window_args(window)
    _prefill_kernel[(kv_heads, triton.cdiv(len(q), tokens))](
        pool, table, slot, pos, q, out, *bounds, len(q), table.stride(0), pool.stride(0), pool.stride(2), q.stride(0),
        dim**-0.5 * LOG2_E, NUM_KV_HEADS=kv_heads, GROUP=group, BLOCK_G=block_g, BLOCK_T=block_t, TOKENS=tokens,
        HEAD_DIM=dim, BLOCK_D=max(16, triton.next_power_of_2(dim)), PAGE_SIZE=page_size, BLOCK_N=c.block_n,
        num_warps=c.num_warps, num_stages=c.num_stages, **limits, **PDL_LAUNCH,
    )  # fmt: skip
    return out
