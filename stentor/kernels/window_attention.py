"""Windowed attention of a streaming codec: a token sees the last `window` tokens of its stream,
itself included.

A CTA goes over the keys in blocks that begin at multiples of their size, counted from the beginning
of the stream. So a token's sums have the same order however its stream was cut into chunks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.attention_parts import softmax_step
from stentor.kernels.configs import WINDOW, WindowConfig


@triton.jit(do_not_specialize=["num_queries", "past", "window", "stride_pos"])
def _window_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    pos_ptr,
    out_ptr,
    stride_qb,
    stride_qt,
    stride_kb,
    stride_kt,
    stride_vb,
    stride_vt,
    stride_pos,
    num_queries,
    past,
    window,
    scale,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    offs_m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < HEAD_DIM)[None, :]
    mask_m = offs_m < num_queries
    q_base = batch * stride_qb + offs_m[:, None] * stride_qt + head * HEAD_DIM + offs_d[None, :]
    q = tl.load(q_ptr + q_base, mask_m[:, None] & mask_d, 0.0)
    chunk_pos = tl.load(pos_ptr + batch * stride_pos)
    first_key = chunk_pos - past  # below 0 where the stream is younger than its window
    pos = chunk_pos + offs_m
    last = chunk_pos + tl.minimum(tl.program_id(2) * BLOCK_M + BLOCK_M, num_queries) - 1
    lowest = tl.maximum(
        tl.maximum(chunk_pos + tl.program_id(2) * BLOCK_M - window + 1, first_key), 0
    )
    m_i = tl.full([BLOCK_M], -1e30, tl.float32)  # finite: a row may see nothing of a block
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(lowest // BLOCK_N * BLOCK_N, last + 1, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        mask_n = (key >= lowest) & (key <= last)
        mask_kv = mask_n[:, None] & mask_d
        rows = (key - first_key)[:, None]
        k_base = batch * stride_kb + head // GROUP * HEAD_DIM
        v_base = batch * stride_vb + head // GROUP * HEAD_DIM
        k = tl.load(k_ptr + k_base + rows * stride_kt + offs_d[None, :], mask_kv, 0.0)
        v = tl.load(v_ptr + v_base + rows * stride_vt + offs_d[None, :], mask_kv, 0.0)
        visible = (
            mask_n[None, :]
            & (key[None, :] <= pos[:, None])
            & (key[None, :] > pos[:, None] - window)
        )
        m_i, l_i, acc = softmax_step(q, k, v, visible, m_i, l_i, acc, scale)
    out_base = (
        (batch * num_queries + offs_m[:, None]) * (NUM_HEADS * HEAD_DIM)
        + head * HEAD_DIM
        + offs_d[None, :]
    )
    l_i = tl.where(l_i == 0.0, 1.0, l_i)  # rows of padding may have seen nothing
    tl.store(
        out_ptr + out_base,
        (acc / l_i[:, None]).to(out_ptr.dtype.element_ty),
        mask_m[:, None] & mask_d,
    )


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, pos: Tensor, window: int, config: WindowConfig = WINDOW
) -> Tensor:
    """q [B, n, Hq, D] of consecutive tokens from pos [B] on, k and v [B, past + n, Hk, D] of them
    and those before.

    `past` keys at most stand before the first token. Those before position 0 are not seen.
    """
    batch, count, heads, dim = q.shape
    kv_heads = k.shape[2]
    q, k, v = (t if t.stride()[2:] == (dim, 1) else t.contiguous() for t in (q, k, v))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _window_kernel[(heads, batch, triton.cdiv(count, config.block_m))](
        q,
        k,
        v,
        pos,
        out,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        pos.stride(0),
        count,
        k.shape[1] - count,
        window,
        dim**-0.5,
        NUM_HEADS=heads,
        GROUP=heads // kv_heads,
        HEAD_DIM=dim,
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        num_warps=config.num_warps,
    )
    return out
