"""Triton kernels of this family: styled instance norms, the inputs of convolutions, and LSTMs.

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
LSTM_ROWS = 16  # of a CTA, the fewest of a product
LSTM_BLOCK_K = 16
GATES = 4
LSTM_SIZES = (16, 32, 64, 128, 256)
"""Outputs of a direction that `lstm` computes."""


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
    x_ptr, lengths_ptr, out_ptr, rate, extra, num_spans, num_channels, stride_b, stride_t,
    SPAN: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
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
        x, steps.lengths, out, steps.rate, steps.extra, num_spans, channels, _row_stride(x), x.stride(1),
        SPAN=SPAN, BLOCK_T=BLOCK_T, BLOCK_C=BLOCK_C, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _norm(
    statistics_ptr, gains_ptr, offs_c, in_channels, length, num_channels, eps,
    SPAN: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
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
    x_ptr, step, offs_c, in_channels, length, stride_t, mean, scale, shift, alpha, wave, slope,
    HAS_NORM: tl.constexpr, HAS_SNAKE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
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
    x_ptr, statistics_ptr, gains_ptr, lengths_ptr, alpha_ptr, wave_ptr, pool_ptr, bias_ptr, out_ptr, rate, extra,
    num_spans, num_steps, pad, num_channels, stride_b, stride_t, stride_gains, eps, slope,
    HAS_NORM: tl.constexpr, HAS_SNAKE: tl.constexpr, HAS_POOL: tl.constexpr, ROUND: tl.constexpr,
    SPAN: tl.constexpr, SPANS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
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
            statistics_ptr + row * num_spans * 2 * num_channels, gains_ptr + row * stride_gains, offs_c, in_channels,
            length, num_channels, eps, SPAN, SPANS,
        )  # fmt: skip
    if HAS_SNAKE:
        alpha = tl.load(alpha_ptr + offs_c, in_channels, 0.0)
        wave = tl.load(wave_ptr + offs_c, in_channels, 0.0)
    x_ptr += row * stride_b
    if HAS_POOL:
        is_odd = ((step & 1) == 1)[:, None]
        at = step >> 1
        here = _activated(
            x_ptr, at, offs_c, in_channels, length, stride_t, mean, scale, shift, alpha, wave, slope,
            HAS_NORM, HAS_SNAKE, ROUND,
        )  # fmt: skip
        after = _activated(
            x_ptr, at + 1, offs_c, in_channels, length, stride_t, mean, scale, shift, alpha, wave, slope,
            HAS_NORM, HAS_SNAKE, ROUND,
        )  # fmt: skip
        first = tl.load(pool_ptr + offs_c, in_channels, 0.0)[None, :]
        middle = tl.load(pool_ptr + num_channels + offs_c, in_channels, 0.0)[None, :]
        last = tl.load(pool_ptr + 2 * num_channels + offs_c, in_channels, 0.0)[None, :]
        bias = tl.load(bias_ptr + offs_c, in_channels, 0.0)[None, :]
        y = tl.where(is_odd, here * last + after * first, here * middle) + bias
        y = tl.where(((step >= 0) & (step < 2 * length))[:, None], y, 0.0)
    else:
        y = _activated(
            x_ptr, step, offs_c, in_channels, length, stride_t, mean, scale, shift, alpha, wave, slope,
            HAS_NORM, HAS_SNAKE, ROUND,
        )  # fmt: skip
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
    _convolution_input_kernel[(triton.cdiv(num_steps, BLOCK_T), triton.cdiv(channels, BLOCK_C), batch)](
        x, sums, gains, steps.lengths, alpha, wave, weight, bias, out, steps.rate, steps.extra, sums.shape[1],
        num_steps, pad, channels, _row_stride(x), x.stride(1), gains.stride(0), EPS, slope,
        HAS_NORM=norm is not None, HAS_SNAKE=snake is not None, HAS_POOL=pool is not None, ROUND=ROUND,
        SPAN=SPAN, SPANS=SPANS, BLOCK_T=BLOCK_T, BLOCK_C=BLOCK_C, num_warps=4,
    )  # fmt: skip
    return out


class Recurrence(NamedTuple):
    """What an LSTM in both directions multiplies its last output by.

    weight: float16 [direction, part, gate, input, output]. The parts of a weight sum up to it.
    """

    weight: Tensor

    @classmethod
    def of(cls, forward: Tensor, backward: Tensor) -> Recurrence:
        """Lay out weights [4 H, H] of both directions."""
        weight = torch.stack((forward, backward)).float()
        size = weight.shape[2]
        by_gate = weight.view(2, GATES, size, size).transpose(2, 3)
        return cls(torch.stack(_parts(by_gate), dim=1).contiguous())


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of 16 bits whose sum has the digits of a float32."""
    high = x.half()
    return high, (x - high.float()).half()


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit(do_not_specialize=["num_rows", "num_steps"])
def _lstm_kernel(
    inputs_ptr, weight_ptr, lengths_ptr, last_ptr, out_ptr, num_rows, num_steps,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """All steps of some rows in one direction. The last output is kept in two parts of 16 bits, in
    turns of two: a step reads one while it writes the other."""
    direction = tl.program_id(1)
    cta = tl.program_id(0) * 2 + direction
    offs_b = tl.arange(0, ROWS)
    offs_h = tl.arange(0, SIZE)
    offs_k = tl.arange(0, BLOCK_K)
    row = tl.program_id(0) * ROWS + offs_b
    in_rows = row < num_rows
    length = tl.load(lengths_ptr + row, in_rows, 0).to(tl.int32)
    longest = tl.max(length, 0)
    first = row.to(tl.int64) * num_steps

    PART: tl.constexpr = ROWS * SIZE
    GATE: tl.constexpr = SIZE * SIZE
    last_ptr += cta * 4 * PART
    weight_ptr += direction * 8 * GATE
    mine = offs_b[:, None] * SIZE + offs_h[None, :]
    tl.store(last_ptr + mine, tl.zeros((ROWS, SIZE), tl.float16))
    tl.store(last_ptr + PART + mine, tl.zeros((ROWS, SIZE), tl.float16))
    cell = tl.zeros((ROWS, SIZE), tl.float32)
    for step in range(0, longest):
        # Outputs of all warps must be in memory before any is read.
        tl.debug_barrier()
        exists = step < length
        place = tl.where((direction == 1) & exists, length - 1 - step, step)
        input_ptrs = inputs_ptr + ((first + place) * 8 + direction * 4)[:, None] * SIZE + offs_h[None, :]
        mask = exists[:, None] & (offs_h < SIZE)[None, :]
        input_in = tl.load(input_ptrs, mask, 0.0)
        input_forget = tl.load(input_ptrs + SIZE, mask, 0.0)
        input_cell = tl.load(input_ptrs + 2 * SIZE, mask, 0.0)
        input_out = tl.load(input_ptrs + 3 * SIZE, mask, 0.0)

        high_ptr = last_ptr + (step % 2) * 2 * PART
        gate_in = tl.zeros((ROWS, SIZE), tl.float32)
        gate_forget = tl.zeros((ROWS, SIZE), tl.float32)
        gate_cell = tl.zeros((ROWS, SIZE), tl.float32)
        gate_out = tl.zeros((ROWS, SIZE), tl.float32)
        for k in range(0, SIZE, BLOCK_K):
            last_ptrs = high_ptr + offs_b[:, None] * SIZE + (k + offs_k)[None, :]
            weight_ptrs = weight_ptr + (k + offs_k)[:, None] * SIZE + offs_h[None, :]
            high = tl.load(last_ptrs)
            low = tl.load(last_ptrs + PART)
            weight_in = tl.load(weight_ptrs)
            weight_forget = tl.load(weight_ptrs + GATE)
            weight_cell = tl.load(weight_ptrs + 2 * GATE)
            weight_out = tl.load(weight_ptrs + 3 * GATE)
            gate_in = tl.dot(low, weight_in, tl.dot(high, weight_in, gate_in))
            gate_forget = tl.dot(low, weight_forget, tl.dot(high, weight_forget, gate_forget))
            gate_cell = tl.dot(low, weight_cell, tl.dot(high, weight_cell, gate_cell))
            gate_out = tl.dot(low, weight_out, tl.dot(high, weight_out, gate_out))
        # The product of both low parts has no digit of a float32.
        for k in range(0, SIZE, BLOCK_K):
            last_ptrs = high_ptr + offs_b[:, None] * SIZE + (k + offs_k)[None, :]
            weight_ptrs = weight_ptr + 4 * GATE + (k + offs_k)[:, None] * SIZE + offs_h[None, :]
            high = tl.load(last_ptrs)
            gate_in = tl.dot(high, tl.load(weight_ptrs), gate_in)
            gate_forget = tl.dot(high, tl.load(weight_ptrs + GATE), gate_forget)
            gate_cell = tl.dot(high, tl.load(weight_ptrs + 2 * GATE), gate_cell)
            gate_out = tl.dot(high, tl.load(weight_ptrs + 3 * GATE), gate_out)

        cell *= _sigmoid(gate_forget + input_forget)
        cell += _sigmoid(gate_in + input_in) * _tanh(gate_cell + input_cell)
        y = _sigmoid(gate_out + input_out) * _tanh(cell)
        out_ptrs = out_ptr + ((first + place) * 2 + direction)[:, None] * SIZE + offs_h[None, :]
        tl.store(out_ptrs, tl.where(mask, y, 0.0), in_rows[:, None] & (offs_h < SIZE)[None, :])
        next_ptrs = last_ptr + ((step + 1) % 2) * 2 * PART + mine
        high = y.to(tl.float16)
        tl.store(next_ptrs, high)
        tl.store(next_ptrs + PART, (y - high.to(tl.float32)).to(tl.float16))

    for step in range(longest, num_steps):
        out_ptrs = out_ptr + ((first + step) * 2 + direction)[:, None] * SIZE + offs_h[None, :]
        tl.store(out_ptrs, tl.zeros((ROWS, SIZE), tl.float32), in_rows[:, None] & (offs_h < SIZE)[None, :])


def lstm(inputs: Tensor, recurrence: Recurrence, lengths: Tensor) -> Tensor:
    """Run an LSTM in both directions over rows of these lengths [B].

    inputs: products of the gates' inputs with their biases, float32 [B, T, 2, 4 H], gates in the
    order of torch. Returns [B, T, 2 H]. The other direction begins at each row's own end. Zeros
    stand behind the ends.
    """
    batch, count, _, width = inputs.shape
    size = width // GATES
    num_tiles = triton.cdiv(batch, LSTM_ROWS)
    out = inputs.new_empty(batch, count, 2 * size)
    last = torch.empty(num_tiles, 2, 2, 2, LSTM_ROWS, size, dtype=torch.float16, device=inputs.device)
    _lstm_kernel[(num_tiles, 2)](
        inputs, recurrence.weight, lengths, last, out, batch, count,
        SIZE=size, ROWS=LSTM_ROWS, BLOCK_K=LSTM_BLOCK_K, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out


def _row_stride(x: Tensor) -> int:
    """Elements between rows. 0 for a single one, so that the length of the audio chooses no other
    kernel."""
    assert x.stride(2) == 1, "memory is channels-last"
    if len(x) > 1:
        return x.stride(0)
    return 0
