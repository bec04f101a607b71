"""Triton kernels of attention in the flow's transformer, over rows that are solved from their
beginning.

A row has many tiles of queries, so one kernel turns the keys before a second attends. Where a call
has few rows, several CTAs share the keys of a head, and a third kernel combines their results (Dao
et al., 2023, flash-decoding).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.switches import config_rows

COMBINED = 16  # frames of a CTA that combines
ENOUGH_CTAS = 256  # of attention: two for each SM of an H200
MAX_SPLITS = 8
MASKED = tl.constexpr(-(2.0**100))
"""A power of two, so that its product with a scale is exact. Of a query that has seen no key yet,
that product less itself is 0 then, also where both are fused. Otherwise it may be 1e22, of which
exp2 is infinite."""
LOG2_E = 1.4426950408889634


@triton.jit
def turned(x, cos, sin):
    """RoPE of neighbours of x [N, D], by cos and sin [N, D / 2]."""
    a, b = tl.split(tl.reshape(x.to(tl.float32), (cos.shape[0], cos.shape[1], 2)))
    return tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), (x.shape[0], x.shape[1])).to(
        x.dtype
    )


@triton.jit
def queries(ptrs, out, cos_ptrs, sin_ptrs, exist, head):
    """Queries of a head at ptrs [M, D], of which the first head's are turned. exist [M, 1].

    A product reads them from shared memory if they come from a load. Values that were computed
    would be loaded into registers again for each product. So turned ones go by way of `out`, where
    the CTA leaves its result later.
    """
    if head == 0:
        q = turned(
            tl.load(ptrs, exist, 0.0), tl.load(cos_ptrs, exist, 1.0), tl.load(sin_ptrs, exist, 0.0)
        )
        tl.store(out, q, exist)
        tl.debug_barrier()
    return tl.load(tl.where(head == 0, out, ptrs), exist, 0.0)


@triton.jit
def attend(q, k, v, mask, m_i, l_i, acc, scale):
    """One step of online softmax, by powers of two, over keys k and values v [N, D]. mask [1 or M,
    N]: which are seen.

    m_i is the largest product of so far, not yet scaled.
    """
    qk = tl.where(mask, tl.dot(q, tl.trans(k), input_precision="ieee"), MASKED)
    m_new = tl.maximum(m_i, tl.max(qk, 1))
    largest = m_new * scale
    alpha = tl.exp2(m_i * scale - largest)
    p = tl.exp2(qk * scale - largest[:, None])
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_new, l_i * alpha + tl.sum(p, 1), acc


@triton.jit
def store(
    out_ptr,
    part_ptr,
    stat_ptr,
    m_i,
    l_i,
    acc,
    scale,
    at,
    stat,
    exist_m,
    rows,
    split,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The output at `at`, or what a split found: acc, and at `stat` its largest product, scaled,
    and its sum."""
    if SPLITS == 1:
        acc = acc / tl.where(l_i > 0, l_i, 1.0)[:, None]  # a row behind its end may have no keys
        tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), exist_m[:, None])
    else:
        any_key = m_i > MASKED
        tl.store(part_ptr + split * rows * HEAD_DIM + at, acc, (exist_m & any_key)[:, None])
        tl.store(
            stat_ptr + 2 * split * rows + stat, tl.where(any_key, m_i * scale, MASKED), exist_m
        )
        tl.store(stat_ptr + (2 * split + 1) * rows + stat, l_i, exist_m)


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
    branch = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    exist = offs_m < num_frames
    rows = tl.num_programs(1).to(tl.int64) * num_frames
    stats = stat_ptr + tl.program_id(1) * num_frames + offs_m
    out = (
        (branch.to(tl.int64) * num_frames + offs_m[:, None]) * (HEADS * HEAD_DIM)
        + head * HEAD_DIM
        + offs_d[None, :]
    )
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
    """In how many splits the blocks of keys of a head are read, if each split takes so many
    CTAs."""
    splits = 1
    while splits < min(MAX_SPLITS, blocks) and ctas * splits < ENOUGH_CTAS:
        splits *= 2
    return splits


class Splits:
    """How many CTAs share the keys of a head, where they leave their results, and the kernel that
    combines these."""

    def __init__(self, qkv: Tensor, heads: int, tiles: int, blocks: int, warps: int = 4) -> None:
        """qkv [B, 2, T, 3 C]. tiles: of queries. blocks: of keys, at most. warps: of a CTA that
        attends."""
        batch, _, self.frames, width = qkv.shape
        self.rows = 2 * batch * heads
        head_dim = width // 3 // heads
        ctas = 2 * config_rows(batch, 1) * heads * tiles
        self.count = count = splits_of(ctas, blocks)
        out = torch.empty(batch, 2, self.frames, width // 3, dtype=qkv.dtype, device=qkv.device)
        parts = stats = out
        if count > 1:
            parts = torch.empty(count, *out.shape, dtype=torch.float32, device=qkv.device)
            stats = torch.empty(
                count, 2, self.rows, self.frames, dtype=torch.float32, device=qkv.device
            )
        self.results = (out, parts, stats)
        self.scale = LOG2_E * head_dim**-0.5
        self._shape = {"SPLITS": count, "HEADS": heads, "HEAD_DIM": head_dim, **PDL_LAUNCH}
        # Of loads that run ahead: shared memory holds no more. With so many registers an SM holds
        # four CTAs.
        stages, registers = (3, 128) if qkv.dtype.itemsize == 2 else (1, None)
        self.launch = {
            **self._shape,
            "num_warps": warps,
            "num_stages": stages,
            "maxnreg": registers,
        }

    def combined(self) -> Tensor:
        """[B, 2, T, C]."""
        out, parts, stats = self.results
        if self.count > 1:
            grid = triton.cdiv(self.frames, COMBINED), self.rows
            _combine_kernel[grid](
                parts, stats, out, self.frames, BLOCK_M=COMBINED, num_warps=4, **self._shape
            )
        return out


BLOCK_M = 64  # queries of a CTA
BLOCK_N = 64  # keys of a step of attention


@triton.jit(do_not_specialize=["num_frames"])
def _turn_keys_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    turned_ptr,
    num_frames,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Store key and value of one frame of a branch of a row. RoPE turns neighbours in the first
    head of the key."""
    pdl_wait(USE_PDL)
    frame = tl.program_id(0)
    branch = tl.program_id(1).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < DIM
    turns = offs < 2 * HALF
    k_ptr = qkv_ptr + (branch * num_frames + frame) * (3 * DIM) + DIM
    k = tl.load(k_ptr + offs, mask, 0.0)
    v = tl.load(k_ptr + DIM + offs, mask, 0.0)
    other = tl.load(k_ptr + (offs ^ 1), turns, 0.0).to(tl.float32)
    at = ((branch // 2) * num_frames + frame) * HALF + offs // 2
    cos = tl.load(cos_ptr + at, turns, 1.0)
    sin = tl.load(sin_ptr + at, turns, 0.0)
    sign = tl.where(offs % 2 == 0, -1.0, 1.0)
    k = (k.to(tl.float32) * cos + other * (sign * sin)).to(k.dtype)
    own_ptr = turned_ptr + (2 * branch * num_frames + frame) * DIM + offs
    tl.store(own_ptr, k, mask)
    tl.store(own_ptr + num_frames * DIM, v, mask)


@triton.jit(do_not_specialize=["num_frames"])
def _row_attention_kernel(
    qkv_ptr, cos_ptr, sin_ptr, count_ptr, ended_ptr, out_ptr, part_ptr, stat_ptr, turned_ptr, num_frames, scale,
    CHUNK: tl.constexpr, SPLITS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Some queries of one head of one branch of a row, over the blocks of keys of one split.

    A query sees all keys of a row that has ended, and otherwise those up to the end of its chunk.
    """
    dim: tl.constexpr = HEADS * HEAD_DIM
    half: tl.constexpr = HEAD_DIM // 2
    pdl_wait(USE_PDL)
    branch = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    row = branch // 2
    offs_d = tl.arange(0, HEAD_DIM)[None, :]
    offs_n = tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    exist_m = offs_m < num_frames
    split = tl.program_id(2)
    count = tl.load(count_ptr + row).to(tl.int32)
    ended = tl.load(ended_ptr + row) != 0
    until = tl.where(ended, count, tl.minimum((offs_m // CHUNK + 1) * CHUNK, count))
    total = tl.cdiv(tl.max(until, 0), BLOCK_N)
    each = tl.cdiv(total, SPLITS)
    first = split * each
    end = tl.minimum(first + each, total)
    q_ptrs = (
        qkv_ptr + (branch * num_frames + offs_m[:, None]) * (3 * dim) + head * HEAD_DIM + offs_d
    )
    out = (branch * num_frames + offs_m[:, None]) * dim + head * HEAD_DIM + offs_d
    at = (row * num_frames + offs_m[:, None]) * half + tl.arange(0, half)[None, :]
    q = queries(q_ptrs, out_ptr + out, cos_ptr + at, sin_ptr + at, exist_m[:, None], head)
    m_i = tl.full([BLOCK_M], MASKED, tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    keys = turned_ptr + 2 * branch * num_frames * dim + head * HEAD_DIM + offs_d
    for i in range(first, end):
        at_n = i * BLOCK_N + offs_n
        exist = at_n < count
        k = tl.load(keys + at_n[:, None] * dim, exist[:, None], 0.0)
        v = tl.load(keys + (num_frames + at_n)[:, None] * dim, exist[:, None], 0.0)
        key_mask = at_n[None, :] < until[:, None]
        m_i, l_i, acc = attend(q, k, v, key_mask, m_i, l_i, acc, scale)
    rows = tl.num_programs(1).to(tl.int64) * num_frames
    stat = tl.program_id(1) * num_frames + offs_m
    store(
        out_ptr,
        part_ptr,
        stat_ptr,
        m_i,
        l_i,
        acc,
        scale,
        out,
        stat,
        exist_m,
        rows,
        split,
        HEAD_DIM,
        SPLITS,
    )


def row_attention(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: tuple[Tensor, Tensor, int],
    heads: int,
    turned: Tensor,
) -> Tensor:
    """Attention of frames to those of the same row and branch.

    qkv [B, 2, T, 3 C] -> [B, 2, T, C]. cos, sin [B, T, D / 2] float32 turn the first head. rows:
    how many first frames exist [B], whether a row has ended [B] bool, and the frames of a chunk. A
    frame sees all frames of a row that has ended, and otherwise those up to the end of its chunk.
    turned [B, 2, 2, T, C]: room for the keys and the values of each branch.
    """
    count, ended, chunk = rows
    batch, _, frames, width = qkv.shape
    dim = width // 3
    half = dim // 2 // heads
    qkv = qkv.contiguous()
    sizes = {"DIM": dim, "HALF": half, "BLOCK": triton.next_power_of_2(dim), **PDL_LAUNCH}
    _turn_keys_kernel[(frames, 2 * batch)](qkv, cos, sin, turned, frames, num_warps=4, **sizes)
    tiles = triton.cdiv(frames, BLOCK_M)
    splits = Splits(qkv, heads, tiles, triton.cdiv(frames, BLOCK_N))
    tensors = (qkv, cos, sin, count, ended.to(torch.int8), *splits.results, turned)
    shape = {"CHUNK": chunk, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, **splits.launch}
    grid = (tiles, splits.rows, splits.count)
    _row_attention_kernel[grid](*tensors, frames, splits.scale, **shape)
    return splits.combined()
