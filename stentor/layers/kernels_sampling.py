"""One draw in one launch. No sorting: thresholds are found by bisection over the ordered bit patterns of the logits.

Both samplers keep what `sampling.pick` and the ranked sampler keep and draw by the same inverse CDF; sums may round
differently, so a draw may differ where u falls on the boundary of two tokens.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.layers.sampling import MIN_TEMPERATURE

PLACES = tl.constexpr(8192)  # vocabulary sizes that a composite key can address
KEY_BITS = tl.constexpr(32)
RANK_BITS = tl.constexpr(46)


@triton.jit
def _ordered(x):
    """int64 keys in the order of float32 x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _kth(key, inside, k, bits: tl.constexpr):
    """The largest t with at least k keys >= t."""
    low = tl.min(tl.where(inside, key, 0x7FFFFFFFFFFFFFF), 0)
    high = tl.max(tl.where(inside, key, -0x7FFFFFFFFFFFFFF), 0)
    for _ in range(bits):
        middle = (low + high + 1) >> 1
        enough = tl.sum((inside & (key >= middle)).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
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
def _pick(
    logits, uniforms, temperatures, top_ks, top_ps, out, row_stride, u_stride, size, LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    raw = tl.load(logits + row * row_stride + at, inside, float("-inf")).to(tl.float32)
    temperature = tl.load(temperatures + row)
    k = tl.load(top_ks + row)
    p = tl.load(top_ps + row)
    u = tl.load(uniforms + row * u_stride)
    chosen = tl.argmax(raw, 0).to(tl.int64)
    if temperature > 0:
        x = raw / tl.maximum(temperature, LEAST)
        key = _ordered(x)
        kept = inside
        if (k > 0) & (k < size):
            kept = inside & (key >= _kth(key, inside, k, KEY_BITS))
        top = tl.max(x, 0)
        weight = tl.where(kept, tl.exp(x - top), 0.0)
        if p < 1:
            # A token stays while the mass before it is below p: the largest t at which enough has been gathered.
            edge = _at_least(key, weight, p * tl.sum(weight, 0), KEY_BITS)
            weight = tl.where((key >= edge) | (x == top), weight, 0.0)
        cdf = tl.cumsum(weight, 0)
        all_of_it = tl.max(tl.where(inside, cdf, 0.0), 0)
        chosen = tl.sum((inside & (cdf < u * all_of_it)).to(tl.int32), 0).to(tl.int64)
    tl.store(out + row, tl.minimum(chosen, size - 1))


def pick(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """logits [B, V] float; u, temperature, top_k (int64), top_p [B] -> ids [B]."""
    batch, size = logits.shape
    out = torch.empty(batch, dtype=torch.int64, device=logits.device)
    _pick[(batch,)](
        logits, u, temperature, top_k, top_p, out, logits.stride(0), u.stride(0), size,
        LEAST=MIN_TEMPERATURE, BLOCK=triton.next_power_of_2(size), num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _choose(
    logits, uniforms, temperatures, top_ks, top_ps, out, row_stride, u_stride, size, LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    raw = tl.load(logits + row * row_stride + at, inside, float("-inf")).to(tl.float32)
    temperature = tl.load(temperatures + row)
    k = tl.load(top_ks + row)
    p = tl.load(top_ps + row)
    u = tl.load(uniforms + row * u_stride)
    # Equal logits rank by index, so that every token has a place of its own.
    key = _ordered(raw) * PLACES + (PLACES - 1 - at)
    best = tl.max(tl.where(inside, key, -0x7FFFFFFFFFFFFFF), 0)
    chosen = best
    if temperature > 0:
        kept = inside
        if (k > 0) & (k < size):
            kept = inside & (key >= _kth(key, inside, k, RANK_BITS))
        top = tl.max(raw, 0)
        if p < 1:
            mass = tl.where(inside, tl.exp(raw - top), 0.0)
            # The crossing token goes: keys above the largest t that gathers more than p.
            edge = _at_least(key, mass, p * tl.sum(mass, 0), RANK_BITS)
            whole = tl.sum(tl.where(key >= edge, mass, 0.0), 0) <= p * tl.sum(mass, 0)
            kept = kept & (key >= tl.where(whole, edge, edge + 1))
        kept = kept | (key == best)
        weight = tl.where(kept, tl.exp((raw - top) / tl.maximum(temperature, LEAST)), 0.0)
        edge = _at_least(key, weight, u * tl.sum(weight, 0), RANK_BITS)
        chosen = tl.min(tl.where(kept & (key >= edge), key, best), 0)
    tl.store(out + row, (chosen & (PLACES - 1)) ^ (PLACES - 1))


def choose(logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """As `pick`, with the nucleus before the temperature, without its crossing token, drawn in order of rank."""
    batch, size = logits.shape
    if size > PLACES.value:
        raise ValueError(f"logits: at most {PLACES.value} wide, got {size}")
    out = torch.empty(batch, dtype=torch.int64, device=logits.device)
    _choose[(batch,)](
        logits, u, temperature, top_k, top_p, out, logits.stride(0), u.stride(0), size,
        LEAST=MIN_TEMPERATURE, BLOCK=triton.next_power_of_2(size), num_warps=8,
    )  # fmt: skip
    return out
