"""Kernels of frames of codes with text beside them: embeddings of a frame and of a prompt, draw of
the first code."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.constants import VECTOR_ID
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.sampling import (
    checked,
    launch_args,
    load_logits,
    load_params,
    sample_top_k_top_p,
    store_sample,
)
from stentor.kernels.types import MinFrames, RowRef, SampleOut, SamplingParams

EMBED_BLOCK = 256  # channels of a CTA


@triton.jit
def sum_codebooks(codes_ptr, offset_ptr, table_ptr, offs_h, mask, hidden, NUM_BOOKS: tl.constexpr):
    """Rows offset + codes of the table, summed at some channels: the frame that begins at
    codes_ptr."""
    acc = tl.zeros(offs_h.shape, tl.float32)
    for g in tl.static_range(NUM_BOOKS):
        row = tl.load(codes_ptr + g).to(tl.int64) + tl.load(offset_ptr + g)
        acc += tl.load(table_ptr + row * hidden + offs_h, mask, 0.0).to(tl.float32)
    return acc


def embed_grid(batch: int, hidden: int) -> tuple[int, int]:
    """Rows and blocks of channels."""
    return batch, triton.cdiv(hidden, EMBED_BLOCK)


@triton.jit(do_not_specialize=["max_text"])
def _embed_codes_and_text_kernel(
    codes_ptr, offset_ptr, table_ptr, out_ptr, step_ptr, text_ids_ptr, idx_ptr, texts_ptr, hidden, max_text, pad_id,
    NUM_BOOKS: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    mask = offs_h < hidden
    text_at = tl.load(step_ptr + row) - 1
    # Clamped, because the load has no mask. Beyond the text the padding token is taken.
    text_offs = tl.minimum(tl.maximum(text_at, 0), max_text - 1)
    text_id = tl.load(text_ids_ptr + tl.load(idx_ptr + row) * max_text + text_offs).to(tl.int64)
    text_id = tl.where(text_at < max_text, text_id, pad_id)
    other = tl.load(texts_ptr + text_id * hidden + offs_h, mask, 0.0).to(tl.float32)
    acc = sum_codebooks(
        codes_ptr + row * NUM_BOOKS, offset_ptr, table_ptr, offs_h, mask, hidden, NUM_BOOKS
    )
    acc = acc.to(dtype).to(tl.float32)
    tl.store(out_ptr + row * hidden + offs_h, (acc + other).to(dtype), mask)


def embed_codes_and_text(
    codes: Tensor,
    offset: Tensor,
    table: Tensor,
    step: Tensor,
    text_ids: RowRef,
    texts: Tensor,
    pad: int,
) -> Tensor:
    """Embedding of codes [B, books]: the sum of rows offset + codes of table [V, H], plus a row of
    texts [T, H].

    That row is number step - 1 of `text_ids` [slots, max_text], or `pad` after all of them. Returns
    [B, H].
    """
    batch, books = codes.shape
    hidden = table.shape[1]
    out = torch.empty(batch, hidden, dtype=table.dtype, device=table.device)
    _embed_codes_and_text_kernel[embed_grid(batch, hidden)](
        codes.contiguous(), offset, table, out, step, text_ids.table, text_ids.idx, texts, hidden,
        text_ids.table.shape[1], pad,
        NUM_BOOKS=books, BLOCK_H=EMBED_BLOCK, num_warps=2, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _embed_prompt_kernel(
    first_ptr, first_table_ptr, second_ptr, second_table_ptr, vectors_ptr, vector_row_ptr, out_ptr, hidden,
    HAS_VECTORS: tl.constexpr, VECTOR_ID: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    mask = offs_h < hidden
    first_id = tl.load(first_ptr + row).to(tl.int64)
    second_id = tl.load(second_ptr + row).to(tl.int64)
    acc = tl.load(first_table_ptr + first_id * hidden + offs_h, mask & (first_id >= 0), 0.0).to(
        tl.float32
    )
    acc += tl.load(second_table_ptr + second_id * hidden + offs_h, mask & (second_id >= 0), 0.0).to(
        tl.float32
    )
    if HAS_VECTORS:
        at = tl.load(vector_row_ptr + row) * hidden + offs_h
        vector = (
            tl.load(vectors_ptr + at, mask & (second_id == VECTOR_ID), 0.0).to(dtype).to(tl.float32)
        )
        acc = acc.to(dtype).to(tl.float32) + vector
    tl.store(out_ptr + row * hidden + offs_h, acc.to(dtype), mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _add_frames_kernel(
    codes_ptr, offset_ptr, table_ptr, position_ptr, out_ptr, num_tokens, hidden,
    NUM_BOOKS: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    token = tl.load(position_ptr + row)
    mask = (offs_h < hidden) & (token < num_tokens)
    acc = sum_codebooks(
        codes_ptr + row * NUM_BOOKS, offset_ptr, table_ptr, offs_h, mask, hidden, NUM_BOOKS
    )
    acc = acc.to(dtype).to(tl.float32)
    token_ptr = out_ptr + token * hidden + offs_h
    tl.store(token_ptr, (tl.load(token_ptr, mask, 0.0).to(tl.float32) + acc).to(dtype), mask)


def embed_prompt(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    vectors: RowRef | None,
    frames: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Tensor:
    """Embedding [N, H] of prompt tokens, where every sum is rounded.

    A token is the sum of rows of two tables, of the frame at its position and, where the second
    index is VECTOR_ID, of its row of `vectors` [slots, H]. A table is a pair (index [N], table),
    and a negative index adds nothing. Frames are (codes [M, books], offset [books], table,
    positions [M]). A frame at position N is left out.
    """
    (index, table), (codes, offset, books, positions) = first, frames
    count = len(index)
    hidden = table.shape[1]
    out = torch.empty(count, hidden, dtype=table.dtype, device=table.device)
    if vectors is None:
        source = RowRef(table, index)
    else:
        source = vectors
    _embed_prompt_kernel[embed_grid(count, hidden)](
        *first, *second, *source, out, hidden,
        HAS_VECTORS=vectors is not None, VECTOR_ID=VECTOR_ID, BLOCK_H=EMBED_BLOCK, num_warps=2,
        **PDL_LAUNCH,
    )  # fmt: skip
    if len(codes):
        _add_frames_kernel[embed_grid(len(codes), hidden)](
            codes.contiguous(), offset, books, positions, out, count, hidden,
            NUM_BOOKS=codes.shape[1], BLOCK_H=EMBED_BLOCK, num_warps=2, **PDL_LAUNCH,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["stride_u", "stride_prefix"])
def _sample_first_codebook_kernel(
    logits_ptr, u_ptr, temperature_ptr, top_k_ptr, top_p_ptr, code_ptr, table_ptr, x_ptr, prefix_ptr, stride_logits,
    stride_u, stride_x, stride_prefix, vocab, hidden, idx_ptr, seen_ptr, penalty_ptr, step_ptr, min_frames_ptr,
    seen_out_ptr, ended_ptr, num_special, eos,
    MIN_TEMPERATURE: tl.constexpr, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr, HAS_X: tl.constexpr,
    HAS_PREFIX: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs, mask, logits = load_logits(logits_ptr, row, stride_logits, vocab, BLOCK)
    repeated = tl.load(seen_ptr + tl.load(idx_ptr + row) * vocab + offs, mask, 0) != 0
    penalty = tl.load(penalty_ptr + row)
    logits = tl.where(repeated, tl.where(logits > 0, logits / penalty, logits * penalty), logits)
    early = tl.load(step_ptr + row) < tl.load(min_frames_ptr + row)
    masked = tl.where(offs == eos, early, offs >= vocab - num_special)
    logits = tl.where(masked, float("-inf"), logits)
    temperature, top_k, top_p = load_params(row, temperature_ptr, top_k_ptr, top_p_ptr)
    token = sample_top_k_top_p(
        logits,
        mask,
        vocab,
        temperature,
        top_k,
        top_p,
        tl.load(u_ptr + row * stride_u),
        MIN_TEMPERATURE,
        KEY_BITS,
    )
    token = checked(token, logits)
    tl.store(seen_out_ptr + row * vocab + offs, (repeated | (offs == token)).to(tl.uint8), mask)
    tl.store(ended_ptr + row, (token == eos).to(tl.uint8))
    store_sample(
        token,
        row,
        code_ptr,
        table_ptr,
        x_ptr,
        prefix_ptr,
        stride_x,
        stride_prefix,
        hidden,
        HAS_X,
        HAS_PREFIX,
        BLOCK_H,
    )


def sample_first_codebook(
    logits: Tensor,
    params: SamplingParams,
    out: SampleOut,
    history: RowRef,
    penalty: Tensor,
    min_frames: MinFrames,
    num_special: int,
    eos: int,
) -> tuple[Tensor, Tensor]:
    """`kernels.sampling.sample_into`, after the repetition penalty [B] for the ids `history`
    [slots, V] bool.

    The last `num_special` ids are masked. Only `eos` stays allowed among them, once a row has made
    its `min_frames`. Returns ([B] bool, whether `eos` was drawn, [B, V] bool, the ids seen now).
    """
    arguments, constants = launch_args(logits, params, out)
    ended = torch.empty(len(logits), dtype=torch.uint8, device=logits.device)
    now = torch.empty(logits.shape, dtype=torch.uint8, device=logits.device)
    _sample_first_codebook_kernel[(len(logits),)](
        *arguments, history.idx, history.table.view(torch.uint8), penalty, *min_frames, now, ended, num_special, eos,
        KEY_BITS=32, **constants,  # penalised logits are float32
    )  # fmt: skip
    return ended.view(torch.bool), now.view(torch.bool)
