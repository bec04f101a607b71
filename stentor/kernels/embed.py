"""What a frame of codes sounds like to the backbone: the rows of all its codebooks and one more, summed in one launch.

Sums of codebooks are float32 and rounded once, as the library's are.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.between import Place
from stentor.kernels.pdl import EARLY, LAUNCH, wait

WIDTH = 256  # channels of a program


@triton.jit
def _summed(codes, offset, table, channel, there, hidden, BOOKS: tl.constexpr):
    total = tl.zeros(channel.shape, tl.float32)
    for g in tl.static_range(BOOKS):
        at = tl.load(codes + g).to(tl.int64) + tl.load(offset + g)
        total += tl.load(table + at * hidden + channel, there, 0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["capacity"])
def _embed_told(
    codes, offset, table, out, steps, told, idx, texts, hidden, capacity, pad, BOOKS: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    at = tl.load(steps + row) - 1
    place = tl.minimum(tl.maximum(at, 0), capacity - 1)
    text = tl.load(told + tl.load(idx + row) * capacity + place).to(tl.int64)
    text = tl.where(at < capacity, text, pad)
    beside = tl.load(texts + text * hidden + channel, there, 0.0).to(tl.float32)
    total = _summed(codes + row * BOOKS, offset, table, channel, there, hidden, BOOKS).to(kind).to(tl.float32)
    tl.store(out + row * hidden + channel, (total + beside).to(kind), there)


@triton.jit
def _embed_scaled(
    codes, offset, table, out, tokens, hidden, first, scale, BOOKS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    token = tl.load(codes + row * BOOKS).to(tl.int64) + first
    beside = tl.load(tokens + token * hidden + channel, there, 0.0).to(tl.float32)
    total = _summed(codes + row * BOOKS, offset, table, channel, there, hidden, BOOKS).to(kind).to(tl.float32)
    total = (beside + total).to(kind).to(tl.float32)
    tl.store(out + row * hidden + channel, (total / scale).to(kind), there)


def _grid(batch: int, hidden: int) -> tuple[int, int]:
    return batch, triton.cdiv(hidden, WIDTH)


def embed_told(
    codes: Tensor, offset: Tensor, table: Tensor, step: Tensor, told: Place, texts: Tensor, pad: int
) -> Tensor:
    """See `between.embed_told`."""
    batch, books = codes.shape
    hidden = table.shape[1]
    out = torch.empty(batch, hidden, dtype=table.dtype, device=table.device)
    _embed_told[_grid(batch, hidden)](
        codes.contiguous(), offset, table, out, step, told.table, told.idx, texts, hidden, told.table.shape[1], pad,
        BOOKS=books, BLOCK=WIDTH, EARLY=EARLY, num_warps=2, **LAUNCH,
    )  # fmt: skip
    return out


def embed_scaled(codes: Tensor, offset: Tensor, table: Tensor, tokens: Tensor, first: int, scale: float) -> Tensor:
    """See `between.embed_scaled`."""
    batch, books = codes.shape
    hidden = table.shape[1]
    out = torch.empty(batch, hidden, dtype=table.dtype, device=table.device)
    _embed_scaled[_grid(batch, hidden)](
        codes.contiguous(), offset, table, out, tokens, hidden, first, scale,
        BOOKS=books, BLOCK=WIDTH, EARLY=EARLY, num_warps=2, **LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _embed_prompt(
    first, first_table, second, second_table, vectors, out, hidden, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    a, b = tl.load(first + row).to(tl.int64), tl.load(second + row).to(tl.int64)
    total = tl.load(first_table + a * hidden + channel, there & (a >= 0), 0.0).to(tl.float32)
    total += tl.load(second_table + b * hidden + channel, there & (b >= 0), 0.0).to(tl.float32)
    if VECTORS:
        vector = tl.load(vectors + row * hidden + channel, there, 0.0).to(kind).to(tl.float32)
        total = total.to(kind).to(tl.float32) + vector
    tl.store(out + row * hidden + channel, total.to(kind), there)


@triton.jit(do_not_specialize=["count"])
def _add_frames(
    codes, offset, table, places, out, count, hidden, BOOKS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    wait(EARLY)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(places + row)
    there = (channel < hidden) & (at < count)
    total = _summed(codes + row * BOOKS, offset, table, channel, there, hidden, BOOKS).to(kind).to(tl.float32)
    place = out + at * hidden + channel
    tl.store(place, (tl.load(place, there, 0.0).to(tl.float32) + total).to(kind), there)


def embed_prompt(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    vectors: Tensor | None,
    frames: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Tensor:
    """See `between.embed_prompt`."""
    (index, table), (codes, offset, books, places) = first, frames
    count, hidden = len(index), table.shape[1]
    out = torch.empty(count, hidden, dtype=table.dtype, device=table.device)
    given = index if vectors is None else vectors.contiguous()
    _embed_prompt[_grid(count, hidden)](
        *first, *second, given, out, hidden,
        VECTORS=vectors is not None, BLOCK=WIDTH, EARLY=EARLY, num_warps=2, **LAUNCH,
    )  # fmt: skip
    if len(codes):
        _add_frames[_grid(len(codes), hidden)](
            codes.contiguous(), offset, books, places, out, count, hidden,
            BOOKS=codes.shape[1], BLOCK=WIDTH, EARLY=EARLY, num_warps=2, **LAUNCH,
        )  # fmt: skip
    return out
