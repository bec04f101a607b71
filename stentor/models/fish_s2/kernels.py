"""Triton kernels of this family: the embedding of a frame, and the ranked sampler with the first
code of a frame.

The ranked sampler keeps what `language_model.sample_ranked` keeps and draws by the same inverse
CDF.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.frame_codes import EMBED_BLOCK, embed_grid, sum_codebooks
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.sampling import (
    checked,
    key_bits,
    kth_largest,
    launch_args,
    load_logits,
    load_params,
    mass_threshold,
    narrow_key,
    ordered_key,
    store_sample,
)
from stentor.kernels.types import MinFrames, RowRef, SampleOut, SamplingParams

MAX_VOCAB = tl.constexpr(8192)  # ids that a key of logit and id can hold
RANK_BITS = tl.constexpr(46)
MAX_PAIRWISE = 64  # ids that are compared pair by pair


@triton.jit
def _embed_codes_kernel(
    codes_ptr, offset_ptr, table_ptr, out_ptr, tokens_ptr, hidden, first_id, scale,
    NUM_BOOKS: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    mask = offs_h < hidden
    token = tl.load(codes_ptr + row * NUM_BOOKS).to(tl.int64) + first_id
    other = tl.load(tokens_ptr + token * hidden + offs_h, mask, 0.0).to(tl.float32)
    acc = sum_codebooks(
        codes_ptr + row * NUM_BOOKS, offset_ptr, table_ptr, offs_h, mask, hidden, NUM_BOOKS
    )
    acc = acc.to(dtype).to(tl.float32)
    acc = (other + acc).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * hidden + offs_h, (acc / scale).to(dtype), mask)


def embed_codes(
    codes: Tensor, offset: Tensor, table: Tensor, tokens: Tensor, first: int, scale: float
) -> Tensor:
    """Embedding of codes [B, books]: (row `first` + codes[:, 0] of tokens [T, H], plus the sum of
    rows offset + codes of table [V, H]) / scale: [B, H]."""
    batch, books = codes.shape
    hidden = table.shape[1]
    out = torch.empty(batch, hidden, dtype=table.dtype, device=table.device)
    _embed_codes_kernel[embed_grid(batch, hidden)](
        codes.contiguous(), offset, table, out, tokens, hidden, first, scale,
        NUM_BOOKS=books, BLOCK_H=EMBED_BLOCK, num_warps=2, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _sample_leading(
    logits, offs, mask, top_k, largest, top_p, temperature, u, scratch_logits_ptr, scratch_ids_ptr,
    MAX_PAIRWISE: tl.constexpr, KEY_BITS: tl.constexpr,
):  # fmt: skip
    """The id drawn among the top_k <= MAX_PAIRWISE largest, which are gathered and compared pair by
    pair."""
    key = narrow_key(ordered_key(logits), KEY_BITS)
    kth = kth_largest(key, mask, top_k, KEY_BITS)
    above = mask & (key > kth)
    tied = mask & (key == kth)
    count = tl.cumsum(above.to(tl.int32) + (tied.to(tl.int32) << 16), 0)
    num_above = tl.sum(above.to(tl.int32), 0)
    rank = tl.where(above, count & 0xFFFF, num_above + (count >> 16)) - 1
    keep = above | (tied & (rank < top_k))
    tl.store(scratch_logits_ptr + rank, logits, keep)
    tl.store(scratch_ids_ptr + rank, offs, keep)
    # Each thread reads what others have stored.
    tl.debug_barrier()
    offs_i = tl.arange(0, MAX_PAIRWISE)
    i = offs_i[:, None]
    j = offs_i[None, :]
    mask_j = j < top_k
    logit_i = tl.load(scratch_logits_ptr + i, i < top_k, float("-inf"))
    logit_j = tl.load(scratch_logits_ptr + j, mask_j, float("-inf"))
    id_i = tl.load(scratch_ids_ptr + i, i < top_k, 0)
    id_j = tl.load(scratch_ids_ptr + j, mask_j, 0)
    # in rank, or itself
    not_behind = mask_j & ((logit_j > logit_i) | ((logit_j == logit_i) & (id_j <= id_i)))
    rank = tl.sum(not_behind.to(tl.int32), 1)
    cum_p = tl.sum(tl.where(not_behind, tl.exp(logit_j - largest), 0.0), 1)
    total = tl.sum(tl.where(mask, tl.exp(logits - largest), 0.0), 0)
    max_cum_p = tl.where(top_p < 1, top_p * total, float("inf"))
    keep_i = (offs_i < top_k) & ((cum_p <= max_cum_p) | (rank == 1))
    # The ids that are kept are the first in rank, so the rank of an id says whether it is one of
    # them.
    num_kept = tl.sum(keep_i.to(tl.int32), 0)
    q = tl.where(not_behind, tl.exp((logit_j - largest) / temperature), 0.0)
    cum_q = tl.sum(q, 1)
    total_q = tl.max(tl.where(keep_i & (rank <= num_kept), cum_q, 0.0), 0)
    reached = keep_i & (cum_q >= u * total_q)
    drawn_rank = tl.min(tl.where(reached, rank, MAX_PAIRWISE), 0)
    return tl.max(tl.where((rank == drawn_rank)[:, None] & (i < top_k), id_i, 0))


@triton.jit
def _sample_ranked_row(
    logits, offs, mask, vocab, temperature, top_k, top_p, u, scratch_logits_ptr, scratch_ids_ptr,
    MIN_TEMPERATURE: tl.constexpr, MAX_PAIRWISE: tl.constexpr, KEY_BITS: tl.constexpr,
):  # fmt: skip
    """The id that one row draws by rank. The scratch buffers hold MAX_PAIRWISE ids."""
    largest = tl.max(logits, 0)
    divisor = tl.maximum(temperature, MIN_TEMPERATURE)
    token = tl.argmax(logits, 0).to(tl.int64)
    if temperature > 0:
        if (top_k > 0) & (top_k <= MAX_PAIRWISE) & (top_k < vocab):
            token = _sample_leading(
                logits, offs, mask, top_k, largest, top_p, divisor, u, scratch_logits_ptr, scratch_ids_ptr,
                MAX_PAIRWISE, KEY_BITS,
            ).to(tl.int64)  # fmt: skip
        else:
            token = _sample_ranked_any(logits, offs, mask, vocab, top_k, largest, top_p, divisor, u)
    return token


@triton.jit
def _sample_ranked_any(logits, offs, mask, vocab, top_k, largest, top_p, temperature, u):
    """The id that one row draws, for any top_k."""
    # Equal logits rank by index, so that no two ids have the same key.
    key = ordered_key(logits) * MAX_VOCAB + (MAX_VOCAB - 1 - offs)
    best = tl.max(tl.where(mask, key, -0x7FFFFFFFFFFFFFF), 0)
    keep = mask
    if (top_k > 0) & (top_k < vocab):
        keep = mask & (
            key >= kth_largest(tl.where(mask, key, -0x7FFFFFFFFFFFFFF), mask, top_k, RANK_BITS)
        )
    if top_p < 1:
        p = tl.where(mask, tl.exp(logits - largest), 0.0)
        # The crossing id is left out: keys above the largest t that gathers more than top_p.
        threshold = mass_threshold(key, p, top_p * tl.sum(p, 0), RANK_BITS)
        all_fit = tl.sum(tl.where(key >= threshold, p, 0.0), 0) <= top_p * tl.sum(p, 0)
        keep = keep & (key >= tl.where(all_fit, threshold, threshold + 1))
    keep = keep | (key == best)
    q = tl.where(keep, tl.exp((logits - largest) / temperature), 0.0)
    threshold = mass_threshold(key, q, u * tl.sum(q, 0), RANK_BITS)
    drawn = tl.min(tl.where(keep & (key >= threshold), key, best), 0)
    return (drawn & (MAX_VOCAB - 1)) ^ (MAX_VOCAB - 1)


@triton.jit(do_not_specialize=["stride_u", "stride_prefix"])
def _sample_ranked_kernel(
    logits_ptr, u_ptr, temperature_ptr, top_k_ptr, top_p_ptr, code_ptr, table_ptr, x_ptr, prefix_ptr, stride_logits,
    stride_u, stride_x, stride_prefix, vocab, hidden, scratch_logits_ptr, scratch_ids_ptr,
    MIN_TEMPERATURE: tl.constexpr, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr, HAS_X: tl.constexpr,
    HAS_PREFIX: tl.constexpr, BLOCK_H: tl.constexpr, MAX_PAIRWISE: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs, mask, logits = load_logits(logits_ptr, row, stride_logits, vocab, BLOCK)
    temperature, top_k, top_p = load_params(row, temperature_ptr, top_k_ptr, top_p_ptr)
    u = tl.load(u_ptr + row * stride_u)
    scratch = row * MAX_PAIRWISE
    token = _sample_ranked_row(
        logits, offs, mask, vocab, temperature, top_k, top_p, u, scratch_logits_ptr + scratch,
        scratch_ids_ptr + scratch, MIN_TEMPERATURE, MAX_PAIRWISE, KEY_BITS,
    )  # fmt: skip
    token = checked(token, logits)
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


@triton.jit(
    do_not_specialize=["stride_u", "stride_prefix", "stride_past", "stride_frame", "window"]
)
def _sample_first_code_kernel(
    logits_ptr, u_ptr, temperature_ptr, top_k_ptr, top_p_ptr, code_ptr, table_ptr, x_ptr, prefix_ptr, stride_logits,
    stride_u, stride_x, stride_prefix, vocab, hidden, scratch_logits_ptr, scratch_ids_ptr, idx_ptr, past_ptr, step_ptr,
    min_frames_ptr, ended_ptr, stride_past, stride_frame, window, again_temperature, again_top_p,
    MIN_TEMPERATURE: tl.constexpr, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr, HAS_X: tl.constexpr,
    HAS_PREFIX: tl.constexpr, BLOCK_H: tl.constexpr, MAX_PAIRWISE: tl.constexpr, WINDOW: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs, mask, logits = load_logits(logits_ptr, row, stride_logits, vocab, BLOCK)
    step = tl.load(step_ptr + row)
    logits = tl.where(
        (offs == vocab - 1) & (step < tl.load(min_frames_ptr + row)), float("-inf"), logits
    )
    temperature, top_k, top_p = load_params(row, temperature_ptr, top_k_ptr, top_p_ptr)
    offs_back = tl.arange(0, WINDOW)
    past_step = step - 1 - offs_back
    mask_past = (offs_back < window) & (past_step > 0)  # frame 0 never counts
    past_code = tl.load(
        past_ptr + tl.load(idx_ptr + row) * stride_past + past_step * stride_frame, mask_past, -1
    )
    token = tl.cast(-1, tl.int64)
    draws = 1
    for draw in range(2):  # a loop: the code of a draw is compiled once
        if draw < draws:
            # Each has a buffer of its own: slow threads may still read that of the first draw.
            scratch = (row * 2 + draw) * MAX_PAIRWISE
            token = _sample_ranked_row(
                logits, offs, mask, vocab, temperature, top_k, top_p, tl.load(u_ptr + row * stride_u + draw),
                scratch_logits_ptr + scratch, scratch_ids_ptr + scratch, MIN_TEMPERATURE, MAX_PAIRWISE, KEY_BITS,
            )  # fmt: skip
            draws += (tl.sum((mask_past & (past_code == token)).to(tl.int32), 0) > 0).to(tl.int32)
            # A row of temperature 0 takes the largest logit again.
            temperature = tl.where(temperature > 0, again_temperature, 0.0)
            top_p = tl.cast(again_top_p, tl.float32)
    token = checked(token, logits)
    stop = token == vocab - 1
    tl.store(ended_ptr + row, stop.to(tl.uint8))
    token = tl.where(stop, 0, token)
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


def _scratch(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Scratch buffers for the MAX_PAIRWISE largest logits and their ids, for `count` draws per
    row."""
    if logits.shape[1] > MAX_VOCAB.value:
        raise ValueError(f"logits: at most {MAX_VOCAB.value} wide, got {logits.shape[1]}")
    shape = (len(logits), count * MAX_PAIRWISE)
    device = logits.device
    return torch.empty(shape, dtype=torch.float32, device=device), torch.empty(
        shape, dtype=torch.int32, device=device
    )


def sample_ranked(
    logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor
) -> Tensor:
    """`sample_ranked_into`, with ids [B] int64 as the result."""
    out = SampleOut(torch.empty(len(logits), dtype=torch.int64, device=logits.device))
    sample_ranked_into(logits, SamplingParams(u, temperature, top_k, top_p), out)
    return out.code


def sample_ranked_into(logits: Tensor, params: SamplingParams, out: SampleOut) -> None:
    """Sample an id per row of logits [B, V] by rank: top-p acts before the temperature and leaves
    the crossing id out. Writes the ids, and the token that follows from them, to `out`."""
    arguments, constants = launch_args(logits, params, out)
    _sample_ranked_kernel[(len(logits),)](
        *arguments,
        *_scratch(logits, 1),
        KEY_BITS=key_bits(logits),
        MAX_PAIRWISE=MAX_PAIRWISE,
        **constants,
    )


def sample_first_code(
    logits: Tensor,
    params: SamplingParams,
    again: tuple[float, float],
    out: SampleOut,
    past: RowRef,
    window: int,
    min_frames: MinFrames,
) -> Tensor:
    """The first code of a frame by the ranked sampler, where `params.u` is [B, 2].

    A code that is among the last `window` first codes of past frames [slots, max_frames, books] is
    drawn once more. The second draw uses the second u and `again` = (temperature, top_p). The last
    id is the end. It is allowed once a row has made its `min_frames`, and it is stored as code 0.
    Returns [B] bool, whether it was drawn.
    """
    arguments, constants = launch_args(logits, params, out)
    ended = torch.empty(len(logits), dtype=torch.uint8, device=logits.device)
    frames = past.table
    _sample_first_code_kernel[(len(logits),)](
        *arguments, *_scratch(logits, 2), past.idx, frames, *min_frames, ended, frames.stride(0), frames.stride(1), window,
        *again, KEY_BITS=key_bits(logits), MAX_PAIRWISE=MAX_PAIRWISE, WINDOW=triton.next_power_of_2(window),
        **constants,
    )  # fmt: skip
    return ended.view(torch.bool)
