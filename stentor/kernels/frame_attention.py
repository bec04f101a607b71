"""Attention of a step over page sets by frame: the few rows of a request and one head are a CTA's.

It applies norms and RoPE, stores the rows that are kept, and keeps its own keys in registers. The
requests of a batch therefore do not wait for each other, as they do where a tile of
`prefill_attention` holds several. Page tables and positions are read on the device. The softmax is
online (Dao et al., 2022) and in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.attention_parts import load_norm_rope, norm_rope_args
from stentor.kernels.configs import PagedConfig
from stentor.kernels.constants import LOG2_E
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.types import QKNormRope

HALF = PagedConfig(64, 4, 3)
FLOAT32 = PagedConfig(32, 4, 2)
"""Keys of an iteration, warps and stages, as attention over prompts has them. Not measured."""


@triton.jit
def _softmax_step(q, k, v, is_seen, m_i, l_i, acc, scale):
    """(m_i, l_i, acc) of queries [M, D] after keys and values [N, D], of which they see is_seen [M,
    N]."""
    # Float32 is multiplied as float32. TF32 would keep ten bits of the mantissa.
    qk = tl.where(is_seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    m_ij = tl.maximum(m_i, tl.max(qk, 1))
    p = tl.exp2(qk - m_ij[:, None])
    alpha = tl.exp2(m_i - m_ij)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_ij, l_i * alpha + tl.sum(p, 1), acc


@triton.jit
def _frame_kernel(
    pool_ptr, table_ptr, slot_ptr, pos_ptr, seen_ptr, kept_ptr, q_ptr, k_ptr, v_ptr, out_ptr, q_norm_ptr, k_norm_ptr,
    cos_ptr, sin_ptr, stride_table, stride_kv, stride_pos, stride_q, stride_k, stride_v, scale, eps,
    ROWS: tl.constexpr, BLOCK_R: tl.constexpr, NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HAS_KEPT: tl.constexpr,
    NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr, INTERLEAVED: tl.constexpr,
    IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Attention of one head of the ROWS rows of a request."""
    pdl_wait(USE_PDL)
    head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    kv_head = head // GROUP
    offs_r = tl.arange(0, BLOCK_R)
    offs_d = tl.arange(0, BLOCK_D)
    mask_r = offs_r < ROWS
    mask_d = (offs_d < HEAD_DIM)[None, :]
    mask = mask_r[:, None] & mask_d
    row = request * ROWS + offs_r
    pages_ptr = table_ptr + tl.load(slot_ptr + request) * stride_table
    pos = tl.load(pos_ptr + row, mask_r, 0)
    visible = tl.load(seen_ptr + row, mask_r, -1)
    stored = mask_r
    if HAS_KEPT:
        stored = mask_r & (tl.load(kept_ptr + row, mask_r, 0) != 0)
    last = tl.max(visible, 0)
    # The rows that are kept are the last of the history: what stands before them is in the pages.
    own_start = tl.min(tl.where(stored, pos, last + 1), 0)
    q = load_norm_rope(
        q_ptr, row[:, None] * stride_q + head * HEAD_DIM, offs_d[None, :], mask, q_norm_ptr, cos_ptr, sin_ptr,
        pos[:, None], eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    own_k = load_norm_rope(
        k_ptr, row[:, None] * stride_k + kv_head * HEAD_DIM, offs_d[None, :], mask, k_norm_ptr, cos_ptr, sin_ptr,
        pos[:, None], eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    own_v = tl.load(
        v_ptr + row[:, None] * stride_v + kv_head * HEAD_DIM + offs_d[None, :], mask, 0.0
    )
    dtype: tl.constexpr = pool_ptr.dtype.element_ty
    q = q.to(dtype)
    own_k = own_k.to(dtype)
    own_v = own_v.to(dtype)
    keys_ptr = pool_ptr + kv_head * HEAD_DIM
    page = tl.load(pages_ptr + pos // PAGE_SIZE, stored, 0)
    own_ptrs = (
        keys_ptr + ((page * PAGE_SIZE + pos % PAGE_SIZE) * stride_pos)[:, None] + offs_d[None, :]
    )
    store_mask = (stored & (head % GROUP == 0))[:, None] & mask_d
    tl.store(own_ptrs, own_k, store_mask)
    tl.store(own_ptrs + stride_kv, own_v, store_mask)
    # Rows that are not kept may be anything, and 0 times NaN is NaN.
    own_v = tl.where(stored[:, None], own_v, 0.0)
    m_i = tl.full([BLOCK_R], -1e30, tl.float32)  # finite: a row may see nothing of a block
    l_i = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    in_own = stored[None, :] & (pos[None, :] <= visible[:, None])
    m_i, l_i, acc = _softmax_step(q, own_k, own_v, in_own, m_i, l_i, acc, scale)
    end = tl.minimum(own_start, last + 1)
    first_n = tl.arange(0, BLOCK_N)
    page = tl.load(pages_ptr + first_n // PAGE_SIZE, first_n < end, 0)
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_n = offs_n < end
        kv_ptrs = (
            keys_ptr
            + ((page * PAGE_SIZE + offs_n % PAGE_SIZE) * stride_pos)[:, None]
            + offs_d[None, :]
        )
        k = tl.load(kv_ptrs, mask_n[:, None] & mask_d, 0.0)
        v = tl.load(kv_ptrs + stride_kv, mask_n[:, None] & mask_d, 0.0)
        # The pages of the next iteration are loaded while this one computes.
        page = tl.load(pages_ptr + (offs_n + BLOCK_N) // PAGE_SIZE, offs_n + BLOCK_N < end, 0)
        in_history = mask_n[None, :] & (offs_n[None, :] <= visible[:, None])
        m_i, l_i, acc = _softmax_step(q, k, v, in_history, m_i, l_i, acc, scale)
    l_i = tl.where(l_i == 0.0, 1.0, l_i)  # rows of padding saw nothing
    out_ptrs = out_ptr + (row[:, None] * NUM_HEADS + head) * HEAD_DIM + offs_d[None, :]
    tl.store(out_ptrs, (acc / l_i[:, None]).to(out_ptr.dtype.element_ty), mask)


def frame_attention(
    pool: Tensor,
    table: Tensor,
    slot: Tensor,
    pos: Tensor,
    visible: Tensor,
    stored: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qk_norm_rope: QKNormRope | None = None,
    config: PagedConfig | None = None,
) -> Tensor:
    """Attention of n rows of each request: k and v [B * n, Hk, D] of those that are kept [B * n]
    (all where None) are stored at pos [B * n] in the pages of their slot [B]. Then q [B * n, Hq, D]
    sees what stands up to seen [B * n].

    pool [2, pages, page, Hk, D] of one layer, table [slots, max_pages]. The kept rows of a request
    are consecutive, and nothing behind them is stored. Returns [B * n, Hq, D].
    """
    page_size, kv_heads, dim = pool.shape[2:]
    heads = q.shape[1]
    rows = len(q) // len(slot)
    q, k, v = (t if t.stride()[1:] == (dim, 1) else t.contiguous() for t in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    c = config or (FLOAT32 if pool.element_size() > 2 else HALF)
    tables, eps, constants = norm_rope_args(qk_norm_rope, q)
    _frame_kernel[(heads, len(slot))](
        pool, table, slot, pos, visible, stored, q, k, v, out, *tables, table.stride(0), pool.stride(0), pool.stride(2),
        q.stride(0), k.stride(0), v.stride(0), dim**-0.5 * LOG2_E, eps,
        ROWS=rows, BLOCK_R=max(16, triton.next_power_of_2(rows)), NUM_HEADS=heads, GROUP=heads // kv_heads,
        HEAD_DIM=dim, BLOCK_D=max(16, triton.next_power_of_2(dim)), PAGE_SIZE=page_size, BLOCK_N=c.block_n,
        HAS_KEPT=stored is not None, num_warps=c.num_warps, num_stages=c.num_stages, **constants,
        **PDL_LAUNCH,
    )  # fmt: skip
    return out
