"""Triton kernels of this family: embeddings of a frame with its text and of a prompt, and the sampler of codebook 0."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.embedding import EMBED_BLOCK, embed_grid, sum_codebooks
from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.kernels.sampling_device import launch_args, load_logits, load_params, sample_top_k_top_p, store_sample
from stentor.kernels.types import MinFrames, RowRef, SampleOut, SamplingParams


@triton.jit(do_not_specialize=["capacity"])
def _embed_codes_and_text_kernel(
    codes, offset, table, out, steps, told, idx, texts, hidden, capacity, pad, BOOKS: tl.constexpr,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    at = tl.load(steps + row) - 1
    place = tl.minimum(tl.maximum(at, 0), capacity - 1)
    text = tl.load(told + tl.load(idx + row) * capacity + place).to(tl.int64)
    text = tl.where(at < capacity, text, pad)
    beside = tl.load(texts + text * hidden + channel, there, 0.0).to(tl.float32)
    total = sum_codebooks(codes + row * BOOKS, offset, table, channel, there, hidden, BOOKS).to(kind).to(tl.float32)
    tl.store(out + row * hidden + channel, (total + beside).to(kind), there)


def embed_codes_and_text(
    codes: Tensor, offset: Tensor, table: Tensor, step: Tensor, told: RowRef, texts: Tensor, pad: int
) -> Tensor:
    """Embedding of codes [B, books]: the sum of rows offset + codes of table [V, H], plus the row of texts [T, H] that
    stands beside frame step - 1 in `told` [slots, most], or row `pad` after all of them: [B, H]."""
    batch, books = codes.shape
    hidden = table.shape[1]
    out = torch.empty(batch, hidden, dtype=table.dtype, device=table.device)
    _embed_codes_and_text_kernel[embed_grid(batch, hidden)](
        codes.contiguous(), offset, table, out, step, told.table, told.idx, texts, hidden, told.table.shape[1], pad,
        BOOKS=books, BLOCK=EMBED_BLOCK, USE_PDL=USE_PDL, num_warps=2, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _embed_prompt_kernel(
    first, first_table, second, second_table, vectors, out, hidden, VECTORS: tl.constexpr, BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
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
def _add_frames_kernel(
    codes, offset, table, places, out, count, hidden, BOOKS: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr
):
    pdl_wait(USE_PDL)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(places + row)
    there = (channel < hidden) & (at < count)
    total = sum_codebooks(codes + row * BOOKS, offset, table, channel, there, hidden, BOOKS).to(kind).to(tl.float32)
    place = out + at * hidden + channel
    tl.store(place, (tl.load(place, there, 0.0).to(tl.float32) + total).to(kind), there)


def embed_prompt(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    vectors: Tensor | None,
    frames: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Tensor:
    """Embedding [N, H] of prompt tokens, where every sum is rounded.

    A token is the sum of rows of two tables, given as (index [N], table), none where an index is negative; of `vectors`
    [N, H]; and of the frame at its place, given as (codes [M, books], offset [books], table, places [M]). A frame at
    place N is left out.
    """
    (index, table), (codes, offset, books, places) = first, frames
    count, hidden = len(index), table.shape[1]
    out = torch.empty(count, hidden, dtype=table.dtype, device=table.device)
    given = index if vectors is None else vectors.contiguous()
    _embed_prompt_kernel[embed_grid(count, hidden)](
        *first, *second, given, out, hidden,
        VECTORS=vectors is not None, BLOCK=EMBED_BLOCK, USE_PDL=USE_PDL, num_warps=2, **PDL_LAUNCH,
    )  # fmt: skip
    if len(codes):
        _add_frames_kernel[embed_grid(len(codes), hidden)](
            codes.contiguous(), offset, books, places, out, count, hidden,
            BOOKS=codes.shape[1], BLOCK=EMBED_BLOCK, USE_PDL=USE_PDL, num_warps=2, **PDL_LAUNCH,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["u_row", "prefix_row"])
def _sample_first_codebook_kernel(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, prefix, row_stride, u_row, x_row, prefix_row, size,
    hidden, idx, seen, penalties, steps, least, seen_now, ended, marks, end,
    LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr, PREFIX: tl.constexpr,
    WIDTH: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    at, inside, raw = load_logits(logits, row, row_stride, size, BLOCK)
    had = tl.load(seen + tl.load(idx + row) * size + at, inside, 0) != 0
    penalty = tl.load(penalties + row)
    raw = tl.where(had, tl.where(raw > 0, raw / penalty, raw * penalty), raw)
    early = tl.load(steps + row) < tl.load(least + row)
    barred = tl.where(at == end, early, at >= size - marks)
    raw = tl.where(barred, float("-inf"), raw)
    temperature, k, p = load_params(row, temperatures, top_ks, top_ps)
    chosen = sample_top_k_top_p(raw, inside, size, temperature, k, p, tl.load(uniforms + row * u_row), LEAST, BITS)
    tl.store(seen_now + row * size + at, (had | (at == chosen)).to(tl.uint8), inside)
    tl.store(ended + row, (chosen == end).to(tl.uint8))
    store_sample(chosen, row, codes, table, x, prefix, x_row, prefix_row, hidden, PUT, PREFIX, WIDTH)


def sample_first_codebook(
    logits: Tensor,
    params: SamplingParams,
    out: SampleOut,
    seen: RowRef,
    penalty: Tensor,
    min_frames: MinFrames,
    num_special: int,
    eos: int,
) -> tuple[Tensor, Tensor]:
    """`kernels.sampling.sample_into`, after the repetition penalty [B] for the ids `seen` [slots, V] bool.

    The last `num_special` ids are masked. Only `eos` stays allowed among them, once a row has made its `min_frames`.
    Returns ([B] bool, whether `eos` was drawn, [B, V] bool, the ids seen now).
    """
    given, constants = launch_args(logits, params, out)
    ended = torch.empty(len(logits), dtype=torch.uint8, device=logits.device)
    now = torch.empty(logits.shape, dtype=torch.uint8, device=logits.device)
    _sample_first_codebook_kernel[(len(logits),)](
        *given, seen.idx, seen.table.view(torch.uint8), penalty, *min_frames, now, ended, num_special, eos,
        BITS=32, **constants,  # what has been penalized is float32
    )  # fmt: skip
    return ended.view(torch.bool), now.view(torch.bool)
