"""Top-k and top-p sampling in one kernel, which may also write the next token's embedding, and what
samplers share.

Nothing is sorted. A threshold is searched for over the ordered bit patterns of the logits, of which
bfloat16 leaves half as many to try. Sums may round differently than in `layers.sampling`, so a draw
may differ where u falls on the boundary of two ids.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.constants import MIN_TEMPERATURE
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait
from stentor.kernels.types import SampleOut, SamplingParams

FULL_BITS = tl.constexpr(32)  # of a key of float32 logits
COUNT_BITS = tl.constexpr(21)  # three counts fill a word, and no tensor has more elements
MAX_COUNT = tl.constexpr((1 << 21) - 1)


@triton.jit
def ordered_key(x):
    """int64 keys in the order of float32 x."""
    bits = x.to(tl.int32, bitcast=True)
    # The bits of negative floats order in reverse, all but the sign.
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def narrow_key(key, BITS: tl.constexpr):
    """int32 keys in the same order, where the logits were bfloat16."""
    if BITS == 16:
        key = (key >> 16).to(tl.int32)
    return key


@triton.jit
def kth_largest(key, mask, k, bits: tl.constexpr):
    """The largest t with at least k keys >= t. An iteration quarters the span, and one sum makes
    three counts."""
    largest = tl.max(key, 0)
    low = tl.min(tl.where(mask, key, largest), 0)
    high = largest
    for _ in range((bits + 1) // 2):
        span = high - low
        first = low + (span + 3) // 4
        second = low + (2 * span + 3) // 4
        third = low + (3 * span + 3) // 4
        counts = ((key >= second).to(tl.int64) << COUNT_BITS) + (
            (key >= third).to(tl.int64) << 2 * COUNT_BITS
        )
        counts = tl.sum(tl.where(mask, counts + (key >= first).to(tl.int64), 0), 0)
        one = (counts & MAX_COUNT) >= k
        two = ((counts >> COUNT_BITS) & MAX_COUNT) >= k
        three = (counts >> 2 * COUNT_BITS) >= k
        high = tl.where(three, high, tl.where(two, third - 1, tl.where(one, second - 1, first - 1)))
        low = tl.where(three, third, tl.where(two, second, tl.where(one, first, low)))
    return low


@triton.jit
def mass_threshold(key, p, mass, bits: tl.constexpr):
    """The largest t for which the keys >= t weigh at least `mass`."""
    low = tl.min(tl.where(p > 0, key, 0x7FFFFFFFFFFFFFF), 0)
    high = tl.max(tl.where(p > 0, key, -0x7FFFFFFFFFFFFFF), 0)
    for _ in range(bits):
        middle = (low + high + 1) >> 1
        reached = tl.sum(tl.where(key >= middle, p, 0.0), 0) >= mass
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    return low


@triton.jit
def sample_top_k_top_p(
    logits,
    mask,
    size,
    temperature,
    top_k,
    top_p,
    u,
    MIN_TEMPERATURE: tl.constexpr,
    KEY_BITS: tl.constexpr,
):
    """The id that one row draws. Its logits outside the mask are -inf."""
    token = tl.argmax(logits, 0).to(tl.int64)
    if temperature > 0:
        x = logits / tl.maximum(temperature, MIN_TEMPERATURE)
        keep = mask
        if (top_k > 0) & (top_k < size):
            key = narrow_key(ordered_key(logits), KEY_BITS)
            # Logits keep their order when divided by the temperature, but may tie with the k-th
            # where they did not.
            kth = tl.min(
                tl.where(mask & (key >= kth_largest(key, mask, top_k, KEY_BITS)), x, float("inf")),
                0,
            )
            keep = mask & (x >= kth)
        largest = tl.max(x, 0)
        p = tl.where(keep, tl.exp(x - largest), 0.0)
        if top_p < 1:
            # An id stays while the mass before it is below top_p.
            scaled_key = ordered_key(x)
            threshold = mass_threshold(scaled_key, p, top_p * tl.sum(p, 0), FULL_BITS)
            p = tl.where((scaled_key >= threshold) | (x == largest), p, 0.0)
        cdf = tl.cumsum(p, 0)
        total = tl.max(tl.where(mask, cdf, 0.0), 0)
        token = tl.sum((mask & (cdf < u * total)).to(tl.int32), 0).to(tl.int64)
    return tl.minimum(token, size - 1)


@triton.jit
def checked(token, logits):
    """The token, or NO_ID for logits that cannot be drawn from: one is NaN or inf, or all are
    -inf."""
    largest = tl.max(tl.where(logits == logits, logits, float("inf")), 0)  # noqa: PLR0124 - a NaN is not itself
    return tl.where((largest > float("-inf")) & (largest < float("inf")), token, -1).to(tl.int64)


def key_bits(logits: Tensor) -> int:
    """Bits of the keys that `kth_largest` searches over."""
    if logits.dtype == torch.bfloat16:
        return 16
    return 32


@triton.jit
def load_logits(logits_ptr, row, stride_logits, size, BLOCK: tl.constexpr):
    """(ids, which of them exist, their logits in float32) of a row."""
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    return (
        offs,
        mask,
        tl.load(logits_ptr + row * stride_logits + offs, mask, float("-inf")).to(tl.float32),
    )


@triton.jit
def load_params(row, temperature_ptr, top_k_ptr, top_p_ptr):
    """(temperature, top_k, top_p) of a row."""
    return tl.load(temperature_ptr + row), tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)


@triton.jit
def store_sample(
    token, row, code_ptr, table_ptr, x_ptr, prefix_ptr, stride_x, stride_prefix, hidden,
    HAS_X: tl.constexpr, HAS_PREFIX: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """The code, its row of the table as the last token, and the token in front of it. NO_ID takes
    row 0."""
    tl.store(code_ptr + row, token)
    if HAS_X:
        offs_h = tl.arange(0, BLOCK_H)
        mask = offs_h < hidden
        out_ptr = x_ptr + row * stride_x + offs_h
        if HAS_PREFIX:
            tl.store(out_ptr, tl.load(prefix_ptr + row * stride_prefix + offs_h, mask), mask)
            out_ptr += hidden
        tl.store(out_ptr, tl.load(table_ptr + tl.maximum(token, 0) * hidden + offs_h, mask), mask)


def launch_args(
    logits: Tensor, params: SamplingParams, out: SampleOut
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that every sampling kernel takes first, and constants and launch options."""
    size = logits.shape[1]
    has_x = out.x is not None
    has_prefix = out.prefix is not None
    table, x = (logits, logits) if out.table is None or out.x is None else (out.table, out.x)
    if out.prefix is None:
        head = x
    else:
        head = out.prefix
    u_row = params.u.stride(0)
    arguments = (
        logits,
        *params,
        out.code,
        table,
        x,
        head,
        logits.stride(0),
        u_row,
        x.stride(0),
        head.stride(0),
        size,
    )
    hidden = table.shape[1]
    constants = {"MIN_TEMPERATURE": MIN_TEMPERATURE, "BLOCK": triton.next_power_of_2(size)}
    constants |= {"HAS_X": has_x, "HAS_PREFIX": has_prefix}
    constants |= {
        "BLOCK_H": triton.next_power_of_2(hidden) if has_x else 1,
        "num_warps": 8,
        **PDL_LAUNCH,
    }
    return (*arguments, hidden), constants


@triton.jit(do_not_specialize=["stride_u", "stride_prefix"])
def _sample_kernel(
    logits_ptr, u_ptr, temperature_ptr, top_k_ptr, top_p_ptr, code_ptr, table_ptr, x_ptr, prefix_ptr, stride_logits,
    stride_u, stride_x, stride_prefix, vocab, hidden,
    MIN_TEMPERATURE: tl.constexpr, KEY_BITS: tl.constexpr, BLOCK: tl.constexpr, HAS_X: tl.constexpr,
    HAS_PREFIX: tl.constexpr, BLOCK_H: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    _, mask, logits = load_logits(logits_ptr, row, stride_logits, vocab, BLOCK)
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


def sample_into(logits: Tensor, params: SamplingParams, out: SampleOut) -> None:
    """Sample an id per row of logits [B, V] in any floating dtype: by temperature, top-k and top-p,
    where temperature 0 takes the largest logit. Writes the ids, and the token that follows from
    them, to `out`."""
    arguments, constants = launch_args(logits, params, out)
    _sample_kernel[(len(logits),)](*arguments, KEY_BITS=key_bits(logits), **constants)


def sample(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`sample_into`, with ids [B] int64 as the result."""
    out = SampleOut(torch.empty(len(logits), dtype=torch.int64, device=logits.device))
    sample_into(logits, SamplingParams(u, temperature, top_k, top_p), out)
    return out.code
