"""Writing keys and values into the paged cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait

MAX_BLOCK = 1024  # elements of a token that a CTA copies


@triton.jit(do_not_specialize=["table_row", "size"])
def _store_kv_kernel(
    pool, table, slots, positions, k, v, value_part, table_row, k_row, v_row, size, PAGE: tl.constexpr,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    pos = tl.load(positions + row)
    page = tl.load(table + tl.load(slots + row) * table_row + pos // PAGE)
    place = pool + (page * PAGE + pos % PAGE) * size + at
    tl.store(place, tl.load(k + row * k_row + at, inside), inside)
    tl.store(place + value_part, tl.load(v + row * v_row + at, inside), inside)


def store_kv(pool: Tensor, table: Tensor, slot: Tensor, pos: Tensor, k: Tensor, v: Tensor) -> None:
    """Write k and v [N, Hk, D] of the tokens at pos [N] into the pages of their slots [N]; for pool and table see
    `attention.paged_attention`."""
    size = k.shape[1] * k.shape[2]
    k, v = (t if t.stride(1) == t.shape[2] and t.stride(2) == 1 else t.contiguous() for t in (k, v))
    block = min(MAX_BLOCK, triton.next_power_of_2(size))
    _store_kv_kernel[(len(k), triton.cdiv(size, block))](
        pool, table, slot, pos, k, v, pool.stride(0), table.stride(0), k.stride(0), v.stride(0), size,
        PAGE=pool.shape[2], BLOCK=block, USE_PDL=USE_PDL, num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
