"""What kernels that embed a frame of codes have in common: sums over the codebooks, in float32 and rounded once."""

from __future__ import annotations

import triton
import triton.language as tl

EMBED_BLOCK = 256  # channels of a CTA


@triton.jit
def sum_codebooks(codes, offset, table, channel, there, hidden, BOOKS: tl.constexpr):
    """Rows offset + codes of the table, summed at some channels: the frame that begins at `codes`."""
    total = tl.zeros(channel.shape, tl.float32)
    for g in tl.static_range(BOOKS):
        at = tl.load(codes + g).to(tl.int64) + tl.load(offset + g)
        total += tl.load(table + at * hidden + channel, there, 0.0).to(tl.float32)
    return total


def embed_grid(batch: int, hidden: int) -> tuple[int, int]:
    """Rows and blocks of channels."""
    return batch, triton.cdiv(hidden, EMBED_BLOCK)
