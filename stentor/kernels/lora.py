"""Low-rank products (LoRA) of a batch whose rows have different adapters, after Punica (Chen et
al., 2023).

Two kernels: rows times the A of their adapter, and that times B, added to the output of the base
layer. A CTA reads the weights of the adapters that its rows have, and nothing for rows without one.
Few rows share a tile with others that have the same adapter, so that its weights are read once.
Where all rows of a tile have one adapter, the second kernel loads its weights and outputs while the
first one runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from stentor.kernels.buffers import rows_of
from stentor.kernels.configs import LORA_TILE_ROWS, lora_config, lora_splits, lora_tile
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait

NO_SLOT = tl.constexpr(1 << 30)


@triton.jit
def _tiles_kernel(
    index_ptr, tiles_ptr, G, BLOCK_G: tl.constexpr, TILE_ROWS: tl.constexpr, USE_PDL: tl.constexpr
):
    pdl_wait(USE_PDL)
    row = tl.arange(0, BLOCK_G)
    adapter = tl.load(index_ptr + row, row < G, 0).to(tl.int32)
    same = (adapter[:, None] == adapter[None, :]) & (adapter > 0)[:, None]
    before = row[None, :] < row[:, None]
    place = tl.sum((same & before).to(tl.int32), 1)  # among the rows with this adapter
    leads = (adapter > 0) & (place % TILE_ROWS == 0)
    # of the tile that a leading row begins
    number = tl.sum((before & leads[None, :]).to(tl.int32), 1)
    leader = same & (place[None, :] == (place - place % TILE_ROWS)[:, None])
    tile_ptrs = tiles_ptr + tl.sum(tl.where(leader, number[None, :], 0), 1) * (1 + TILE_ROWS)
    empty_ptrs = tiles_ptr + row[:, None] * (1 + TILE_ROWS) + tl.arange(0, TILE_ROWS)[None, :]
    tl.store(tiles_ptr + row * (1 + TILE_ROWS), tl.zeros_like(row), row < G)
    tl.store(empty_ptrs + 1, tl.full((BLOCK_G, TILE_ROWS), -1, tl.int32), (row < G)[:, None])
    tl.debug_barrier()  # what other threads have stored is overwritten
    tl.store(tile_ptrs, adapter, leads)
    tl.store(tile_ptrs + 1 + place % TILE_ROWS, row, adapter > 0)


def tiles_of(index: Tensor) -> Tensor:
    """Tiles of rows that have the same adapter, for `add_lora`: [G, 1 + LORA_TILE_ROWS] int32 for
    index [G], at most LORA_FEW_ROWS.

    Each is an adapter and its rows, then -1. Tiles with rows come first. The others have adapter 0.
    """
    count = len(index)
    tiles = torch.empty(count, 1 + LORA_TILE_ROWS, dtype=torch.int32, device=index.device)
    block = max(16, triton.next_power_of_2(count))
    if block <= 64:
        warps = 4
    else:
        warps = 16
    constants = {"BLOCK_G": block, "TILE_ROWS": LORA_TILE_ROWS, "num_warps": warps}
    _tiles_kernel[(1,)](index, tiles, count, **constants, **PDL_LAUNCH)
    return tiles


@triton.jit
def _rows_of_tile(
    index_ptr,
    M,
    T,
    G,
    CHUNKS,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ONE_ADAPTER: tl.constexpr,
    BY_ADAPTER: tl.constexpr,
):
    """(rows, which of them exist, their adapters, the lowest of these but 0, the highest) of this
    CTA.

    ONE_ADAPTER: all have the same. BY_ADAPTER: index_ptr is a table of such tiles. Otherwise a tile
    holds rows of one sequence, of `CHUNKS` tiles. Its T rows stand together, and after every G * T
    rows T more. Without ONE_ADAPTER, neighbours share a tile.
    """
    offs = tl.arange(0, BLOCK_M)
    if BY_ADAPTER:
        tile_ptr = index_ptr + tl.program_id(0) * (1 + BLOCK_M)
        low = tl.load(tile_ptr, cache_modifier=".cg")
        row = tl.load(tile_ptr + 1 + offs, cache_modifier=".cg")
        valid = row >= 0
        adapter = tl.where(valid, low, 0)
        high = low
    elif ONE_ADAPTER:
        sequence = tl.program_id(0) // CHUNKS
        at = tl.program_id(0) % CHUNKS * ROWS + offs
        row = (at // T) * (G * T) + sequence * T + at % T
        valid = (offs < ROWS) & (row < M)
        low = tl.load(index_ptr + sequence, cache_modifier=".cg").to(tl.int32)
        adapter = tl.where(valid, low, 0)
        high = low
    else:
        row = tl.program_id(0) * ROWS + offs
        valid = (offs < ROWS) & (row < M)
        adapter = tl.load(index_ptr + (row // T) % G, valid, 0, cache_modifier=".cg").to(tl.int32)
        low = tl.min(tl.where(adapter > 0, adapter, NO_SLOT), 0)
        high = tl.max(adapter, 0)
    return row.to(tl.int64), valid, adapter, low, high


@triton.jit
def _shrunk(
    acc,
    x_ptr,
    a_ptr,
    row,
    selected,
    mask_r,
    offs_r,
    first,
    last,
    K,
    stride_x,
    BLOCK_K: tl.constexpr,
    EVEN: tl.constexpr,
):
    """acc plus the inputs `first` to `last` - 1 of own rows times A, which begins at a_ptr."""
    for start in range(first, last, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        x_ptrs = x_ptr + row[:, None] * stride_x + offs_k[None, :]
        a_ptrs = a_ptr + offs_r[None, :] * K + offs_k[:, None]
        if EVEN:
            x = tl.load(x_ptrs, selected[:, None], 0.0)
            a = tl.load(a_ptrs, mask_r[None, :], 0.0)
        else:
            mask_k = offs_k < last
            x = tl.load(x_ptrs, selected[:, None] & mask_k[None, :], 0.0)
            a = tl.load(a_ptrs, mask_k[:, None] & mask_r[None, :], 0.0)
        acc = tl.dot(x, a, acc, input_precision="ieee")
    return acc


@triton.jit
def _shrink_kernel(
    x_ptr, index_ptr, a_ptr, h_ptr, M, T, G, CHUNKS, K, each, stride_x, stride_part, stride_slot,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    ONE_ADAPTER: tl.constexpr, BY_ADAPTER: tl.constexpr, EVEN: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    if USE_PDL:  # in this order: once the second kernel runs, all before this one is complete
        gdc_wait()
        gdc_launch_dependents()
    part = tl.program_id(1)
    split = tl.program_id(2)
    row, valid, adapter, low, high = _rows_of_tile(
        index_ptr, M, T, G, CHUNKS, ROWS, BLOCK_M, ONE_ADAPTER, BY_ADAPTER
    )
    if high > 0:
        offs_r = tl.arange(0, BLOCK_R)
        mask_r = offs_r < RANK
        first = split * each
        last = tl.minimum(split * each + each, K)
        acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        part_ptr = a_ptr + tl.cast(part, tl.int64) * stride_part
        if ONE_ADAPTER:
            own_ptr = part_ptr + tl.cast(low - 1, tl.int64) * stride_slot
            acc = _shrunk(
                acc,
                x_ptr,
                own_ptr,
                row,
                valid,
                mask_r,
                offs_r,
                first,
                last,
                K,
                stride_x,
                BLOCK_K,
                EVEN,
            )
        else:
            for number in range(low, high + 1):
                selected = adapter == number
                if tl.max(selected.to(tl.int32), 0) > 0:
                    own_ptr = part_ptr + tl.cast(number - 1, tl.int64) * stride_slot
                    acc = _shrunk(
                        acc,
                        x_ptr,
                        own_ptr,
                        row,
                        selected,
                        mask_r,
                        offs_r,
                        first,
                        last,
                        K,
                        stride_x,
                        BLOCK_K,
                        EVEN,
                    )
        h_row = (split * M + row) * tl.num_programs(1) + part
        tl.store(
            h_ptr + h_row[:, None] * RANK + offs_r[None, :], acc, valid[:, None] & mask_r[None, :]
        )


@triton.jit
def summed(
    h_ptr,
    row,
    selected,
    part,
    offs_r,
    M,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Own rows of what the first kernel made, its splits added up in their order."""
    mask = selected[:, None] & (offs_r < RANK)[None, :]
    h_ptrs = h_ptr + (row[:, None] * PARTS + part) * RANK + offs_r[None, :]
    total = tl.load(h_ptrs, mask, 0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(h_ptrs + tl.cast(split * PARTS * RANK, tl.int64) * M, mask, 0.0)
    return total


@triton.jit
def _expand_kernel(
    h_ptr, index_ptr, b_ptr, y_ptr, M, T, G, CHUNKS, N, stride_slot, stride_r,
    WIDTH0: tl.constexpr, WIDTH1: tl.constexpr, WIDTH2: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    ONE_ADAPTER: tl.constexpr, BY_ADAPTER: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    # The blocks of outputs of one part follow those of another, and none holds outputs of both.
    blocks0: tl.constexpr = (WIDTH0 + BLOCK_N - 1) // BLOCK_N
    blocks1: tl.constexpr = blocks0 + (WIDTH1 + BLOCK_N - 1) // BLOCK_N
    block = tl.program_id(1)
    part = (block >= blocks0).to(tl.int32) + (block >= blocks1).to(tl.int32)
    first = tl.where(part == 0, 0, tl.where(part == 1, blocks0, blocks1))
    start = tl.where(part == 0, 0, tl.where(part == 1, WIDTH0, WIDTH0 + WIDTH1))
    width = tl.where(part == 0, WIDTH0, tl.where(part == 1, WIDTH1, WIDTH2))
    if USE_PDL:
        gdc_launch_dependents()
        if not ONE_ADAPTER:
            gdc_wait()
    row, valid, adapter, low, high = _rows_of_tile(
        index_ptr, M, T, G, CHUNKS, ROWS, BLOCK_M, ONE_ADAPTER, BY_ADAPTER
    )
    offs_r = tl.arange(0, BLOCK_R)
    offs_n = (block - first) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_r = offs_r < RANK
    mask_n = offs_n < width
    offs_n += start
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    y_ptrs = y_ptr + row[:, None] * N + offs_n[None, :]
    mask = (valid & (adapter > 0))[:, None] & mask_n[None, :]
    b_ptrs = b_ptr + offs_r[:, None] * stride_r + offs_n[None, :]
    mask_b = mask_r[:, None] & mask_n[None, :]
    # as the index: from L2, since this comes before the wait
    y = tl.load(y_ptrs, mask, 0.0, cache_modifier=".cg")
    if ONE_ADAPTER:
        b = tl.load(b_ptrs + tl.cast(low - 1, tl.int64) * stride_slot, mask_b & (low > 0), 0.0)
        if USE_PDL:
            gdc_wait()
        if low > 0:
            h = summed(h_ptr, row, valid, part, offs_r, M, PARTS, RANK, SPLITS).to(dtype)
            acc = tl.dot(h, b, y.to(tl.float32), input_precision="ieee")
            tl.store(y_ptrs, acc.to(dtype), mask)
    elif high > 0:
        acc = y.to(tl.float32)
        for number in range(low, high + 1):
            selected = adapter == number
            if tl.max(selected.to(tl.int32), 0) > 0:
                h = summed(h_ptr, row, selected, part, offs_r, M, PARTS, RANK, SPLITS).to(dtype)
                b = tl.load(b_ptrs + tl.cast(number - 1, tl.int64) * stride_slot, mask_b, 0.0)
                acc = tl.dot(h, b, acc, input_precision="ieee")
        tl.store(y_ptrs, acc.to(dtype), mask)


def add_lora(
    y: Tensor,
    x: Tensor,
    index: Tensor,
    a: Tensor,
    b: Tensor,
    widths: Sequence[int],
    tiles: Tensor | None = None,
) -> Tensor:
    """y [N, ..., out] + (x [N, ..., in] A^T) B^T, where row n uses adapter index[n % G] of index
    [G] int64, 0 for none.

    a [parts, slots, rank, in], b [slots, rank, out]: slot s is adapter s + 1. `widths`: outputs of
    each of up to three parts. tiles: `tiles_of(index)`, used where N is G and each has one row.
    Writes y, which must be contiguous.
    """
    n = y.shape[-1]
    k = x.shape[-1]
    parts, _, rank = a.shape[:3]
    rows = rows_of(x, k)
    tile = lora_tile(len(rows), len(rows) // len(x), len(index), tiles is not None)
    splits, each = lora_splits(k)
    config = lora_config(rank, x.element_size(), tile.sequences)
    # The first product, in parts that are to be added up. Rows without adapter are not written.
    h = torch.empty(splits, len(rows), parts, rank, dtype=torch.float32, device=x.device)
    rows_by = tiles if tile.by_adapter else index
    sizes = (len(rows), len(rows) // len(x), len(index), tile.chunks)
    constants = {
        "RANK": rank,
        "BLOCK_R": config.block_r,
        "ROWS": tile.rows,
        "BLOCK_M": tile.block_m,
    }
    constants |= {"ONE_ADAPTER": tile.one_adapter, "BY_ADAPTER": tile.by_adapter, **PDL_LAUNCH}
    _shrink_kernel[(tile.tiles, parts, splits)](
        rows,
        rows_by,
        a,
        h,
        *sizes,
        k,
        each,
        rows.stride(0),
        a.stride(0),
        a.stride(1),
        BLOCK_K=config.block_k,
        EVEN=each % config.block_k == k % each == 0,
        num_warps=4,
        num_stages=config.stages,
        **constants,
    )
    # The kernels in front of that one are complete when the second begins, y among what they made.
    first, second, third = (*widths, 0, 0)[:3]
    _expand_kernel[(tile.tiles, sum(triton.cdiv(width, config.block_n) for width in widths))](
        h,
        rows_by,
        b,
        y,
        *sizes,
        n,
        b.stride(0),
        b.stride(1),
        WIDTH0=first,
        WIDTH1=second,
        WIDTH2=third,
        PARTS=parts,
        SPLITS=splits,
        BLOCK_N=config.block_n,
        num_warps=config.expand_warps,
        **constants,
    )
    return y
