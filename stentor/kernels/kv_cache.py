"""Writing keys and values into the paged cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait

MAX_BLOCK = 1024  # elements of a token that a CTA copies


@triton.jit(do_not_specialize=["stride_table", "size"])
def _store_kv_kernel(
    pool_ptr, table_ptr, slot_ptr, pos_ptr, k_ptr, v_ptr, stride_kv, stride_table, stride_k, stride_v, size,
    PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    token = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < size
    pos = tl.load(pos_ptr + token)
    page = tl.load(table_ptr + tl.load(slot_ptr + token) * stride_table + pos // PAGE_SIZE)
    cache_ptr = pool_ptr + (page * PAGE_SIZE + pos % PAGE_SIZE) * size + offs
    tl.store(cache_ptr, tl.load(k_ptr + token * stride_k + offs, mask), mask)
    tl.store(cache_ptr + stride_kv, tl.load(v_ptr + token * stride_v + offs, mask), mask)


def store_kv(pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, k: Tensor, v: Tensor) -> None:
    """Write k and v [N, Hk, D] of the tokens at pos [N] into the pages of their slots [N]. `pool`
    and `table` are those of `paged_attention`."""
    size = k.shape[1] * k.shape[2]
    k, v = (t if t.stride(1) == t.shape[2] and t.stride(2) == 1 else t.contiguous() for t in (k, v))
    block = min(MAX_BLOCK, triton.next_power_of_2(size))
    _store_kv_kernel[(len(k), triton.cdiv(size, block))](
        pool, table, slot, pos, k, v, pool.stride(0), table.stride(0), k.stride(0), v.stride(0), size,
        PAGE_SIZE=pool.shape[2], BLOCK=block, num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
