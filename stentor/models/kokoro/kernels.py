"""Triton kernels of this family: styled instance norms, and the inputs of convolutions.

Memory is channels-last [B, T, C]. A norm is two launches: `statistics` reads the steps of each row
in spans of a fixed size, and `convolution_input` joins the spans, normalises and activates, and
writes zeros around each row, where the convolution pads. Sums are float32. Their order depends on
nothing but the row's own length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.conv1d import ROUND, apply_snake, clamp_cast
from stentor.kernels.types import SnakeParams
from stentor.models.kokoro.blocks import EPS

SPAN = 1024  # steps of a CTA that sums up
SPANS = 16  # that are joined at once
BLOCK_T = 64
BLOCK_C = 64


class Steps(NamedTuple):
    """Steps of padded rows that exist: `lengths` [B] int64 times `rate`, and `extra`."""

    lengths: Tensor
    rate: int
    extra: int = 0


class Norm(NamedTuple):
    """A norm of x: its statistics, and gains and shifts [B, 2 C] of each row."""

    statistics: Tensor
    gains: Tensor


class Pool(NamedTuple):
    """A transposed depthwise convolution that makes two steps of each: weight [3, C], bias [C]."""

    weight: Tensor
    bias: Tensor


@triton.jit(do_not_specialize=["rate", "extra", "num_spans"])
def _statistics_kernel(
    x_ptr,
    lengths_ptr,
    out_ptr,
    rate,
    extra,
    num_spans,
    num_channels,
    stride_b,
    stride_t,
    SPAN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Mean and sum of squares about it of one span, [2, C]. Spans behind a row's end stay unset."""
    span = tl.program_id(0)
    row = tl.program_id(2).to(tl.int64)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_channels = offs_c < num_channels
    first = span * SPAN
    length = (tl.load(lengths_ptr + row) * rate + extra).to(tl.int32)
    count = tl.minimum(length - first, SPAN)
    if count > 0:
        x_ptrs = x_ptr + row * stride_b + first.to(tl.int64) * stride_t + offs_c
        # Sums about a value of the span itself lose no digits to a large mean.
        pivot = tl.load(x_ptrs, in_channels, 0.0).to(tl.float32)
        total = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
        squares = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
        for start in range(0, count, BLOCK_T):
            step = start + tl.arange(0, BLOCK_T)
            mask = (step < count)[:, None] & in_channels[None, :]
            x = tl.load(x_ptrs[None, :] + step[:, None] * stride_t, mask, 0.0).to(tl.float32)
            distance = tl.where(mask, x - pivot[None, :], 0.0)
            total += distance
            squares += distance * distance
        offset = tl.sum(total, 0) / count
        about_mean = tl.maximum(tl.sum(squares, 0) - offset * offset * count, 0.0)
        out_ptrs = out_ptr + (row * num_spans + span) * 2 * num_channels + offs_c
        tl.store(out_ptrs, pivot + offset, in_channels)
        tl.store(out_ptrs + num_channels, about_mean, in_channels)


def statistics(x: Tensor, steps: Steps) -> Tensor:
    """Means and squares about them of each row's spans: x [B, T, C] -> float32 [B, spans, 2, C]."""
    batch, count, channels = x.shape
    num_spans = triton.cdiv(count, SPAN)
    out = torch.empty(batch, num_spans, 2, channels, device=x.device)
    _statistics_kernel[(num_spans, triton.cdiv(channels, BLOCK_C), batch)](
        x,
        steps.lengths,
        out,
        steps.rate,
        steps.extra,
        num_spans,
        channels,
        _row_stride(x),
        x.stride(1),
        SPAN=SPAN,
        BLOCK_T=BLOCK_T,
        BLOCK_C=BLOCK_C,
        num_warps=4,
    )
    return out


@triton.jit
def _norm(
    statistics_ptr,
    gains_ptr,
    offs_c,
    in_channels,
    length,
    num_channels,
    eps,
    SPAN: tl.constexpr,
    SPANS: tl.constexpr,
):
    """(mean, scale, shift) [C] of one row, from the statistics of its spans."""
    pivot = tl.load(statistics_ptr + offs_c, in_channels, 0.0)
    total = tl.zeros_like(pivot)
    squares = tl.zeros_like(pivot)
    for start in range(0, tl.cdiv(length, SPAN), SPANS):
        span = start + tl.arange(0, SPANS)
        steps = tl.minimum(tl.maximum(length - span * SPAN, 0), SPAN)
        mask = (steps > 0)[:, None] & in_channels[None, :]
        means_ptrs = statistics_ptr + span[:, None] * 2 * num_channels + offs_c[None, :]
        distance = tl.where(mask, tl.load(means_ptrs, mask, 0.0) - pivot[None, :], 0.0)
        weighted = distance * steps.to(tl.float32)[:, None]
        total += tl.sum(weighted, 0)
        about_means = tl.load(means_ptrs + num_channels, mask, 0.0)
        squares += tl.sum(about_means + weighted * distance, 0)
    offset = total / length
    variance = tl.maximum(squares / length - offset * offset, 0.0)
    gain = tl.load(gains_ptr + offs_c, in_channels, 0.0).to(tl.float32)
    shift = tl.load(gains_ptr + num_channels + offs_c, in_channels, 0.0).to(tl.float32)
    return pivot + offset, gain * tl.rsqrt(variance + eps), shift


@triton.jit
def _activated(
    x_ptr,
    step,
    offs_c,
    in_channels,
    length,
    stride_t,
    mean,
    scale,
    shift,
    alpha,
    wave,
    slope,
    HAS_NORM: tl.constexpr,
    HAS_SNAKE: tl.constexpr,
    ROUND: tl.constexpr,
):
    """Inputs [T, C] at these steps, normalised and activated. They are zero outside the row."""
    mask = ((step >= 0) & (step < length))[:, None] & in_channels[None, :]
    x_ptrs = x_ptr + step.to(tl.int64)[:, None] * stride_t + offs_c[None, :]
    y = tl.load(x_ptrs, mask, 0.0).to(tl.float32)
    if HAS_NORM:
        y = (y - mean[None, :]) * scale[None, :] + shift[None, :]
    if HAS_SNAKE:
        y = apply_snake(y, alpha[None, :], wave[None, :], ROUND)
    else:
        y = tl.where(y > 0, y, y * slope)
    return tl.where(mask, y, 0.0)


@triton.jit(do_not_specialize=["rate", "extra", "num_spans", "num_steps", "pad", "eps", "slope"])
def _convolution_input_kernel(
    x_ptr,
    statistics_ptr,
    gains_ptr,
    lengths_ptr,
    alpha_ptr,
    wave_ptr,
    pool_ptr,
    bias_ptr,
    out_ptr,
    rate,
    extra,
    num_spans,
    num_steps,
    pad,
    num_channels,
    stride_b,
    stride_t,
    stride_gains,
    eps,
    slope,
    HAS_NORM: tl.constexpr,
    HAS_SNAKE: tl.constexpr,
    HAS_POOL: tl.constexpr,
    ROUND: tl.constexpr,
    SPAN: tl.constexpr,
    SPANS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(2).to(tl.int64)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_channels = offs_c < num_channels
    place = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    step = place - pad
    length = (tl.load(lengths_ptr + row) * rate + extra).to(tl.int32)
    mean = tl.zeros((BLOCK_C,), tl.float32)
    scale = mean
    shift = mean
    alpha = mean
    wave = mean
    if HAS_NORM:
        mean, scale, shift = _norm(
            statistics_ptr + row * num_spans * 2 * num_channels,
            gains_ptr + row * stride_gains,
            offs_c,
            in_channels,
            length,
            num_channels,
            eps,
            SPAN,
            SPANS,
        )
    if HAS_SNAKE:
        alpha = tl.load(alpha_ptr + offs_c, in_channels, 0.0)
        wave = tl.load(wave_ptr + offs_c, in_channels, 0.0)
    x_ptr += row * stride_b
    if HAS_POOL:
        is_odd = ((step & 1) == 1)[:, None]
        at = step >> 1
        here = _activated(
            x_ptr,
            at,
            offs_c,
            in_channels,
            length,
            stride_t,
            mean,
            scale,
            shift,
            alpha,
            wave,
            slope,
            HAS_NORM,
            HAS_SNAKE,
            ROUND,
        )
        after = _activated(
            x_ptr,
            at + 1,
            offs_c,
            in_channels,
            length,
            stride_t,
            mean,
            scale,
            shift,
            alpha,
            wave,
            slope,
            HAS_NORM,
            HAS_SNAKE,
            ROUND,
        )
        first = tl.load(pool_ptr + offs_c, in_channels, 0.0)[None, :]
        middle = tl.load(pool_ptr + num_channels + offs_c, in_channels, 0.0)[None, :]
        last = tl.load(pool_ptr + 2 * num_channels + offs_c, in_channels, 0.0)[None, :]
        bias = tl.load(bias_ptr + offs_c, in_channels, 0.0)[None, :]
        y = tl.where(is_odd, here * last + after * first, here * middle) + bias
        y = tl.where(((step >= 0) & (step < 2 * length))[:, None], y, 0.0)
    else:
        y = _activated(
            x_ptr,
            step,
            offs_c,
            in_channels,
            length,
            stride_t,
            mean,
            scale,
            shift,
            alpha,
            wave,
            slope,
            HAS_NORM,
            HAS_SNAKE,
            ROUND,
        )
    out_rows = row * num_steps + place.to(tl.int64)
    out_ptrs = out_ptr + out_rows[:, None] * num_channels + offs_c[None, :]
    tl.store(out_ptrs, clamp_cast(y, out_ptr), (place < num_steps)[:, None] & in_channels[None, :])


def convolution_input(
    x: Tensor,
    steps: Steps,
    pad: int,
    norm: Norm | None = None,
    snake: SnakeParams | None = None,
    slope: float = 1.0,
    pool: Pool | None = None,
) -> Tensor:
    """Zeros around the activated x [B, T, C]: [B, pad + T + pad, C], T doubled by a pool.

    The activation is Snake, or a leaky ReLU of this slope. It stands between norm and pool. What
    stands behind a row's end is zero.
    """
    batch, count, channels = x.shape
    num_steps = count * (1 if pool is None else 2) + 2 * pad
    out = torch.empty(batch, num_steps, channels, dtype=x.dtype, device=x.device)
    sums, gains = (x, x) if norm is None else norm
    alpha, wave = (x, x) if snake is None else snake
    weight, bias = (x, x) if pool is None else pool
    _convolution_input_kernel[
        (triton.cdiv(num_steps, BLOCK_T), triton.cdiv(channels, BLOCK_C), batch)
    ](
        x,
        sums,
        gains,
        steps.lengths,
        alpha,
        wave,
        weight,
        bias,
        out,
        steps.rate,
        steps.extra,
        sums.shape[1],
        num_steps,
        pad,
        channels,
        _row_stride(x),
        x.stride(1),
        gains.stride(0),
        EPS,
        slope,
        HAS_NORM=norm is not None,
        HAS_SNAKE=snake is not None,
        HAS_POOL=pool is not None,
        ROUND=ROUND,
        SPAN=SPAN,
        SPANS=SPANS,
        BLOCK_T=BLOCK_T,
        BLOCK_C=BLOCK_C,
        num_warps=4,
    )
    return out


def _row_stride(x: Tensor) -> int:
    """Elements between rows. 0 for a single one, so that the length of the audio chooses no other
    kernel."""
    assert x.stride(2) == 1, "memory is channels-last"
    if len(x) > 1:
        return x.stride(0)
    return 0
