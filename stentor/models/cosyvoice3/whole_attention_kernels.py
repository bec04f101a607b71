"""Triton kernels of attention in the flow's transformer, over whole utterances.

There are many tiles of queries, so one kernel turns the keys before a second attends, with the parts that
`attention_kernels.py` has.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.models.cosyvoice3.attention_kernels import MASKED, Splits, attend, queries, store

BLOCK_M, BLOCK_N = 64, 64  # queries and keys of a step of attention


@triton.jit(do_not_specialize=["num_frames"])
def _keep_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    kept_ptr,
    num_frames,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Store key and value of one frame of a branch of a row. RoPE turns neighbours in the first head of the key."""
    pdl_wait(USE_PDL)
    frame, branch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask, turns = offs < DIM, offs < 2 * HALF
    k_ptr = qkv_ptr + (branch * num_frames + frame) * (3 * DIM) + DIM
    k = tl.load(k_ptr + offs, mask, 0.0)
    v = tl.load(k_ptr + DIM + offs, mask, 0.0)
    other = tl.load(k_ptr + (offs ^ 1), turns, 0.0).to(tl.float32)
    at = ((branch // 2) * num_frames + frame) * HALF + offs // 2
    cos, sin = tl.load(cos_ptr + at, turns, 1.0), tl.load(sin_ptr + at, turns, 0.0)
    sign = tl.where(offs % 2 == 0, -1.0, 1.0)
    k = (k.to(tl.float32) * cos + other * (sign * sin)).to(k.dtype)
    own_ptr = kept_ptr + (2 * branch * num_frames + frame) * DIM + offs
    tl.store(own_ptr, k, mask)
    tl.store(own_ptr + num_frames * DIM, v, mask)


@triton.jit(do_not_specialize=["num_frames"])
def _whole_attention_kernel(
    qkv_ptr, cos_ptr, sin_ptr, count_ptr, out_ptr, part_ptr, stat_ptr, kept_ptr, num_frames, scale,
    SPLITS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    """Some queries of one head of one branch of a row, over the blocks of keys of one split."""
    dim: tl.constexpr = HEADS * HEAD_DIM
    half: tl.constexpr = HEAD_DIM // 2
    pdl_wait(USE_PDL)
    branch, head = (tl.program_id(1) // HEADS).to(tl.int64), tl.program_id(1) % HEADS
    row, offs_d, offs_n = branch // 2, tl.arange(0, HEAD_DIM)[None, :], tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    exist_m, split = offs_m < num_frames, tl.program_id(2)
    count = tl.load(count_ptr + row).to(tl.int32)
    total = tl.cdiv(count, BLOCK_N)
    each = tl.cdiv(total, SPLITS)
    first = split * each
    end = tl.minimum(first + each, total)
    q_ptrs = qkv_ptr + (branch * num_frames + offs_m[:, None]) * (3 * dim) + head * HEAD_DIM + offs_d
    out = (branch * num_frames + offs_m[:, None]) * dim + head * HEAD_DIM + offs_d
    at = (row * num_frames + offs_m[:, None]) * half + tl.arange(0, half)[None, :]
    q = queries(q_ptrs, out_ptr + out, cos_ptr + at, sin_ptr + at, exist_m[:, None], head)
    m_i = tl.full([BLOCK_M], MASKED, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    keys = kept_ptr + 2 * branch * num_frames * dim + head * HEAD_DIM + offs_d
    for i in range(first, end):
        at_n = i * BLOCK_N + offs_n
        exist = at_n < count
        k = tl.load(keys + at_n[:, None] * dim, exist[:, None], 0.0)
        v = tl.load(keys + (num_frames + at_n)[:, None] * dim, exist[:, None], 0.0)
        m_i, l_i, acc = attend(q, k, v, exist[None, :], m_i, l_i, acc, scale)
    rows, stat = tl.num_programs(1).to(tl.int64) * num_frames, tl.program_id(1) * num_frames + offs_m
    store(out_ptr, part_ptr, stat_ptr, m_i, l_i, acc, scale, out, stat, exist_m, rows, split, HEAD_DIM, SPLITS)


def whole_attention(qkv: Tensor, cos: Tensor, sin: Tensor, count: Tensor, heads: int, kept: Tensor) -> Tensor:
    """Attention of frames to all of the same row and branch, of which the first `count` [B] exist.

    qkv [B, 2, T, 3 C] -> [B, 2, T, C]. cos, sin [B, T, D / 2] float32 turn the first head. kept [B, 2, 2, T, C]: room
    for the keys and the values of each branch.
    """
    batch, _, frames, width = qkv.shape
    dim, half = width // 3, width // 6 // heads
    qkv = qkv.contiguous()
    keeps = {"DIM": dim, "HALF": half, "BLOCK": triton.next_power_of_2(dim), "USE_PDL": USE_PDL, **PDL_LAUNCH}
    _keep_kernel[(frames, 2 * batch)](qkv, cos, sin, kept, frames, num_warps=4, **keeps)
    tiles = triton.cdiv(frames, BLOCK_M)
    splits = Splits(qkv, heads, tiles, triton.cdiv(frames, BLOCK_N))
    given = (qkv, cos, sin, count, *splits.results, kept, frames, splits.scale)
    shape = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, **splits.launch}
    _whole_attention_kernel[(tiles, splits.rows, splits.count)](*given, **shape)
    return splits.combined()
