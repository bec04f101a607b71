"""The second low-rank product (LoRA) of the tokens of short sequences, in one kernel with the RMSNorm behind it.

In a flow there are a thousand and more rows, whose projections are the library's. The norm behind one is a launch of
its own there, and so are both low-rank products. A CTA has whole tokens of one sequence, so that it can apply the norm.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stentor.kernels.buffers import rows_of
from stentor.kernels.configs import LoraNormConfig, lora_norm_config
from stentor.kernels.lora import summed
from stentor.kernels.norm_rope import normed
from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL

Norm = tuple[Tensor, float, bool]
"""Weight, eps, and whether the weight is applied after the result is rounded (`layers/norm.py`)."""


@triton.jit
def _tokens(index_ptr, T, G, CHUNKS, BLOCK_M: tl.constexpr):
    """(rows, which of them exist, the slot of their adapter, -1 for none) of this CTA: tokens of one sequence."""
    sequence = tl.program_id(0) // CHUNKS
    token = tl.program_id(0) % CHUNKS * BLOCK_M + tl.arange(0, BLOCK_M)
    slot = tl.load(index_ptr + sequence % G, cache_modifier=".cg").to(tl.int32) - 1
    return sequence.to(tl.int64) * T + token, token < T, slot


@triton.jit
def _expand_norm_kernel(
    h_ptr, index_ptr, b_ptr, y_ptr, x_ptr, weight_ptr, sum_ptr, out_ptr, M, T, G, CHUNKS, K, eps, stride_x, stride_slot,
    stride_r,
    CAST_FIRST: tl.constexpr, SPLITS: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:
        gdc_launch_dependents()
    # The kernel in front waits before it lets this one start, so all but its own output is complete.
    row, valid, slot = _tokens(index_ptr, T, G, CHUNKS, BLOCK_M)
    offs_k, offs_r = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_R)
    mask_k, mask_r = offs_k < K, offs_r < RANK
    mask = valid[:, None] & mask_k[None, :]
    at = row[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + tl.cast(slot, tl.int64) * stride_slot + offs_r[:, None] * stride_r + offs_k[None, :]
    b = tl.load(b_ptrs, mask_r[:, None] & mask_k[None, :] & (slot >= 0), 0.0)
    y = tl.load(y_ptr + at, mask, 0.0, cache_modifier=".cg")
    x = tl.load(x_ptr + row[:, None] * stride_x + offs_k[None, :], mask, 0.0, cache_modifier=".cg")
    if USE_PDL:
        gdc_wait()
    if slot >= 0:
        h = summed(h_ptr, row, valid, 0, offs_r, M, 1, RANK, SPLITS).to(y.dtype)
        y = tl.dot(h, b, y.to(tl.float32), input_precision="ieee").to(y.dtype)
    x = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)
    tl.store(sum_ptr + at, x, mask)
    weight = tl.load(weight_ptr + offs_k, mask_k, 0.0).to(tl.float32)
    tl.store(out_ptr + at, normed(x, weight, K, eps, 1, CAST_FIRST), mask)


def fits(x: Tensor, rank: int) -> bool:
    """Whether this kernel serves the norm of x [..., K]: x is [N, T, K], sequences of tokens, and K not too large."""
    return x.ndim == 3 and x.shape[1] > 1 and lora_norm_config(x.shape[-1], rank, x.element_size()) is not None


def _config(x: Tensor, rank: int) -> LoraNormConfig:
    """Of x that `fits`."""
    config = lora_norm_config(x.shape[-1], rank, x.element_size())
    assert config is not None
    return config


def expand_norm(y: Tensor, h: Tensor, index: Tensor, b: Tensor, x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """(x + y + h B, the norm of that) for x and y [N, T, K], which `fits`, and h of `shrink`. b [slots, rank, K]."""
    size, rank = y.shape[-1], b.shape[1]
    config = _config(y, rank)
    rows = rows_of(x, size)
    total, out = (torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(2))
    chunks = triton.cdiv(y.shape[1], config.block_m)
    weight, eps, cast_first = norm
    sizes = (len(rows), y.shape[1], len(index), chunks, size, eps, rows.stride(0), b.stride(0), b.stride(1))
    constants = {"CAST_FIRST": cast_first, "SPLITS": len(h), "RANK": rank, "USE_PDL": USE_PDL, **config.constants}
    grid = (len(y) * chunks,)
    _expand_norm_kernel[grid](h, index, b, y, rows, weight, total, out, *sizes, **constants, **PDL_LAUNCH)
    return total.view(x.shape), out.view(x.shape)
