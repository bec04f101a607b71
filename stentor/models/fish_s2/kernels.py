"""Triton kernels of this family: the embedding of a frame, and the ranked sampler with the first code of a frame.

The ranked sampler keeps what `sampling.choose` keeps and draws by the same inverse CDF.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.embedding import EMBED_BLOCK, embed_grid, sum_codebooks
from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.kernels.sampling_device import (
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

PLACES = tl.constexpr(8192)  # vocabulary sizes that a composite key can address
RANK_BITS = tl.constexpr(46)
SHORT = 64  # tokens that are compared pair by pair


@triton.jit
def _embed_codes_kernel(
    codes, offset, table, out, tokens, hidden, first, scale, BOOKS: tl.constexpr, BLOCK: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < hidden
    token = tl.load(codes + row * BOOKS).to(tl.int64) + first
    beside = tl.load(tokens + token * hidden + channel, there, 0.0).to(tl.float32)
    total = sum_codebooks(codes + row * BOOKS, offset, table, channel, there, hidden, BOOKS).to(kind).to(tl.float32)
    total = (beside + total).to(kind).to(tl.float32)
    tl.store(out + row * hidden + channel, (total / scale).to(kind), there)


def embed_codes(codes: Tensor, offset: Tensor, table: Tensor, tokens: Tensor, first: int, scale: float) -> Tensor:
    """Embedding of codes [B, books]: (row `first` + codes[:, 0] of tokens [T, H], plus the sum of rows offset + codes
    of table [V, H]) / scale: [B, H]."""
    batch, books = codes.shape
    hidden = table.shape[1]
    out = torch.empty(batch, hidden, dtype=table.dtype, device=table.device)
    _embed_codes_kernel[embed_grid(batch, hidden)](
        codes.contiguous(), offset, table, out, tokens, hidden, first, scale,
        BOOKS=books, BLOCK=EMBED_BLOCK, USE_PDL=USE_PDL, num_warps=2, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _sample_leading(raw, at, inside, k, top, p, temperature, u, found, places, SHORT: tl.constexpr, BITS: tl.constexpr):
    """The draw among the k <= SHORT first in rank, which are brought together and compared pair by pair."""
    key = narrow_key(ordered_key(raw), BITS)
    edge = kth_largest(key, inside, k, BITS)
    above, level = inside & (key > edge), inside & (key == edge)
    count = tl.cumsum(above.to(tl.int32) + (level.to(tl.int32) << 16), 0)
    many = tl.sum(above.to(tl.int32), 0)
    place = tl.where(above, count & 0xFFFF, many + (count >> 16)) - 1
    kept = above | (level & (place < k))
    tl.store(found + place, raw, kept)
    tl.store(places + place, at, kept)
    tl.debug_barrier()
    lane = tl.arange(0, SHORT)
    mine, other = lane[:, None], lane[None, :]
    have = other < k
    a, b = tl.load(found + mine, mine < k, float("-inf")), tl.load(found + other, have, float("-inf"))
    a_at, b_at = tl.load(places + mine, mine < k, 0), tl.load(places + other, have, 0)
    before = have & ((b > a) | ((b == a) & (b_at <= a_at)))  # in rank, or itself
    rank = tl.sum(before.to(tl.int32), 1)
    mass = tl.sum(tl.where(before, tl.exp(b - top), 0.0), 1)
    total = tl.sum(tl.where(inside, tl.exp(raw - top), 0.0), 0)
    most = tl.where(p < 1, p * total, float("inf"))
    stays = (lane < k) & ((mass <= most) | (rank == 1))
    # The nucleus is the first so many in rank, so another's place in it follows from how many there are.
    nucleus = tl.sum(stays.to(tl.int32), 0)
    weight = tl.where(before, tl.exp((b - top) / temperature), 0.0)
    drawn = tl.sum(weight, 1)
    everything = tl.max(tl.where(stays & (rank <= nucleus), drawn, 0.0), 0)
    reached = stays & (drawn >= u * everything)
    first = tl.min(tl.where(reached, rank, SHORT), 0)
    return tl.max(tl.where((rank == first)[:, None] & (mine < k), a_at, 0))


@triton.jit
def _sample_ranked_row(
    raw, at, inside, size, temperature, k, p, u, found, places, LEAST: tl.constexpr, SHORT: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """The ranked draw of one row; `found` and `places` have room for SHORT tokens."""
    top = tl.max(raw, 0)
    warmth = tl.maximum(temperature, LEAST)
    chosen = tl.argmax(raw, 0).to(tl.int64)
    if temperature > 0:
        if (k > 0) & (k <= SHORT) & (k < size):
            chosen = _sample_leading(
                raw, at, inside, k, top, p, warmth, u, found, places, SHORT, BITS
            ).to(tl.int64)  # fmt: skip
        else:
            chosen = _sample_ranked_any(raw, at, inside, size, k, top, p, warmth, u)
    return chosen


@triton.jit
def _sample_ranked_any(raw, at, inside, size, k, top, p, temperature, u):
    """The draw whatever k is."""
    # Equal logits rank by index, so that every token has a place of its own.
    key = ordered_key(raw) * PLACES + (PLACES - 1 - at)
    best = tl.max(tl.where(inside, key, -0x7FFFFFFFFFFFFFF), 0)
    kept = inside
    if (k > 0) & (k < size):
        kept = inside & (key >= kth_largest(tl.where(inside, key, -0x7FFFFFFFFFFFFFF), inside, k, RANK_BITS))
    if p < 1:
        mass = tl.where(inside, tl.exp(raw - top), 0.0)
        # The crossing token goes: keys above the largest t that gathers more than p.
        edge = mass_threshold(key, mass, p * tl.sum(mass, 0), RANK_BITS)
        whole = tl.sum(tl.where(key >= edge, mass, 0.0), 0) <= p * tl.sum(mass, 0)
        kept = kept & (key >= tl.where(whole, edge, edge + 1))
    kept = kept | (key == best)
    weight = tl.where(kept, tl.exp((raw - top) / temperature), 0.0)
    edge = mass_threshold(key, weight, u * tl.sum(weight, 0), RANK_BITS)
    chosen = tl.min(tl.where(kept & (key >= edge), key, best), 0)
    return (chosen & (PLACES - 1)) ^ (PLACES - 1)


@triton.jit(do_not_specialize=["u_row", "prefix_row"])
def _sample_ranked_kernel(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, prefix, row_stride, u_row, x_row, prefix_row, size,
    hidden, found, places, LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr,
    PREFIX: tl.constexpr, WIDTH: tl.constexpr, SHORT: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    at, inside, raw = load_logits(logits, row, row_stride, size, BLOCK)
    temperature, k, p = load_params(row, temperatures, top_ks, top_ps)
    u = tl.load(uniforms + row * u_row)
    short = row * SHORT
    chosen = _sample_ranked_row(
        raw, at, inside, size, temperature, k, p, u, found + short, places + short, LEAST, SHORT, BITS
    )
    store_sample(chosen, row, codes, table, x, prefix, x_row, prefix_row, hidden, PUT, PREFIX, WIDTH)


@triton.jit(do_not_specialize=["u_row", "prefix_row", "past_row", "past_item", "window"])
def _sample_first_code_kernel(
    logits, uniforms, temperatures, top_ks, top_ps, codes, table, x, prefix, row_stride, u_row, x_row, prefix_row, size,
    hidden, found, places, idx, past, steps, least, ended, past_row, past_item, window, again_temperature, again_p,
    LEAST: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, PUT: tl.constexpr, PREFIX: tl.constexpr,
    WIDTH: tl.constexpr, SHORT: tl.constexpr, WINDOW: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    at, inside, raw = load_logits(logits, row, row_stride, size, BLOCK)
    step = tl.load(steps + row)
    raw = tl.where((at == size - 1) & (step < tl.load(least + row)), float("-inf"), raw)
    temperature, k, p = load_params(row, temperatures, top_ks, top_ps)
    u = tl.load(uniforms + row * u_row)
    short = row * (2 * SHORT)
    chosen = _sample_ranked_row(
        raw, at, inside, size, temperature, k, p, u, found + short, places + short, LEAST, SHORT, BITS
    )
    back = tl.arange(0, WINDOW)
    then = step - 1 - back
    counts = (back < window) & (then > 0)  # frame 0 never counts
    old = tl.load(past + tl.load(idx + row) * past_row + then * past_item, counts, -1)
    if tl.sum((counts & (old == chosen)).to(tl.int32), 0) > 0:
        warmth = tl.where(temperature > 0, again_temperature, 0.0)
        u = tl.load(uniforms + row * u_row + 1)
        short += SHORT
        chosen = _sample_ranked_row(
            raw, at, inside, size, warmth, k, again_p, u, found + short, places + short, LEAST, SHORT, BITS
        )
    stop = chosen == size - 1
    tl.store(ended + row, stop.to(tl.uint8))
    chosen = tl.where(stop, 0, chosen)
    store_sample(chosen, row, codes, table, x, prefix, x_row, prefix_row, hidden, PUT, PREFIX, WIDTH)


def _scratch(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Room for the leading tokens of `count` ranked draws per row."""
    if logits.shape[1] > PLACES.value:
        raise ValueError(f"logits: at most {PLACES.value} wide, got {logits.shape[1]}")
    shape, device = (len(logits), count * SHORT), logits.device
    return torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int32, device=device)


def sample_ranked(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`sample_ranked_into`, with ids [B] int64 as the result."""
    out = SampleOut(torch.empty(len(logits), dtype=torch.int64, device=logits.device))
    sample_ranked_into(logits, SamplingParams(u, temperature, top_k, top_p), out)
    return out.code


def sample_ranked_into(logits: Tensor, params: SamplingParams, out: SampleOut) -> None:
    """Sample an id per row of logits [B, V] by rank: top-p acts before the temperature and leaves the crossing id out.
    Writes the ids, and the token that follows from them, to `out`."""
    given, constants = launch_args(logits, params, out)
    _sample_ranked_kernel[(len(logits),)](*given, *_scratch(logits, 1), BITS=key_bits(logits), SHORT=SHORT, **constants)


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

    A code that is among the last `window` first codes of past frames [slots, most, books] is drawn once more, with the
    second u and `again` = (temperature, top_p). The last id is the end: it is allowed once a row has made its
    `min_frames`, and is stored as code 0. Returns [B] bool, whether it was drawn.
    """
    given, constants = launch_args(logits, params, out)
    ended = torch.empty(len(logits), dtype=torch.uint8, device=logits.device)
    frames = past.table
    _sample_first_code_kernel[(len(logits),)](
        *given, *_scratch(logits, 2), past.idx, frames, *min_frames, ended, frames.stride(0), frames.stride(1), window,
        *again, BITS=key_bits(logits), SHORT=SHORT, WINDOW=triton.next_power_of_2(window), **constants,
    )  # fmt: skip
    return ended.view(torch.bool)
