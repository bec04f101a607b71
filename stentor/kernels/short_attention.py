"""Attention over few tokens: those of a depth loop, and short sequences in which every token sees
every other.

All keys of a head fit into one block, so the softmax is computed at once, in float32. With a
`QKNormRope` the kernels apply the norms of the heads and RoPE themselves. A CTA reads and rotates
the keys once for several query heads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.attention_parts import load_norm_rope, load_norm_rope_halves, norm_rope_args
from stentor.kernels.configs import (
    FIXED_ROWS,
    LOCAL_TOKENS,
    HeadsConfig,
    depth_config,
    local_config,
)
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.switches import config_rows
from stentor.kernels.types import QKNormRope


@triton.jit(do_not_specialize=["length"])
def _depth_kernel(
    cache_ptr, q_ptr, k_ptr, v_ptr, out_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, stride_kv, stride_cb, length,
    stride_qb, stride_kb, stride_vb, stride_qt, stride_kt, stride_vt, scale, eps,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, NUM_NEW: tl.constexpr, BLOCK_NEW: tl.constexpr, BLOCK_H: tl.constexpr,
    NORM_ROPE: tl.constexpr, NORM: tl.constexpr, CAST_FIRST: tl.constexpr, INTERLEAVED: tl.constexpr,
    IN_FLOAT32: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_H query heads of one row that share a key head. NUM_NEW tokens (padded to
    BLOCK_NEW) follow at most BLOCK_N earlier ones."""
    pdl_wait(USE_PDL)
    kv_head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask_d = offs_d < HEAD_DIM
    offs_n = tl.arange(0, BLOCK_N)
    mask_n = offs_n < length
    past_ptr = cache_ptr + row * stride_cb + kv_head * HEAD_DIM + offs_d
    k = tl.load(
        past_ptr + offs_n[:, None] * (NUM_KV_HEADS * HEAD_DIM), mask_n[:, None] & mask_d, 0.0
    )
    v = tl.load(
        past_ptr + stride_kv + offs_n[:, None] * (NUM_KV_HEADS * HEAD_DIM),
        mask_n[:, None] & mask_d,
        0.0,
    )
    offs_new = tl.arange(0, BLOCK_NEW)
    mask_new = (offs_new < NUM_NEW)[:, None] & mask_d
    new_v = tl.load(
        v_ptr + row * stride_vb + offs_new[:, None] * stride_vt + kv_head * HEAD_DIM + offs_d,
        mask_new,
        0.0,
    )
    new_k = load_norm_rope(
        k_ptr, row * stride_kb + offs_new[:, None] * stride_kt + kv_head * HEAD_DIM, offs_d, mask_new, k_norm_ptr,
        cos_ptr, sin_ptr, length + offs_new[:, None], eps,
        HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    new_ptr = past_ptr + (length + offs_new[:, None]) * (NUM_KV_HEADS * HEAD_DIM)
    # Every CTA of a key head computes its new keys. One stores them.
    mask_store = mask_new & (tl.program_id(2) == 0)
    tl.store(new_ptr, new_k, mask_store)
    tl.store(new_ptr + stride_kv, new_v, mask_store)
    for i in tl.static_range(NUM_NEW * BLOCK_H):
        token = i // BLOCK_H
        head = kv_head * GROUP + tl.program_id(2) * BLOCK_H + i % BLOCK_H
        q = load_norm_rope(
            q_ptr, row * stride_qb + token * stride_qt + head * HEAD_DIM, offs_d, mask_d, q_norm_ptr, cos_ptr, sin_ptr,
            length + token, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
        ).to(tl.float32)  # fmt: skip
        qk = tl.where(mask_n, tl.sum(k.to(tl.float32) * q, 1) * scale, float("-inf"))
        qk_new = tl.where(
            offs_new <= token, tl.sum(new_k.to(tl.float32) * q, 1) * scale, float("-inf")
        )
        m_i = tl.maximum(tl.max(qk, 0), tl.max(qk_new, 0))
        p = tl.exp(qk - m_i)
        p_new = tl.exp(qk_new - m_i)
        acc = tl.sum(v.to(tl.float32) * p[:, None], 0) + tl.sum(
            new_v.to(tl.float32) * p_new[:, None], 0
        )
        out = acc / (tl.sum(p, 0) + tl.sum(p_new, 0))
        offs_out = ((row * NUM_NEW + token) * NUM_KV_HEADS * GROUP + head) * HEAD_DIM + tl.arange(
            0, BLOCK_D
        )
        tl.store(
            out_ptr + offs_out, out.to(out_ptr.dtype.element_ty), tl.arange(0, BLOCK_D) < HEAD_DIM
        )


def depth_attention(
    cache: Tensor,
    length: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qk_norm_rope: QKNormRope | None = None,
    config: HeadsConfig | None = None,
) -> Tensor:
    """Attention of n new tokens q [B, n, Hq, D] over `length` earlier ones in cache [2, B, S, Hk,
    D] and, causally, each other.

    k and v [B, n, Hk, D] are stored after the earlier ones. The new tokens stand at `length`,
    `length` + 1, ...
    """
    positions, kv_heads, dim = cache.shape[2:]
    batch, new, q_heads = q.shape[:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, constants = norm_rope_args(qk_norm_rope, q)
    group = q_heads // kv_heads
    c = config or depth_config(config_rows(batch, FIXED_ROWS) * kv_heads, group)
    # At least one of the positions is new, so at most positions - 1 are read from the cache.
    block_n = triton.next_power_of_2(max(1, positions - 1))
    _depth_kernel[(kv_heads, batch, group // c.block_h)](
        cache, q, k, v, out, *tables, cache.stride(0), cache.stride(1), length,
        q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), dim**-0.5, eps,
        NUM_KV_HEADS=kv_heads, GROUP=group, HEAD_DIM=dim, BLOCK_D=triton.next_power_of_2(dim),
        BLOCK_N=block_n, NUM_NEW=new, BLOCK_NEW=triton.next_power_of_2(new), BLOCK_H=c.block_h,
        num_warps=c.num_warps, **constants, **PDL_LAUNCH,
    )  # fmt: skip
    return out


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
    head = first_head + offs_m // BLOCK_N
    offs_t = offs_m % BLOCK_N
    mask_k = (offs_n < num_keys)[:, None] & mask_half
    mask_q = (offs_t < num_queries)[:, None] & mask_half
    k_cos = 0.0
    k_sin = 0.0
    q_cos = 0.0
    q_sin = 0.0
    if NORM_ROPE:
        k_offs = offs_n[:, None] * (HEAD_DIM // 2) + offs_half
        q_offs = (first_pos + offs_t)[:, None] * (HEAD_DIM // 2) + offs_half
        k_cos = tl.load(cos_ptr + k_offs, mask_k, 0.0)
        k_sin = tl.load(sin_ptr + k_offs, mask_k, 0.0)
        q_cos = tl.load(cos_ptr + q_offs, mask_q, 0.0)
        q_sin = tl.load(sin_ptr + q_offs, mask_q, 0.0)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask_v = (offs_n < num_keys)[:, None] & (offs_d < HEAD_DIM)
    v = tl.load(
        v_ptr + batch * stride_vb + offs_n[:, None] * stride_vt + kv_head * HEAD_DIM + offs_d,
        mask_v,
        0.0,
    )
    k_x, k_y = load_norm_rope_halves(
        k_ptr, batch * stride_kb + offs_n[:, None] * stride_kt + kv_head * HEAD_DIM, offs_half, mask_k, k_norm_ptr,
        k_cos, k_sin, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    q_x, q_y = load_norm_rope_halves(
        q_ptr, batch * stride_qb + offs_t[:, None] * stride_qt + head[:, None] * HEAD_DIM, offs_half, mask_q,
        q_norm_ptr, q_cos, q_sin, eps, HEAD_DIM, NORM_ROPE, NORM, CAST_FIRST, INTERLEAVED, IN_FLOAT32,
    )  # fmt: skip
    qk = tl.dot(q_x, tl.trans(k_x), input_precision="ieee")
    qk = tl.dot(q_y, tl.trans(k_y), qk, input_precision="ieee") * scale
    qk = tl.where((offs_n < num_keys)[None, :], qk, float("-inf"))
    p = tl.exp(qk - tl.max(qk, 1)[:, None])
    out = tl.dot(p.to(v.dtype), v, input_precision="ieee") / tl.sum(p, 1)[:, None]
    offs_out = (
        (batch * num_queries + offs_t[:, None]) * NUM_KV_HEADS * GROUP + head[:, None]
    ) * HEAD_DIM + offs_d
    mask_out = (offs_t < num_queries)[:, None] & (offs_d < HEAD_DIM)
    tl.store(out_ptr + offs_out, out.to(out_ptr.dtype.element_ty), mask_out)


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qk_norm_rope: QKNormRope | None = None,
    first: int = 0,
    config: HeadsConfig | None = None,
) -> Tensor:
    """Attention in which every token sees every other: q [B, T, Hq, D], k and v [B, S, Hk, D], T
    and S at most LOCAL_TOKENS. For RoPE, keys stand at position 0 and on, queries at `first` and
    on."""
    batch, num_queries, q_heads, dim = q.shape
    num_keys, kv_heads = k.shape[1:3]
    c = config or local_config(config_rows(batch, FIXED_ROWS), q_heads // kv_heads)
    # tl.dot takes no fewer than 16 elements, and the kernel gives it halves of a head.
    block_d = max(32, triton.next_power_of_2(dim))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, eps, constants = norm_rope_args(qk_norm_rope, q)
    _local_kernel[(q_heads // c.block_h, batch)](
        q, k, v, out, *tables, q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1),
        num_queries, num_keys, first, dim**-0.5, eps,
        NUM_KV_HEADS=kv_heads, GROUP=q_heads // kv_heads, BLOCK_H=c.block_h, HEAD_DIM=dim,
        BLOCK_D=block_d, BLOCK_N=LOCAL_TOKENS, num_warps=c.num_warps, **constants, **PDL_LAUNCH,
    )  # fmt: skip
    return out
