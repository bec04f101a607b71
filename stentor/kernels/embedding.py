"""Embedding of a frame of codes, shared by kernels: sums over the codebooks, in float32 and rounded once."""

from __future__ import annotations

import triton
import triton.language as tl

EMBED_BLOCK = 256  # channels of a CTA


@triton.jit
def sum_codebooks(codes_ptr, offset_ptr, table_ptr, offs_h, mask, hidden, NUM_BOOKS: tl.constexpr):
    """Rows offset + codes of the table, summed at some channels: the frame that begins at codes_ptr."""
    acc = tl.zeros(offs_h.shape, tl.float32)
    for g in tl.static_range(NUM_BOOKS):
        row = tl.load(codes_ptr + g).to(tl.int64) + tl.load(offset_ptr + g)
        acc += tl.load(table_ptr + row * hidden + offs_h, mask, 0.0).to(tl.float32)
    return acc


def embed_grid(batch: int, hidden: int) -> tuple[int, int]:
    """Rows and blocks of channels."""
    return batch, triton.cdiv(hidden, EMBED_BLOCK)
