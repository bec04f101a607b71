"""The activation of this family's decoder as one Triton kernel, on channels-last memory [B, time,
C].

It goes to twice the rate, through SnakeBeta, and back. A lane takes one channel and walks along the
time with the last six inputs and six sums that have begun, so each value at twice the rate is
computed once, but for the six columns before a walk. The result stands behind the history of the
convolution that reads it, as in `conv1d.concat_history`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.conv1d import ROUND, apply_snake, clamp_cast
from stentor.kernels.types import SnakeParams

PAST = 11  # input columns before one that its result depends on
LANES = 256  # of a CTA, in four warps
LONG_WALK = 32
SHORT_WALK = 8
MANY_ELEMENTS = 2**22  # fill a GPU with lanes that walk far


@triton.jit
def _double(x0, x1, x2, x3, x4, x5, w0, w1, w2, w3, w4, w5, alpha, gain, ROUND: tl.constexpr):
    """SnakeBeta of one value at twice the rate: six inputs, the oldest first, by every second
    tap."""
    return apply_snake(
        2.0 * (x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3 + x4 * w4 + x5 * w5), alpha, gain, ROUND
    )


@triton.jit
def _tap(ptr, index: tl.constexpr, offs_c, in_range, OWN: tl.constexpr):
    """A tap of each channel's filter of twelve, or of the one that all channels have."""
    if OWN:
        tap = tl.load(ptr + offs_c * 12 + index, in_range, 0.0)
    else:
        tap = tl.load(ptr + index)
    return tap.to(tl.float32)


@triton.jit
def _taps(ptr, offs_c, in_range, OWN: tl.constexpr):
    return (
        _tap(ptr, 0, offs_c, in_range, OWN), _tap(ptr, 1, offs_c, in_range, OWN),
        _tap(ptr, 2, offs_c, in_range, OWN), _tap(ptr, 3, offs_c, in_range, OWN),
        _tap(ptr, 4, offs_c, in_range, OWN), _tap(ptr, 5, offs_c, in_range, OWN),
        _tap(ptr, 6, offs_c, in_range, OWN), _tap(ptr, 7, offs_c, in_range, OWN),
        _tap(ptr, 8, offs_c, in_range, OWN), _tap(ptr, 9, offs_c, in_range, OWN),
        _tap(ptr, 10, offs_c, in_range, OWN), _tap(ptr, 11, offs_c, in_range, OWN),
    )  # fmt: skip


@triton.jit
def _input(x_ptr, past_ptr, time, live, stride_xt, stride_pt, PAST: tl.constexpr):
    """x at `time`, or what came before the call. x_ptr and past_ptr are those of a row and a
    channel."""
    now = tl.load(x_ptr + time * stride_xt, live & (time >= 0), 0.0).to(tl.float32)
    return now + tl.load(past_ptr + (time + PAST) * stride_pt, live & (time < 0), 0.0).to(
        tl.float32
    )


@triton.jit
def _keep_histories(
    x_ptr, past_ptr, history_ptr, out_ptr, new_past_ptr, new_history_ptr, num_steps, tail, end, num_channels, offs_c,
    in_range, stride_xt, stride_pt, stride_ht, PAST: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Copy one row's history before its result, and keep what the next call needs. Pointers are
    those of the row."""
    at = tl.arange(0, BLOCK_T)[:, None]
    mask = in_range & (at < tail)
    history = tl.load(history_ptr + at * stride_ht + offs_c, mask, 0.0)
    tl.store(out_ptr + at * num_channels + offs_c, history, mask)
    old = mask & (end + at < tail)
    history = tl.load(history_ptr + (end + at) * stride_ht + offs_c, old, 0.0)
    tl.store(new_history_ptr + at * num_channels + offs_c, history, old)
    mask = in_range & (at < PAST)
    x = _input(x_ptr + offs_c, past_ptr + offs_c, end - PAST + at, mask, stride_xt, stride_pt, PAST)
    tl.store(new_past_ptr + at * num_channels + offs_c, x.to(new_past_ptr.dtype.element_ty), mask)


@triton.jit
def _walk(
    x_ptr, past_ptr, first, alpha_ptr, gain_ptr, up_ptr, down_ptr, out_ptr, new_history_ptr, num_steps, tail, end,
    num_channels, offs_c, in_range, start, live, stride_xt, stride_pt,
    OWN: tl.constexpr, ROUND: tl.constexpr, PAST: tl.constexpr, STEPS: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Activate STEPS columns from `start` on. Pointers are those of rows [BLOCK_W, 1] and channels
    [1, BLOCK_C]."""
    alpha = tl.load(alpha_ptr + offs_c, in_range, 0.0)
    gain = tl.load(gain_ptr + offs_c, in_range, 0.0)
    u0, u1, u2, u3, u4, u5, u6, u7, u8, u9, u10, u11 = _taps(up_ptr, offs_c, in_range, OWN)
    d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, d11 = _taps(down_ptr, offs_c, in_range, OWN)
    x0 = _input(x_ptr, past_ptr, start - 11, live, stride_xt, stride_pt, PAST)
    x1 = _input(x_ptr, past_ptr, start - 10, live, stride_xt, stride_pt, PAST)
    x2 = _input(x_ptr, past_ptr, start - 9, live, stride_xt, stride_pt, PAST)
    x3 = _input(x_ptr, past_ptr, start - 8, live, stride_xt, stride_pt, PAST)
    x4 = _input(x_ptr, past_ptr, start - 7, live, stride_xt, stride_pt, PAST)
    x5 = _input(x_ptr, past_ptr, start - 6, live, stride_xt, stride_pt, PAST)
    # the sums of the next column and of five behind it
    y0 = tl.zeros((BLOCK_W, BLOCK_C), tl.float32)
    y1 = y0
    y2 = y0
    y3 = y0
    y4 = y0
    y5 = y0
    for i in range(-6, 0):
        even = _double(x0, x1, x2, x3, x4, x5, u10, u8, u6, u4, u2, u0, alpha, gain, ROUND)
        odd = _double(x0, x1, x2, x3, x4, x5, u11, u9, u7, u5, u3, u1, alpha, gain, ROUND)
        y0 = y1 + d9 * even + d10 * odd
        y1 = y2 + d7 * even + d8 * odd
        y2 = y3 + d5 * even + d6 * odd
        y3 = y4 + d3 * even + d4 * odd
        y4 = y5 + d1 * even + d2 * odd
        y5 = d0 * odd
        x0 = x1
        x1 = x2
        x2 = x3
        x3 = x4
        x4 = x5
        time = start + i + 1
        x5 = _input(x_ptr, past_ptr, time, live & (time < num_steps), stride_xt, stride_pt, PAST)
    # The first value at twice the rate stands before a stream as often as it takes.
    even = _double(x0, x1, x2, x3, x4, x5, u10, u8, u6, u4, u2, u0, alpha, gain, ROUND)
    begins = (first != 0) & (start == 0)
    y5 = tl.where(begins, d0 * even, y5)
    y4 = tl.where(begins, (d0 + d1 + d2) * even, y4)
    y3 = tl.where(begins, (d0 + d1 + d2 + d3 + d4) * even, y3)
    y2 = tl.where(begins, (d0 + d1 + d2 + d3 + d4 + d5 + d6) * even, y2)
    y1 = tl.where(begins, (d0 + d1 + d2 + d3 + d4 + d5 + d6 + d7 + d8) * even, y1)
    y0 = tl.where(begins, (d0 + d1 + d2 + d3 + d4 + d5 + d6 + d7 + d8 + d9 + d10) * even, y0)
    for i in range(STEPS):
        time = start + i
        even = _double(x0, x1, x2, x3, x4, x5, u10, u8, u6, u4, u2, u0, alpha, gain, ROUND)
        odd = _double(x0, x1, x2, x3, x4, x5, u11, u9, u7, u5, u3, u1, alpha, gain, ROUND)
        y = clamp_cast(y0 + d11 * even, out_ptr)
        tl.store(out_ptr + (tail + time) * num_channels, y, live & (time < num_steps))
        place = time + tail - end
        tl.store(new_history_ptr + place * num_channels, y, live & (time < end) & (place >= 0))
        y0 = y1 + d9 * even + d10 * odd
        y1 = y2 + d7 * even + d8 * odd
        y2 = y3 + d5 * even + d6 * odd
        y3 = y4 + d3 * even + d4 * odd
        y4 = y5 + d1 * even + d2 * odd
        y5 = d0 * odd
        x0 = x1
        x1 = x2
        x2 = x3
        x3 = x4
        x4 = x5
        x5 = tl.load(x_ptr + (time + 1) * stride_xt, live & (time + 1 < num_steps), 0.0).to(
            tl.float32
        )


@triton.jit(
    do_not_specialize=["num_steps", "tail", "ahead", "walks", "walks_per_row", "walk_programs"]
)
def _activation_kernel(
    x_ptr, past_ptr, first_ptr, alpha_ptr, gain_ptr, up_ptr, down_ptr, history_ptr, out_ptr, new_past_ptr,
    new_history_ptr, num_steps, tail, ahead, num_channels, walks, walks_per_row, walk_programs, stride_xb, stride_xt,
    stride_pb, stride_pt, stride_hb, stride_ht,
    OWN: tl.constexpr, ROUND: tl.constexpr, PAST: tl.constexpr, STEPS: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    in_range = offs_c < num_channels
    program = tl.program_id(0)
    row_length = (tail + num_steps) * num_channels
    if program >= walk_programs:
        row = (program - walk_programs).to(tl.int64)
        _keep_histories(
            x_ptr + row * stride_xb, past_ptr + row * stride_pb, history_ptr + row * stride_hb,
            out_ptr + row * row_length, new_past_ptr + row * PAST * num_channels,
            new_history_ptr + row * tail * num_channels, num_steps, tail,
            num_steps - ahead * (1 + tl.load(first_ptr + row).to(tl.int32)), num_channels, offs_c, in_range, stride_xt,
            stride_pt, stride_ht, PAST, BLOCK_T,
        )  # fmt: skip
    else:
        walk = program * BLOCK_W + tl.arange(0, BLOCK_W)[:, None]
        rows = (walk // walks_per_row).to(tl.int64)
        first = tl.load(first_ptr + rows, walk < walks, 0).to(tl.int32)
        _walk(
            x_ptr + rows * stride_xb + offs_c, past_ptr + rows * stride_pb + offs_c, first, alpha_ptr, gain_ptr, up_ptr,
            down_ptr, out_ptr + rows * row_length + offs_c, new_history_ptr + rows * tail * num_channels + offs_c,
            num_steps, tail, num_steps - ahead * (1 + first), num_channels, offs_c, in_range,
            (walk % walks_per_row) * STEPS, in_range & (walk < walks), stride_xt, stride_pt,
            OWN, ROUND, PAST, STEPS, BLOCK_W, BLOCK_C,
        )  # fmt: skip


def activation(
    x: Tensor,
    past: Tensor,
    first: Tensor,
    snake: SnakeParams,
    up: Tensor,
    down: Tensor,
    history: Tensor,
    ahead: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(history and activated x [B, tail + T, C], next past [B, PAST, C], next history [B, tail,
    C]).

    x [B, T, C], past [B, PAST, C] the inputs before it, history [B, tail, C] what the convolution
    behind it has read, up and down [C or 1, 1, 12]. What is kept ends `ahead` columns before the
    end of x, and twice as many in rows where `first` [B] is true, whose stream begins here.
    """
    batch, steps, channels = x.shape
    tail = history.shape[1]
    # A kernel reads the channels of a column side by side.
    x, past, history = (t if t.stride(2) == 1 else t.contiguous() for t in (x, past, history))
    out = torch.empty(batch, tail + steps, channels, dtype=x.dtype, device=x.device)
    new_past = torch.empty_like(past[..., :channels])
    new_history = x.new_empty(batch, tail, channels)
    if x.numel() >= MANY_ELEMENTS:
        walk = LONG_WALK
    else:
        walk = SHORT_WALK
    per_row = triton.cdiv(steps, walk)
    if channels % 64 == 0:
        block_c = 64
    else:
        block_c = 32
    block_w = LANES // block_c
    programs = triton.cdiv(batch * per_row, block_w)
    _activation_kernel[(programs + batch, triton.cdiv(channels, block_c))](
        x, past, first, *snake, up.contiguous(), down.contiguous(), history, out, new_past, new_history, steps, tail,
        ahead, channels, batch * per_row, per_row, programs, x.stride(0), x.stride(1), past.stride(0), past.stride(1),
        history.stride(0), history.stride(1),
        OWN=len(up) > 1, ROUND=ROUND, PAST=PAST, STEPS=walk, BLOCK_W=block_w, BLOCK_C=block_c,
        BLOCK_T=triton.next_power_of_2(max(tail, PAST)), num_warps=4,
    )  # fmt: skip
    return out, new_past, new_history
