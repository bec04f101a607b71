"""What samplers have in common: thresholds of top-k and top-p in registers, and how a sampled id is stored.

Nothing is sorted. A threshold is searched for over the ordered bit patterns of the logits, of which bfloat16 leaves
half as many to try. Sums may round differently than in `layers.sampling`, so a draw may differ where u falls on
the boundary of two ids.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.constants import MIN_TEMPERATURE
from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL
from stentor.kernels.types import SampleOut, SamplingParams

KEY_BITS = tl.constexpr(32)
COUNT = tl.constexpr(21)  # bits of a count: three fill a word, and a tensor holds no more
MOST = tl.constexpr((1 << 21) - 1)


@triton.jit
def ordered_key(x):
    """int64 keys in the order of float32 x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def narrow_key(key, BITS: tl.constexpr):
    """int32 keys in the same order, where the logits were bfloat16."""
    if BITS == 16:
        key = (key >> 16).to(tl.int32)
    return key


@triton.jit
def kth_largest(key, inside, k, bits: tl.constexpr):
    """The largest t with at least k keys >= t. A round quarters what is left: three counts are one sum."""
    some = tl.max(key, 0)
    low = tl.min(tl.where(inside, key, some), 0)
    high = some
    for _ in range((bits + 1) // 2):
        left = high - low
        first, second, third = low + (left + 3) // 4, low + (2 * left + 3) // 4, low + (3 * left + 3) // 4
        counts = ((key >= second).to(tl.int64) << COUNT) + ((key >= third).to(tl.int64) << 2 * COUNT)
        counts = tl.sum(tl.where(inside, counts + (key >= first).to(tl.int64), 0), 0)
        one, two, three = (counts & MOST) >= k, ((counts >> COUNT) & MOST) >= k, (counts >> 2 * COUNT) >= k
        high = tl.where(three, high, tl.where(two, third - 1, tl.where(one, second - 1, first - 1)))
        low = tl.where(three, third, tl.where(two, second, tl.where(one, first, low)))
    return low


@triton.jit
def mass_threshold(key, weight, mass, bits: tl.constexpr):
    """The largest t for which the keys >= t weigh at least `mass`."""
    low = tl.min(tl.where(weight > 0, key, 0x7FFFFFFFFFFFFFF), 0)
    high = tl.max(tl.where(weight > 0, key, -0x7FFFFFFFFFFFFFF), 0)
    for _ in range(bits):
        middle = (low + high + 1) >> 1
        enough = tl.sum(tl.where(key >= middle, weight, 0.0), 0) >= mass
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def sample_top_k_top_p(raw, inside, size, temperature, k, p, u, LEAST: tl.constexpr, BITS: tl.constexpr):
    """The draw of one row, whose logits outside are -inf."""
    chosen = tl.argmax(raw, 0).to(tl.int64)
    if temperature > 0:
        x = raw / tl.maximum(temperature, LEAST)
        kept = inside
        if (k > 0) & (k < size):
            order = narrow_key(ordered_key(raw), BITS)
            # What is divided by the temperature keeps its order, but may tie with the k-th where it did not.
            edge = tl.min(tl.where(inside & (order >= kth_largest(order, inside, k, BITS)), x, float("inf")), 0)
            kept = inside & (x >= edge)
        top = tl.max(x, 0)
        weight = tl.where(kept, tl.exp(x - top), 0.0)
        if p < 1:
            # A token stays while the mass before it is below p: the largest t at which enough has been gathered.
            key = ordered_key(x)
            least = mass_threshold(key, weight, p * tl.sum(weight, 0), KEY_BITS)
            weight = tl.where((key >= least) | (x == top), weight, 0.0)
        cdf = tl.cumsum(weight, 0)
        all_of_it = tl.max(tl.where(inside, cdf, 0.0), 0)
        chosen = tl.sum((inside & (cdf < u * all_of_it)).to(tl.int32), 0).to(tl.int64)
    return tl.minimum(chosen, size - 1)


def key_bits(logits: Tensor) -> int:
    """Bits of the keys that `kth_largest` searches over."""
    return 16 if logits.dtype == torch.bfloat16 else 32


@triton.jit
def load_logits(logits, row, row_stride, size, BLOCK: tl.constexpr):
    """Places, which of them exist, and their logits."""
    at = tl.arange(0, BLOCK)
    inside = at < size
    return at, inside, tl.load(logits + row * row_stride + at, inside, float("-inf")).to(tl.float32)


@triton.jit
def load_params(row, temperatures, top_ks, top_ps):
    """(temperature, top_k, top_p) of a row."""
    return tl.load(temperatures + row), tl.load(top_ks + row), tl.load(top_ps + row)


@triton.jit
def store_sample(
    chosen, row, codes, table, x, prefix, x_row, prefix_row, hidden, PUT: tl.constexpr, PREFIX: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """The code, its row of the table as the last token, and the token in front of it."""
    tl.store(codes + row, chosen)
    if PUT:
        channel = tl.arange(0, WIDTH)
        there = channel < hidden
        place = x + row * x_row + channel
        if PREFIX:
            tl.store(place, tl.load(prefix + row * prefix_row + channel, there), there)
            place += hidden
        tl.store(place, tl.load(table + chosen * hidden + channel, there), there)


def launch_args(logits: Tensor, params: SamplingParams, out: SampleOut) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that every sampling kernel takes first, and constants and launch options."""
    size = logits.shape[1]
    put, prefix = out.x is not None, out.prefix is not None
    table, x = (logits, logits) if out.table is None or out.x is None else (out.table, out.x)
    head = x if out.prefix is None else out.prefix
    u_row = params.u.stride(0)
    given = (logits, *params, out.code, table, x, head, logits.stride(0), u_row, x.stride(0), head.stride(0), size)
    hidden = table.shape[1]
    constants = {"LEAST": MIN_TEMPERATURE, "BLOCK": triton.next_power_of_2(size), "PUT": put, "PREFIX": prefix}
    constants |= {
        "WIDTH": triton.next_power_of_2(hidden) if put else 1,
        "USE_PDL": USE_PDL,
        "num_warps": 8,
        **PDL_LAUNCH,
    }
    return (*given, hidden), constants
