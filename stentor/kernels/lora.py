"""Low-rank products (LoRA) of a batch whose rows have different adapters, after Punica (Chen et al., 2023).

Two kernels: rows times the A of their adapter, and that times B, added to the output of the base layer. A CTA serves
some consecutive rows. It reads the weights of the adapters that these rows have, and nothing for rows without one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.configs import LORA_ROWS, lora_config, lora_tile

NO_SLOT = tl.constexpr(1 << 30)


@triton.jit
def _rows_of_tile(index_ptr, M, T, G, ROWS: tl.constexpr, BLOCK_M: tl.constexpr):
    """(rows, which of them exist, their adapters, the lowest of these but 0, the highest) of this CTA."""
    offs = tl.arange(0, BLOCK_M)
    row = tl.program_id(0) * ROWS + offs
    valid = (offs < ROWS) & (row < M)
    adapter = tl.load(index_ptr + (row // T) % G, valid, 0).to(tl.int32)
    low = tl.min(tl.where(adapter > 0, adapter, NO_SLOT), 0)
    return row.to(tl.int64), valid, adapter, low, tl.max(adapter, 0)


@triton.jit
def _shrink_kernel(
    x_ptr, index_ptr, a_ptr, h_ptr, M, T, G, K, stride_x, stride_part, stride_slot,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    row, valid, adapter, low, high = _rows_of_tile(index_ptr, M, T, G, ROWS, BLOCK_M)
    offs_r = tl.arange(0, BLOCK_R)
    mask_r = offs_r < RANK
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for number in range(low, high + 1):
        own = adapter == number
        if tl.max(own.to(tl.int32), 0) > 0:
            base_ptr = a_ptr + tl.cast(part, tl.int64) * stride_part + tl.cast(number - 1, tl.int64) * stride_slot
            for start in range(0, K, BLOCK_K):
                offs_k = start + tl.arange(0, BLOCK_K)
                mask_k = offs_k < K
                x = tl.load(x_ptr + row[:, None] * stride_x + offs_k[None, :], own[:, None] & mask_k[None, :], 0.0)
                a = tl.load(base_ptr + offs_r[None, :] * K + offs_k[:, None], mask_k[:, None] & mask_r[None, :], 0.0)
                acc = tl.dot(x, a, acc, input_precision="ieee")
    h_ptrs = h_ptr + (row[:, None] * tl.num_programs(1) + part) * RANK + offs_r[None, :]
    tl.store(h_ptrs, acc, valid[:, None] & mask_r[None, :])


@triton.jit
def _expand_kernel(
    h_ptr, index_ptr, b_ptr, y_ptr, M, T, G, N, stride_slot, stride_r,
    WIDTH0: tl.constexpr, WIDTH1: tl.constexpr, WIDTH2: tl.constexpr, PARTS: tl.constexpr,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    # The blocks of outputs of one part follow those of another, and none holds outputs of both.
    blocks0: tl.constexpr = (WIDTH0 + BLOCK_N - 1) // BLOCK_N
    blocks1: tl.constexpr = blocks0 + (WIDTH1 + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(1)
    part = (block >= blocks0).to(tl.int32) + (block >= blocks1).to(tl.int32)
    first = tl.where(part == 0, 0, tl.where(part == 1, blocks0, blocks1))
    start = tl.where(part == 0, 0, tl.where(part == 1, WIDTH0, WIDTH0 + WIDTH1))
    width = tl.where(part == 0, WIDTH0, tl.where(part == 1, WIDTH1, WIDTH2))
    row, valid, adapter, low, high = _rows_of_tile(index_ptr, M, T, G, ROWS, BLOCK_M)
    if high > 0:
        offs_r, offs_n = tl.arange(0, BLOCK_R), (block - first) * BLOCK_N + tl.arange(0, BLOCK_N)
        mask_r, mask_n = offs_r < RANK, offs_n < width
        offs_n += start
        dtype: tl.constexpr = y_ptr.dtype.element_ty
        h_ptrs = h_ptr + (row[:, None] * PARTS + part) * RANK + offs_r[None, :]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for number in range(low, high + 1):
            own = adapter == number
            if tl.max(own.to(tl.int32), 0) > 0:
                h = tl.load(h_ptrs, own[:, None] & mask_r[None, :], 0.0).to(dtype)
                b_ptrs = (
                    b_ptr + tl.cast(number - 1, tl.int64) * stride_slot + offs_r[:, None] * stride_r + offs_n[None, :]
                )
                b = tl.load(b_ptrs, mask_r[:, None] & mask_n[None, :], 0.0)
                acc = tl.dot(h, b, acc, input_precision="ieee")
        y_ptrs, mask = y_ptr + row[:, None] * N + offs_n[None, :], (valid & (adapter > 0))[:, None] & mask_n[None, :]
        y = tl.load(y_ptrs, mask, 0.0).to(tl.float32) + acc
        tl.store(y_ptrs, y.to(dtype), mask)


def add_lora(y: Tensor, x: Tensor, index: Tensor, a: Tensor, b: Tensor, widths: Sequence[int]) -> Tensor:
    """y [N, ..., out] + (x [N, ..., in] A^T) B^T, where row n uses adapter index[n % G] of index [G] int64, 0 for none.

    a [parts, slots, rank, in], b [slots, rank, out]: slot s is adapter s + 1. `widths`: outputs of each of up to three
    parts. Writes y, which must be contiguous.
    """
    k, n, rank, parts = x.shape[-1], y.shape[-1], b.shape[1], len(widths)
    rows = rows_of(x, k)
    per_row = len(rows) // len(x)
    tile = lora_tile(len(rows), per_row)
    config = lora_config(rank)
    h = torch.empty(len(rows), parts, rank, dtype=torch.float32, device=x.device)
    tiles, (w0, w1, w2) = triton.cdiv(len(rows), tile), (*widths, 0, 0)[:3]
    rest = {"RANK": rank, "BLOCK_R": config.block_r, "ROWS": tile, "BLOCK_M": LORA_ROWS, "num_warps": config.num_warps}
    sizes = (len(rows), per_row, len(index))
    strides = (rows.stride(0), a.stride(0), a.stride(1))
    _shrink_kernel[(tiles, parts)](rows, index, a, h, *sizes, k, *strides, BLOCK_K=config.block_k, **rest)
    blocks = sum(triton.cdiv(width, config.block_n) for width in widths)
    rest |= {"WIDTH0": w0, "WIDTH1": w1, "WIDTH2": w2, "PARTS": parts, "BLOCK_N": config.block_n}
    _expand_kernel[(tiles, blocks)](h, index, b, y, *sizes, n, b.stride(0), b.stride(1), **rest)
    return y
