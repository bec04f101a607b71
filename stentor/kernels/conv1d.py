"""Kernels of codec decoders in 16 bits, on channels-last memory [B, time, C].

In that layout every convolution of a causal decoder is one matrix product over (taps, channels) of rows that are
already in memory: a dilated one reads rows further apart, a transposed one makes `stride` rows out of each. Periodic
activations, biases and residual additions are done where values are in registers anyway. Sums and activations are
float32; results beyond float16's range are kept at its end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.configs import conv_config
from stentor.kernels.types import Affine, SnakeParams

ELEMENTS = 2048  # of one program that works element by element
MANY = 2**20  # elements that make enough programs of any size
ROUND = 1.5 * 2.0**23
"""Added and taken away again, it leaves a float32 below 2^22 rounded to a whole number."""


@triton.jit
def _snake(x, alpha, gain, ROUND: tl.constexpr):
    """x + gain sin(alpha x)^2. The argument is reduced by multiples of pi, which the square does not notice."""
    y = x * alpha
    turns = (y * 0.3183098861837907 + ROUND) - ROUND
    y = y - turns * 3.140625 - turns * 9.676535897932384e-4
    q = y * y
    s = q * -2.505210838544172e-8 + 2.755731922398589e-6
    s = s * q - 1.984126984126984e-4
    s = s * q + 8.333333333333333e-3
    s = s * q - 1.6666666666666666e-1
    s = y + y * (s * q)
    return x + s * s * gain


@triton.jit
def _clamp_cast(x, like):
    """x as `like` stores it: beyond float16's range, the end of the range."""
    if like.dtype.element_ty == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x.to(like.dtype.element_ty)


@triton.jit(do_not_specialize=["rows", "length", "tail"])
def _concat_history_kernel(
    x, past, scale, shift, alpha, gain, out, kept, rows, length, tail, channels, x_batch, x_time, x_channel, past_batch,
    past_time, HAS_PAST: tl.constexpr, KEEP: tl.constexpr, AFFINE: tl.constexpr, ACT: tl.constexpr, ROUND: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    batch = (row // length).to(tl.int64)[:, None]
    time = (row % length)[:, None] - tail
    inside = (row < rows)[:, None] & (c < channels)
    new = tl.load(x + batch * x_batch + time * x_time + c * x_channel, inside & (time >= 0), 0.0).to(tl.float32)
    if AFFINE:
        new = new * tl.load(scale + c, c < channels, 0.0).to(tl.float32)
        new = tl.where(time >= 0, new + tl.load(shift + c, c < channels, 0.0).to(tl.float32), 0.0)
    if ACT:
        new = _snake(new, tl.load(alpha + c, c < channels, 0.0), tl.load(gain + c, c < channels, 0.0), ROUND)
    if HAS_PAST:
        at = past + batch * past_batch + (time + tail) * past_time + c
        new += tl.load(at, inside & (time < 0), 0.0).to(tl.float32)
    new = _clamp_cast(new, out)
    tl.store(out + row.to(tl.int64)[:, None] * channels + c, new, inside)
    if KEEP:
        place = time + 2 * tail - length
        tl.store(kept + (batch * tail + place) * channels + c, new, inside & (place >= 0))


def concat_history(
    x: Tensor,
    past: Tensor | None,
    tail: int,
    snake: SnakeParams | None,
    affine: Affine | None = None,
    keep: bool = False,
) -> tuple[Tensor, Tensor]:
    """[B, tail + T, C]: past [B, tail, C] (None: zeros), then the activation of x [B, T, C], which may be scaled and
    shifted before it. Second, if it is to be kept, a copy of the last `tail` steps."""
    batch, count, channels = x.shape
    length = tail + count
    out = torch.empty(batch, length, channels, dtype=x.dtype, device=x.device)
    kept = x.new_empty(batch, tail, channels) if keep else out
    block_c = min(128, triton.next_power_of_2(channels))
    block_t = ELEMENTS // block_c
    before = x if past is None else _channels_last(past)
    alpha, gain = (x, x) if snake is None else snake
    scale, shift = (x, x) if affine is None else affine
    _concat_history_kernel[(triton.cdiv(batch * length, block_t), triton.cdiv(channels, block_c))](
        x, before, scale, shift, alpha, gain, out, kept, batch * length, length, tail, channels,
        x.stride(0), x.stride(1), x.stride(2), before.stride(0), before.stride(1),
        HAS_PAST=past is not None, KEEP=keep, AFFINE=affine is not None, ACT=snake is not None, ROUND=ROUND,
        BLOCK_T=block_t, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return out, kept


@triton.jit
def _store_epilogue(
    acc, bias, residual, alpha, gain, out, row, n, batch, time, rows, outputs, width, r_batch, r_time,
    HAS_BIAS: tl.constexpr, ADD: tl.constexpr, ACT: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """Store residual + activation(acc + bias) for rows [M, 1] and outputs n [1, N]; channel n % width."""
    inside = (row < rows) & (n < outputs)
    channel = n % width
    if HAS_BIAS:
        acc += tl.load(bias + channel, n < outputs, 0.0).to(tl.float32)
    if ACT:
        a, g = tl.load(alpha + channel, n < outputs, 0.0), tl.load(gain + channel, n < outputs, 0.0)
        acc = _snake(acc, a, g, ROUND)
    if ADD:
        acc += tl.load(residual + batch * r_batch + time * r_time + n, inside, 0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * outputs + n, _clamp_cast(acc, out), inside)


@triton.jit
def _load_weights(at, k, left, EVEN: tl.constexpr):
    if EVEN:
        return tl.load(at)
    return tl.load(at, (k < left)[:, None], 0.0)


@triton.jit(do_not_specialize=["rows", "length", "taps", "first", "step"])
def _conv_kernel(
    x, weight, bias, residual, alpha, gain, out, rows, length, taps, first, step, channels, outputs, width,
    x_batch, x_time, r_batch, r_time, tap_stride, out_stride,
    HAS_BIAS: tl.constexpr, ADD: tl.constexpr, ACT: tl.constexpr, ROUND: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MORE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_N + MORE outputs of BLOCK_M rows: two powers of two, so that 96 and 192 channels waste nothing. Rows and
    outputs beyond the end read the last one; only EVEN channels need no mask."""
    across = tl.cdiv(outputs, BLOCK_N + MORE)
    row = (tl.program_id(0) // across) * BLOCK_M + tl.arange(0, BLOCK_M)
    base = (tl.program_id(0) % across) * (BLOCK_N + MORE)
    n = base + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    read = tl.minimum(row, rows - 1)
    x_at = x + ((read // length).to(tl.int64) * x_batch + (read % length + first) * x_time)[:, None] + k[None, :]
    w_at = weight + tl.minimum(n, outputs - 1)[None, :] * out_stride + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if MORE:
        n2 = base + BLOCK_N + tl.arange(0, MORE)
        w2_at = weight + tl.minimum(n2, outputs - 1)[None, :] * out_stride + k[:, None]
        acc2 = tl.zeros((BLOCK_M, MORE), tl.float32)
    for i in range(taps * tl.cdiv(channels, BLOCK_K)):
        tap = i % taps
        c = (i // taps) * BLOCK_K
        x_off, w_off = tap * step * x_time + c, tap * tap_stride + c
        if EVEN:
            a = tl.load(x_at + x_off)
        else:
            a = tl.load(x_at + x_off, (k < channels - c)[None, :], 0.0)
        acc = tl.dot(a, _load_weights(w_at + w_off, k, channels - c, EVEN), acc)
        if MORE:
            acc2 = tl.dot(a, _load_weights(w2_at + w_off, k, channels - c, EVEN), acc2)
    batch = (row // length).to(tl.int64)[:, None]
    time = (row % length)[:, None]
    _store_epilogue(
        acc, bias, residual, alpha, gain, out, row[:, None], n[None, :], batch, time, rows, outputs, width,
        r_batch, r_time, HAS_BIAS, ADD, ACT, ROUND,
    )  # fmt: skip
    if MORE:
        _store_epilogue(
            acc2, bias, residual, alpha, gain, out, row[:, None], n2[None, :], batch, time, rows, outputs, width,
            r_batch, r_time, HAS_BIAS, ADD, ACT, ROUND,
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "length", "step"])
def _depthwise_kernel(
    x, weight, bias, alpha, gain, out, rows, length, step, channels, x_batch, x_time, tap_stride,
    HAS_BIAS: tl.constexpr, ACT: tl.constexpr, ROUND: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    batch = (row // length).to(tl.int64)
    time = row % length
    inside = (row < rows) & (c < channels)
    x_at = x + batch * x_batch + time * x_time + c
    acc = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    for tap in tl.static_range(TAPS):
        w = tl.load(weight + tap * tap_stride + c, c < channels, 0.0).to(tl.float32)
        acc += w * tl.load(x_at + tap * step * x_time, inside, 0.0).to(tl.float32)
    _store_epilogue(
        acc, bias, x, alpha, gain, out, row, c, batch, time, rows, channels, channels, 0, 0,
        HAS_BIAS, False, ACT, ROUND,
    )  # fmt: skip


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, snake: SnakeParams | None, residual: Tensor | None
) -> Tensor:
    """x [B, (k - 1) * dilation + T, C] with its history, weight [O, C or 1, k] laid out tap by tap -> [B, T, O].

    The bias is added, the activation applied, then `residual` [B, T, O] added.
    """
    outputs, inputs, taps = weight.shape
    count = x.shape[1] - (taps - 1) * dilation
    if inputs == 1 and x.shape[2] == outputs > 1:
        assert residual is None, "depthwise convolutions end no residual branch"
        return _launch_depthwise(x, weight, bias, dilation, snake, count)
    return _launch_conv(x, weight, bias, snake, residual, outputs, count, taps, 0, dilation)


def conv_transpose1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, snake: SnakeParams | None, residual: Tensor | None
) -> Tensor:
    """Transposed convolution, x [B, k / stride - 1 + T, C], weight [C, O, k] laid out tap by tap -> [B, T * stride, O].

    Output t * stride + r is x[t] W[r] + x[t - 1] W[r + stride]: `stride` times as many outputs of two taps.
    """
    _, width, kernel = weight.shape
    taps = kernel // stride
    outputs, count = width * stride, x.shape[1] - taps + 1
    wide = None if residual is None else residual.reshape(len(x), count, outputs)
    y = _launch_conv(x, weight.transpose(0, 1), bias, snake, wide, outputs, count, taps, taps - 1, -1)
    return y.view(len(x), count * stride, width)


def _channels_last(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _launch_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, snake: SnakeParams | None, residual: Tensor | None,
    outputs: int, count: int, taps: int, first: int, step: int,
) -> Tensor:  # fmt: skip
    x, added = _channels_last(x), x if residual is None else _channels_last(residual)
    batch, channels, width = len(x), x.shape[2], weight.shape[0]
    assert weight.stride(1) == 1, "weights must be laid out tap by tap (layers.conv.cast)"
    out = torch.empty(batch, count, outputs, dtype=x.dtype, device=x.device)
    rows = batch * count
    t = conv_config(rows, outputs, channels)
    alpha, gain = (x, x) if snake is None else snake
    _conv_kernel[(triton.cdiv(rows, t.block_m) * triton.cdiv(outputs, t.block_n + t.extra_n),)](
        x, weight, x if bias is None else bias, added, alpha, gain, out, rows, count, taps, first, step, channels,
        outputs, width, x.stride(0), x.stride(1), added.stride(0), added.stride(1),
        weight.stride(2) * (outputs // width), weight.stride(0),
        HAS_BIAS=bias is not None, ADD=residual is not None, ACT=snake is not None, ROUND=ROUND,
        EVEN=channels % t.block_k == 0, BLOCK_M=t.block_m, BLOCK_N=t.block_n, MORE=t.extra_n, BLOCK_K=t.block_k,
        num_warps=t.num_warps, num_stages=t.num_stages, maxnreg=t.max_registers,
    )  # fmt: skip
    return out


def _launch_depthwise(
    x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, snake: SnakeParams | None, count: int
) -> Tensor:
    x = _channels_last(x)
    batch, _, channels = x.shape
    out = torch.empty(batch, count, channels, dtype=x.dtype, device=x.device)
    block_c = min(64, triton.next_power_of_2(channels))
    # Rows of one thread share the weights that it has read and widened.
    block_t = (2 * ELEMENTS if out.numel() > MANY else ELEMENTS // 2) // block_c
    alpha, gain = (x, x) if snake is None else snake
    _depthwise_kernel[(triton.cdiv(batch * count, block_t), triton.cdiv(channels, block_c))](
        x, weight, x if bias is None else bias, alpha, gain, out, batch * count, count, dilation, channels,
        x.stride(0), x.stride(1), weight.stride(2),
        HAS_BIAS=bias is not None, ACT=snake is not None, ROUND=ROUND, TAPS=weight.shape[2],
        BLOCK_T=block_t, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return out
