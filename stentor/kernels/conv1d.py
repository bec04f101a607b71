"""Convolutions of codecs in 16 bits, on channels-last memory [B, time, C].

In that layout every convolution of a causal codec is one GEMM over (taps, channels) of rows that
are already in memory. A dilated one reads rows further apart, a transposed one makes `stride` rows
out of each, and a strided one reads all its taps as one long row. Snake activations, biases and
residual additions are fused. Sums and activations are float32. Results beyond float16's range are
clamped.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.configs import FIXED_CONV_ROWS, conv_config
from stentor.kernels.pdl import tile_rows
from stentor.kernels.switches import is_batch_invariant
from stentor.kernels.types import Affine, SnakeParams

ELEMENTS = 2048  # of a CTA that works element by element
MANY_ELEMENTS = 2**20  # make enough CTAs of any size
ROUND = 1.5 * 2.0**23
"""Adding and subtracting it rounds a float32 below 2^22 to an integer."""


@triton.jit
def apply_snake(x, alpha, gain, ROUND: tl.constexpr):
    """x + gain sin(alpha x)^2. The argument is reduced by multiples of pi, which leave the square
    as it is."""
    y = x * alpha
    half_turns = (y * 0.3183098861837907 + ROUND) - ROUND
    # Pi in two parts (Cody and Waite, 1980): the first has 8 bits, so 2^16 times it is still exact.
    y = y - half_turns * 3.140625 - half_turns * 9.676535897932384e-4
    y2 = y * y
    # The Taylor series of the sine, up to y^11. |y| is at most pi / 2.
    sin = y2 * -2.505210838544172e-8 + 2.755731922398589e-6
    sin = sin * y2 - 1.984126984126984e-4
    sin = sin * y2 + 8.333333333333333e-3
    sin = sin * y2 - 1.6666666666666666e-1
    sin = y + y * (sin * y2)
    return x + sin * sin * gain


@triton.jit
def clamp_cast(x, out_ptr):
    """x in the dtype of out_ptr, clamped to the range of float16."""
    if out_ptr.dtype.element_ty == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x.to(out_ptr.dtype.element_ty)


@triton.jit(do_not_specialize=["num_rows", "num_steps", "tail"])
def _concat_history_kernel(
    x_ptr, past_ptr, first_ptr, ahead_ptr, scale_ptr, shift_ptr, alpha_ptr, gain_ptr, out_ptr, last_ptr, num_rows,
    num_steps, tail, num_channels, stride_xb, stride_xt, stride_xc, stride_pb, stride_pt,
    HAS_PAST: tl.constexpr, HAS_FIRST: tl.constexpr, STORE_LAST: tl.constexpr, HAS_AHEAD: tl.constexpr,
    HAS_AFFINE: tl.constexpr, HAS_SNAKE: tl.constexpr, ROUND: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    batch = (offs_m // num_steps).to(tl.int64)[:, None]
    time = (offs_m % num_steps)[:, None] - tail
    mask = (offs_m < num_rows)[:, None] & (offs_c < num_channels)
    in_stream = time >= 0
    if HAS_FIRST:
        in_stream = in_stream & (
            time >= tl.load(first_ptr + batch, (offs_m < num_rows)[:, None], 0)
        )
    y = tl.load(
        x_ptr + batch * stride_xb + time * stride_xt + offs_c * stride_xc, mask & in_stream, 0.0
    )
    y = y.to(tl.float32)
    if HAS_AFFINE:
        y = y * tl.load(scale_ptr + offs_c, offs_c < num_channels, 0.0).to(tl.float32)
        # The shift must not reach the history, where y is 0 so far.
        y = tl.where(
            in_stream,
            y + tl.load(shift_ptr + offs_c, offs_c < num_channels, 0.0).to(tl.float32),
            0.0,
        )
    if HAS_SNAKE:
        alpha = tl.load(alpha_ptr + offs_c, offs_c < num_channels, 0.0)
        gain = tl.load(gain_ptr + offs_c, offs_c < num_channels, 0.0)
        y = apply_snake(y, alpha, gain, ROUND)
    if HAS_PAST:
        # History was stored after its activation. It is added to Snake of 0, which is 0.
        history_ptr = past_ptr + batch * stride_pb + (time + tail) * stride_pt + offs_c
        y += tl.load(history_ptr, mask & (time < 0), 0.0).to(tl.float32)
    y = clamp_cast(y, out_ptr)
    tl.store(out_ptr + offs_m.to(tl.int64)[:, None] * num_channels + offs_c, y, mask)
    if STORE_LAST:
        last_step = time + 2 * tail - num_steps
        if HAS_AHEAD:
            last_step += tl.load(ahead_ptr + batch, (offs_m < num_rows)[:, None], 0).to(tl.int32)
        tail_mask = mask & (last_step >= 0) & (last_step < tail)
        tl.store(last_ptr + (batch * tail + last_step) * num_channels + offs_c, y, tail_mask)


def concat_history(
    x: Tensor,
    past: Tensor | None,
    tail: int,
    snake: SnakeParams | None,
    affine: Affine | None = None,
    keep: bool = False,
    ahead: Tensor | None = None,
    first: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(history and activated x [B, tail + T, C], its last `tail` steps before the last `ahead` [B],
    None: before none).

    The history is past [B, tail, C], or zeros. After it comes snake(x * scale + shift) for x [B, T,
    C], without what is None. What stands before x[b, first[b]] counts as zero. The second result is
    a copy if `keep`, or not to be used.
    """
    batch, count, channels = x.shape
    length = tail + count
    out = torch.empty(batch, length, channels, dtype=x.dtype, device=x.device)
    last_steps = x.new_empty(batch, tail, channels) if keep else out
    block_c = min(128, triton.next_power_of_2(channels))
    block_t = ELEMENTS // block_c
    before = x if past is None else _channels_last(past)
    alpha, gain = (x, x) if snake is None else snake
    scale, shift = (x, x) if affine is None else affine
    _concat_history_kernel[(triton.cdiv(batch * length, block_t), triton.cdiv(channels, block_c))](
        x, before, x if first is None else first, x if ahead is None else ahead, scale, shift, alpha, gain, out, last_steps,
        batch * length, length, tail, channels, _row_stride(x), x.stride(1), x.stride(2) if channels > 1 else 1,
        _row_stride(before), before.stride(1),
        HAS_PAST=past is not None, HAS_FIRST=first is not None, STORE_LAST=keep, HAS_AHEAD=ahead is not None,
        HAS_AFFINE=affine is not None, HAS_SNAKE=snake is not None, ROUND=ROUND, BLOCK_T=block_t, BLOCK_C=block_c,
        num_warps=4,
    )  # fmt: skip
    return out, last_steps


@triton.jit
def _store_epilogue(
    acc, bias_ptr, residual_ptr, alpha_ptr, gain_ptr, out_ptr, offs_m, offs_n, batch, time, num_rows, num_outputs,
    num_channels, stride_rb, stride_rt,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SNAKE: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Store residual + snake(acc + bias) of rows offs_m [M, 1] and outputs offs_n [1, N]."""
    mask = (offs_m < num_rows) & (offs_n < num_outputs)
    channel = offs_n % num_channels
    if HAS_BIAS:
        acc += tl.load(bias_ptr + channel, offs_n < num_outputs, 0.0).to(tl.float32)
    if HAS_SNAKE:
        alpha = tl.load(alpha_ptr + channel, offs_n < num_outputs, 0.0)
        gain = tl.load(gain_ptr + channel, offs_n < num_outputs, 0.0)
        acc = apply_snake(acc, alpha, gain, ROUND)
    if HAS_RESIDUAL:
        acc += tl.load(residual_ptr + batch * stride_rb + time * stride_rt + offs_n, mask, 0.0).to(
            tl.float32
        )
    tl.store(out_ptr + offs_m.to(tl.int64) * num_outputs + offs_n, clamp_cast(acc, out_ptr), mask)


@triton.jit
def _load_weights(weight_ptrs, offs_k, num_left, EVEN_K: tl.constexpr):
    """Weights [K, N] of some channels of one tap."""
    if EVEN_K:
        return tl.load(weight_ptrs)
    return tl.load(weight_ptrs, (offs_k < num_left)[:, None], 0.0)


@triton.jit(do_not_specialize=["num_rows", "num_steps", "num_taps", "first_step", "step"])
def _conv_kernel(
    x_ptr, weight_ptr, bias_ptr, residual_ptr, alpha_ptr, gain_ptr, out_ptr, num_rows, num_steps, num_taps, first_step,
    step, num_inputs, num_outputs, num_channels, stride_xb, stride_xt, stride_rb, stride_rt, stride_tap, stride_out,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SNAKE: tl.constexpr, ROUND: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EXTRA_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_N + EXTRA_N outputs of BLOCK_M rows: two powers of two, so that 96 and 192 channels
    waste nothing.

    Rows and outputs beyond the end read the last one. With EVEN_K no channels are masked.
    """
    blocks_n = tl.cdiv(num_outputs, BLOCK_N + EXTRA_N)
    offs_m = (tl.program_id(0) // blocks_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    start_n = (tl.program_id(0) % blocks_n) * (BLOCK_N + EXTRA_N)
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    row = tl.minimum(offs_m, num_rows - 1)
    x_rows = (row // num_steps).to(tl.int64) * stride_xb + (
        row % num_steps + first_step
    ) * stride_xt
    x_ptrs = x_ptr + x_rows[:, None] + offs_k[None, :]
    w_ptrs = (
        weight_ptr + tl.minimum(offs_n, num_outputs - 1)[None, :] * stride_out + offs_k[:, None]
    )
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if EXTRA_N:
        offs_n2 = start_n + BLOCK_N + tl.arange(0, EXTRA_N)
        w2_ptrs = (
            weight_ptr
            + tl.minimum(offs_n2, num_outputs - 1)[None, :] * stride_out
            + offs_k[:, None]
        )
        acc2 = tl.zeros((BLOCK_M, EXTRA_N), tl.float32)
    for i in range(num_taps * tl.cdiv(num_inputs, BLOCK_K)):
        tap = i % num_taps
        start_k = (i // num_taps) * BLOCK_K
        x_offs = tap * step * stride_xt + start_k
        w_offs = tap * stride_tap + start_k
        if EVEN_K:
            x = tl.load(x_ptrs + x_offs)
        else:
            x = tl.load(x_ptrs + x_offs, (offs_k < num_inputs - start_k)[None, :], 0.0)
        acc = tl.dot(x, _load_weights(w_ptrs + w_offs, offs_k, num_inputs - start_k, EVEN_K), acc)
        if EXTRA_N:
            acc2 = tl.dot(
                x, _load_weights(w2_ptrs + w_offs, offs_k, num_inputs - start_k, EVEN_K), acc2
            )
    batch = (offs_m // num_steps).to(tl.int64)[:, None]
    time = (offs_m % num_steps)[:, None]
    _store_epilogue(
        acc, bias_ptr, residual_ptr, alpha_ptr, gain_ptr, out_ptr, offs_m[:, None], offs_n[None, :], batch, time,
        num_rows, num_outputs, num_channels, stride_rb, stride_rt, HAS_BIAS, HAS_RESIDUAL, HAS_SNAKE, ROUND,
    )  # fmt: skip
    if EXTRA_N:
        _store_epilogue(
            acc2, bias_ptr, residual_ptr, alpha_ptr, gain_ptr, out_ptr, offs_m[:, None], offs_n2[None, :], batch, time,
            num_rows, num_outputs, num_channels, stride_rb, stride_rt, HAS_BIAS, HAS_RESIDUAL, HAS_SNAKE, ROUND,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "num_steps", "step"])
def _depthwise_kernel(
    x_ptr, weight_ptr, bias_ptr, residual_ptr, alpha_ptr, gain_ptr, out_ptr, num_rows, num_steps, step, num_channels,
    stride_xb, stride_xt, stride_rb, stride_rt, stride_tap,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SNAKE: tl.constexpr, ROUND: tl.constexpr,
    TAPS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    batch = (offs_m // num_steps).to(tl.int64)
    time = offs_m % num_steps
    mask = (offs_m < num_rows) & (offs_c < num_channels)
    x_ptrs = x_ptr + batch * stride_xb + time * stride_xt + offs_c
    acc = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    for tap in tl.static_range(TAPS):
        w = tl.load(weight_ptr + tap * stride_tap + offs_c, offs_c < num_channels, 0.0).to(
            tl.float32
        )
        acc += w * tl.load(x_ptrs + tap * step * stride_xt, mask, 0.0).to(tl.float32)
    _store_epilogue(
        acc, bias_ptr, residual_ptr, alpha_ptr, gain_ptr, out_ptr, offs_m, offs_c, batch, time, num_rows, num_channels,
        num_channels, stride_rb, stride_rt, HAS_BIAS, HAS_RESIDUAL, HAS_SNAKE, ROUND,
    )  # fmt: skip


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dilation: int,
    snake: SnakeParams | None,
    residual: Tensor | None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [B, (k - 1) * dilation + T, C] with its history, weight [O, C or 1, k] laid out tap by tap
    -> [B, T, O].

    The result is residual [B, T, O] + snake(convolution + bias), without what is None. Its dtype is
    `dtype`, None: that of x.
    """
    outputs, inputs, taps = weight.shape
    count = x.shape[1] - (taps - 1) * dilation
    if inputs == 1 and x.shape[2] == outputs > 1:
        return _launch_depthwise(x, weight, bias, dilation, snake, residual, count)
    return _launch_conv(x, weight, bias, snake, residual, outputs, count, taps, 0, dilation, dtype)


def strided_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    snake: SnakeParams | None,
    residual: Tensor | None,
) -> Tensor:
    """x [B, k - stride + T * stride, C] with its history, weight [O, C, k] laid out output by
    output -> [B, T, O].

    The k steps that an output reads lie side by side in memory: one tap of k * C channels, in rows
    that overlap.
    """
    outputs, channels, taps = weight.shape
    rows = x.reshape(len(x), -1).unfold(1, taps * channels, stride * channels)
    flat = weight.transpose(1, 2).reshape(outputs, taps * channels, 1)
    return _launch_conv(rows, flat, bias, snake, residual, outputs, rows.shape[1], 1, 0, 1)


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    snake: SnakeParams | None,
    residual: Tensor | None,
) -> Tensor:
    """Transposed convolution, x [B, k / stride - 1 + T, C], weight [C, O, k] laid out tap by tap ->
    [B, T * stride, O].

    Output t * stride + r is x[t] W[r] + x[t - 1] W[r + stride]: `stride` times as many outputs of
    two taps.
    """
    _, width, kernel = weight.shape
    taps = kernel // stride
    outputs = width * stride
    count = x.shape[1] - taps + 1
    if residual is None:
        wide = None
    else:
        wide = residual.reshape(len(x), count, outputs)
    y = _launch_conv(
        x, weight.transpose(0, 1), bias, snake, wide, outputs, count, taps, taps - 1, -1
    )
    return y.view(len(x), count * stride, width)


def _channels_last(x: Tensor) -> Tensor:
    if x.stride(2) == 1:
        return x
    return x.contiguous()


def _row_stride(x: Tensor) -> int:
    """Elements between rows. 0 for a single one, so that the length of the audio chooses no other
    kernel."""
    if len(x) > 1:
        return x.stride(0)
    return 0


def _launch_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    snake: SnakeParams | None,
    residual: Tensor | None,
    outputs: int,
    count: int,
    taps: int,
    first: int,
    step: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    x, added = _channels_last(x), x if residual is None else _channels_last(residual)
    batch = len(x)
    channels = x.shape[2]
    width = weight.shape[0]
    assert weight.stride(1) == 1, "weights must be laid out by layers.conv.cast_codec"
    out = torch.empty(batch, count, outputs, dtype=dtype or x.dtype, device=x.device)
    rows = batch * count
    c = conv_config(tile_rows(rows, FIXED_CONV_ROWS), outputs, channels, is_batch_invariant())
    alpha, gain = (x, x) if snake is None else snake
    _conv_kernel[(triton.cdiv(rows, c.block_m) * triton.cdiv(outputs, c.block_n + c.extra_n),)](
        x, weight, x if bias is None else bias, added, alpha, gain, out, rows, count, taps, first, step, channels,
        outputs, width, _row_stride(x), x.stride(1), _row_stride(added), added.stride(1),
        weight.stride(2) * (outputs // width), weight.stride(0),
        HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, HAS_SNAKE=snake is not None, ROUND=ROUND,
        EVEN_K=channels % c.block_k == 0, BLOCK_M=c.block_m, BLOCK_N=c.block_n, EXTRA_N=c.extra_n, BLOCK_K=c.block_k,
        num_warps=c.num_warps, num_stages=c.num_stages, maxnreg=c.max_registers,
    )  # fmt: skip
    return out


def _launch_depthwise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dilation: int,
    snake: SnakeParams | None,
    residual: Tensor | None,
    count: int,
) -> Tensor:
    x = _channels_last(x)
    added = x if residual is None else _channels_last(residual)
    batch, _, channels = x.shape
    out = torch.empty(batch, count, channels, dtype=x.dtype, device=x.device)
    block_c = min(64, triton.next_power_of_2(channels))
    # Rows of one thread share the weights that it has loaded and converted.
    block_t = (2 * ELEMENTS if out.numel() > MANY_ELEMENTS else ELEMENTS // 2) // block_c
    alpha, gain = (x, x) if snake is None else snake
    _depthwise_kernel[(triton.cdiv(batch * count, block_t), triton.cdiv(channels, block_c))](
        x, weight, x if bias is None else bias, added, alpha, gain, out, batch * count, count, dilation, channels,
        _row_stride(x), x.stride(1), _row_stride(added), added.stride(1), weight.stride(2),
        HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, HAS_SNAKE=snake is not None, ROUND=ROUND,
        TAPS=weight.shape[2], BLOCK_T=block_t, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return out
