"""One draw in one launch. No sorting: thresholds are searched for over the ordered bit patterns of the logits,
of which bfloat16 leaves half as many to try. kernels_draw.py launches what is here.

Both samplers keep what `sampling.pick` and the ranked sampler keep and draw by the same inverse CDF; sums may round
differently, so a draw may differ where u falls on the boundary of two tokens.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PLACES = tl.constexpr(8192)  # vocabulary sizes that a composite key can address
KEY_BITS = tl.constexpr(32)
RANK_BITS = tl.constexpr(46)
COUNT = tl.constexpr(21)  # bits of a count: three fill a word, and a tensor holds no more
MOST = tl.constexpr((1 << 21) - 1)
SHORT = 64  # tokens that are compared pair by pair


@triton.jit
def _ordered(x):
    """int64 keys in the order of float32 x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _short(key, BITS: tl.constexpr):
    """int32 keys in the same order, where the logits were bfloat16."""
    if BITS == 16:
        key = (key >> 16).to(tl.int32)
    return key


@triton.jit
def _kth(key, inside, k, bits: tl.constexpr):
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
def _at_least(key, weight, mass, bits: tl.constexpr):
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
def picked(raw, inside, size, temperature, k, p, u, LEAST: tl.constexpr, BITS: tl.constexpr):
    """The draw of one row, whose logits outside are -inf."""
    chosen = tl.argmax(raw, 0).to(tl.int64)
    if temperature > 0:
        x = raw / tl.maximum(temperature, LEAST)
        kept = inside
        if (k > 0) & (k < size):
            order = _short(_ordered(raw), BITS)
            # What is divided by the temperature keeps its order, but may tie with the k-th where it did not.
            edge = tl.min(tl.where(inside & (order >= _kth(order, inside, k, BITS)), x, float("inf")), 0)
            kept = inside & (x >= edge)
        top = tl.max(x, 0)
        weight = tl.where(kept, tl.exp(x - top), 0.0)
        if p < 1:
            # A token stays while the mass before it is below p: the largest t at which enough has been gathered.
            key = _ordered(x)
            least = _at_least(key, weight, p * tl.sum(weight, 0), KEY_BITS)
            weight = tl.where((key >= least) | (x == top), weight, 0.0)
        cdf = tl.cumsum(weight, 0)
        all_of_it = tl.max(tl.where(inside, cdf, 0.0), 0)
        chosen = tl.sum((inside & (cdf < u * all_of_it)).to(tl.int32), 0).to(tl.int64)
    return tl.minimum(chosen, size - 1)


@triton.jit
def _leading(raw, at, inside, k, top, p, temperature, u, found, places, SHORT: tl.constexpr, BITS: tl.constexpr):
    """The draw among the k <= SHORT first in rank, which are brought together and compared pair by pair."""
    key = _short(_ordered(raw), BITS)
    edge = _kth(key, inside, k, BITS)
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


def key_bits(logits: Tensor) -> int:
    return 16 if logits.dtype == torch.bfloat16 else 32


@triton.jit
def chosen_of(
    raw, at, inside, size, temperature, k, p, u, found, places, LEAST: tl.constexpr, SHORT: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """The ranked draw of one row; `found` and `places` have room for SHORT tokens."""
    top = tl.max(raw, 0)
    warmth = tl.maximum(temperature, LEAST)
    chosen = tl.argmax(raw, 0).to(tl.int64)
    if temperature > 0:
        if (k > 0) & (k <= SHORT) & (k < size):
            chosen = _leading(
                raw, at, inside, k, top, p, warmth, u, found, places, SHORT, BITS
            ).to(tl.int64)  # fmt: skip
        else:
            chosen = _ranked(raw, at, inside, size, k, top, p, warmth, u)
    return chosen


@triton.jit
def _ranked(raw, at, inside, size, k, top, p, temperature, u):
    """The draw whatever k is."""
    # Equal logits rank by index, so that every token has a place of its own.
    key = _ordered(raw) * PLACES + (PLACES - 1 - at)
    best = tl.max(tl.where(inside, key, -0x7FFFFFFFFFFFFFF), 0)
    kept = inside
    if (k > 0) & (k < size):
        kept = inside & (key >= _kth(tl.where(inside, key, -0x7FFFFFFFFFFFFFF), inside, k, RANK_BITS))
    if p < 1:
        mass = tl.where(inside, tl.exp(raw - top), 0.0)
        # The crossing token goes: keys above the largest t that gathers more than p.
        edge = _at_least(key, mass, p * tl.sum(mass, 0), RANK_BITS)
        whole = tl.sum(tl.where(key >= edge, mass, 0.0), 0) <= p * tl.sum(mass, 0)
        kept = kept & (key >= tl.where(whole, edge, edge + 1))
    kept = kept | (key == best)
    weight = tl.where(kept, tl.exp((raw - top) / temperature), 0.0)
    edge = _at_least(key, weight, u * tl.sum(weight, 0), RANK_BITS)
    chosen = tl.min(tl.where(kept & (key >= edge), key, best), 0)
    return (chosen & (PLACES - 1)) ^ (PLACES - 1)
