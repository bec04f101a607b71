"""Triton kernels of attention in the flow's transformer, over the frames of a call and the pages of earlier cells.

One kernel turns the keys and stores them with the values, a second attends. Where a call has few rows, several CTAs
share the keys of a head, and a third kernel combines what they found (Dao et al., 2023, flash-decoding).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait

BLOCK_M, BLOCK_N = 64, 64  # queries and keys of a step of attention. A cell has 50 frames
COMBINED = 16  # frames of a CTA that combines
ENOUGH_CTAS, MOST_SPLITS = 256, 8  # of attention: two for each SM of an H200
MASKED = tl.constexpr(-1.0e30)
LOG2_E = 1.4426950408889634


class Pages(NamedTuple):
    """Where keys and values lie: pool [pages, steps, blocks, 2, 2, T, C], a page for T frames of a row.

    A page has keys, then values, of both branches. table [B, n]: each row's pages in order. filled [B] of them hold
    earlier frames, and the next takes those of the call.
    """

    pool: Tensor
    table: Tensor
    filled: Tensor


@triton.jit(do_not_specialize=["num_frames", "width"])
def _keep_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    pool_ptr,
    table_ptr,
    filled_ptr,
    num_frames,
    width,
    stride_page,
    layer,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Store key and value of one frame of a branch of a row. RoPE turns neighbours in the first head of the key."""
    pdl_wait(USE_PDL)
    frame, branch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, offs = branch // 2, tl.arange(0, BLOCK)
    mask, turns = offs < DIM, offs < 2 * HALF
    k_ptr = qkv_ptr + (branch * num_frames + frame) * (3 * DIM) + DIM
    k = tl.load(k_ptr + offs, mask, 0.0)
    v = tl.load(k_ptr + DIM + offs, mask, 0.0)
    other = tl.load(k_ptr + (offs ^ 1), turns, 0.0).to(tl.float32)
    at = (row * num_frames + frame) * HALF + offs // 2
    cos, sin = tl.load(cos_ptr + at, turns, 1.0), tl.load(sin_ptr + at, turns, 0.0)
    sign = tl.where(offs % 2 == 0, -1.0, 1.0)
    k = (k.to(tl.float32) * cos + other * (sign * sin)).to(k.dtype)
    page = tl.load(table_ptr + row * width + tl.load(filled_ptr + row))
    own_ptr = pool_ptr + page * stride_page + layer + ((branch % 2) * num_frames + frame) * DIM + offs
    tl.store(own_ptr, k.to(pool_ptr.dtype.element_ty), mask)
    tl.store(own_ptr + 2 * num_frames * DIM, v.to(pool_ptr.dtype.element_ty), mask)


@triton.jit
def _turned(x, cos, sin):
    """RoPE of neighbours of x [N, D], by cos and sin [N, D / 2]."""
    a, b = tl.split(tl.reshape(x.to(tl.float32), (cos.shape[0], cos.shape[1], 2)))
    return tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (x.shape[0], x.shape[1])).to(x.dtype)


@triton.jit
def _attend(q, k, v, mask_n, m_i, l_i, acc, scale):
    """One step of online softmax, by powers of two, over keys k and values v [N, D], of which mask_n exist."""
    qk = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    qk = tl.where(mask_n[None, :], qk, MASKED)
    m_new = tl.maximum(m_i, tl.max(qk, 1))
    alpha = tl.exp2(m_i - m_new)
    p = tl.where(mask_n[None, :], tl.exp2(qk - m_new[:, None]), 0.0)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_new, l_i * alpha + tl.sum(p, 1), acc


@triton.jit(do_not_specialize=["num_frames", "width"])
def _flow_attention_kernel(
    qkv_ptr, cos_ptr, sin_ptr, count_ptr, out_ptr, part_ptr, stat_ptr, pool_ptr, table_ptr, filled_ptr, num_frames,
    width, stride_page, layer, scale,
    SPLITS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    """Queries of one head of one branch of a row, over the blocks of keys of one split."""
    dim: tl.constexpr = HEADS * HEAD_DIM
    half: tl.constexpr = HEAD_DIM // 2
    pdl_wait(USE_PDL)
    branch, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    row, offs_d, offs_n = branch // 2, tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    exist_m = (offs_m < num_frames)[:, None]
    filled, count = tl.load(filled_ptr + row).to(tl.int32), tl.load(count_ptr + row).to(tl.int32)
    blocks = tl.cdiv(num_frames, BLOCK_N)  # of a page
    total = filled * blocks + tl.cdiv(count, BLOCK_N)
    each = tl.cdiv(total, SPLITS)
    first = tl.program_id(2) * each
    end = tl.minimum(first + each, total)
    row_table = table_ptr + row * width
    page = tl.load(row_table + tl.minimum(first // blocks, filled))
    q_ptrs = qkv_ptr + (branch.to(tl.int64) * num_frames + offs_m[:, None]) * (3 * dim) + head * HEAD_DIM + offs_d
    q = tl.load(q_ptrs, exist_m, 0.0)
    if head == 0:
        at = (row * num_frames + offs_m[:, None]) * half + tl.arange(0, half)[None, :]
        q = _turned(q, tl.load(cos_ptr + at, exist_m, 1.0), tl.load(sin_ptr + at, exist_m, 0.0))
    m_i = tl.full([BLOCK_M], MASKED, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    in_page = pool_ptr + layer + (branch % 2) * num_frames * dim + head * HEAD_DIM
    for i in range(first, end):
        at = (i % blocks) * BLOCK_N + offs_n
        exists = at < tl.where(i // blocks < filled, num_frames, count)
        ptrs = in_page + page * stride_page + at[:, None] * dim + offs_d[None, :]
        k = tl.load(ptrs, exists[:, None], 0.0).to(q.dtype)
        v = tl.load(ptrs + 2 * num_frames * dim, exists[:, None], 0.0).to(q.dtype)
        page = tl.load(row_table + tl.minimum((i + 1) // blocks, filled))  # while this block computes
        m_i, l_i, acc = _attend(q, k, v, exists, m_i, l_i, acc, scale)
    out = (branch.to(tl.int64) * num_frames + offs_m[:, None]) * dim + head * HEAD_DIM + offs_d[None, :]
    if SPLITS == 1:
        acc = acc / tl.where(l_i > 0, l_i, 1.0)[:, None]  # a row behind its end has no keys
        tl.store(out_ptr + out, acc.to(out_ptr.dtype.element_ty), exist_m)
    else:
        rows = tl.num_programs(1).to(tl.int64) * num_frames
        part = tl.program_id(2) * rows * HEAD_DIM
        tl.store(part_ptr + part + out, acc, exist_m & (first < end))
        stats = stat_ptr + 2 * tl.program_id(2) * rows + tl.program_id(1) * num_frames + offs_m
        tl.store(stats, m_i, offs_m < num_frames)
        tl.store(stats + rows, l_i, offs_m < num_frames)


@triton.jit(do_not_specialize=["num_frames"])
def _combine_kernel(
    part_ptr,
    stat_ptr,
    out_ptr,
    num_frames,
    SPLITS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """The output of some frames of a head from the splits of its keys."""
    pdl_wait(USE_PDL)
    branch, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    exist = offs_m < num_frames
    rows = tl.num_programs(1).to(tl.int64) * num_frames
    stats = stat_ptr + tl.program_id(1) * num_frames + offs_m
    out = (branch.to(tl.int64) * num_frames + offs_m[:, None]) * (HEADS * HEAD_DIM) + head * HEAD_DIM + offs_d[None, :]
    largest = tl.full([BLOCK_M], MASKED, tl.float32)
    for s in tl.static_range(SPLITS):
        largest = tl.maximum(largest, tl.load(stats + 2 * s * rows, exist, MASKED))
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for s in tl.static_range(SPLITS):
        m_i = tl.load(stats + 2 * s * rows, exist, MASKED)
        alpha = tl.exp2(m_i - largest)
        l_i += alpha * tl.load(stats + (2 * s + 1) * rows, exist, 0.0)
        stored = exist & (m_i > MASKED)  # a split without keys has stored nothing
        acc += alpha[:, None] * tl.load(part_ptr + s * rows * HEAD_DIM + out, stored[:, None], 0.0)
    acc = acc / tl.where(l_i > 0, l_i, 1.0)[:, None]
    tl.store(out_ptr + out, acc.to(out_ptr.dtype.element_ty), exist[:, None])


def splits_of(ctas: int, blocks: int) -> int:
    """In how many splits the blocks of keys of a head are read, if each split takes so many CTAs."""
    splits = 1
    while splits < min(MOST_SPLITS, blocks) and ctas * splits < ENOUGH_CTAS:
        splits *= 2
    return splits


def flow_attention(
    qkv: Tensor, cos: Tensor, sin: Tensor, count: Tensor, heads: int, pages: Pages, at: int = 0
) -> Tensor:
    """Attention of the frames of a call to those of the same row and branch, and to those in the pages before.

    qkv [B, 2, T, 3 C] -> [B, 2, T, C]. cos, sin [B, T, D / 2] float32 turn the first head. The first `count` [B] frames
    exist. Keys and values are stored in the row's next page. at: step times blocks plus block.
    """
    batch, _, frames, width = qkv.shape
    dim, half = width // 3, width // 6 // heads
    qkv, (pool, table, filled) = qkv.contiguous(), pages
    of_pages = table, filled, frames, table.shape[-1], pool.stride(0), at * 4 * frames * dim
    keeps = {"DIM": dim, "HALF": half, "BLOCK": triton.next_power_of_2(dim), "USE_PDL": USE_PDL, **PDL_LAUNCH}
    _keep_kernel[(frames, 2 * batch)](qkv, cos, sin, pool, *of_pages, num_warps=4, **keeps)
    tiles, rows = triton.cdiv(frames, BLOCK_M), 2 * batch * heads
    splits = splits_of(tiles * rows, table.shape[-1] * triton.cdiv(frames, BLOCK_N))
    out = torch.empty(batch, 2, frames, dim, dtype=qkv.dtype, device=qkv.device)
    parts = stats = out
    if splits > 1:
        parts = torch.empty(splits, *out.shape, dtype=torch.float32, device=qkv.device)
        stats = torch.empty(splits, 2, rows, frames, dtype=torch.float32, device=qkv.device)
    # Of loads that run ahead: shared memory holds no more. With so many registers an SM holds four CTAs.
    stages, registers = (3, 128) if qkv.dtype.itemsize == 2 else (1, None)
    shape = {"SPLITS": splits, "HEADS": heads, "HEAD_DIM": 2 * half, "USE_PDL": USE_PDL, **PDL_LAUNCH}
    _flow_attention_kernel[(tiles, rows, splits)](
        qkv, cos, sin, count, out, parts, stats, pool, *of_pages, LOG2_E * (2 * half) ** -0.5,
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4, num_stages=stages, maxnreg=registers, **shape,
    )  # fmt: skip
    if splits > 1:
        _combine_kernel[(triton.cdiv(frames, COMBINED), rows)](
            parts, stats, out, frames, BLOCK_M=COMBINED, num_warps=4, **shape
        )
    return out
