"""Kernels of codec decoders in 16 bits, on channels-last memory [B, time, C].

In that layout every convolution of a causal decoder is one matrix product over (taps, channels) of rows that are
already in memory: a dilated one reads rows further apart, a transposed one makes `stride` rows out of each. Periodic
activations, biases and residual additions are done where values are in registers anyway. Sums and activations are
float32; results beyond float16's range are kept at its end.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.layers.kernels import Waves

TILES = ((128, 128, 8), (128, 64, 4), (64, 64, 4), (64, 32, 4), (16, 32, 4))
"""Rows and output channels of one program and its warps, largest first."""
PROGRAMS = 128  # wanted of a launch before its tiles may be larger
ELEMENTS = 2048  # of one program that works element by element


@triton.jit
def _wave(x, alpha, beta, LOG: tl.constexpr):
    """x + sin(alpha x)^2 / beta. The argument is reduced by multiples of pi, which the square does not notice."""
    if LOG:
        alpha, beta = tl.exp(alpha), tl.exp(beta)
    y = x * alpha
    turns = tl.floor(y * 0.3183098861837907 + 0.5)
    y = y - turns * 3.140625 - turns * 9.676535897932384e-4
    q = y * y
    s = q * -2.505210838544172e-8 + 2.755731922398589e-6
    s = s * q - 1.984126984126984e-4
    s = s * q + 8.333333333333333e-3
    s = s * q - 1.6666666666666666e-1
    s = y + y * (s * q)
    return x + s * s * (1.0 / (beta + 1e-9))


@triton.jit
def _narrowed(x, like):
    """x as `like` stores it: beyond float16's range, the end of the range."""
    if like.dtype.element_ty == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x.to(like.dtype.element_ty)


@triton.jit(do_not_specialize=["rows", "length", "tail"])
def _extend(
    x, past, alpha, beta, out, rows, length, tail, channels, x_batch, x_time, x_channel, past_batch, past_time,
    HAS_PAST: tl.constexpr, ACT: tl.constexpr, LOG: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    batch = (row // length).to(tl.int64)[:, None]
    time = (row % length)[:, None] - tail
    inside = (row < rows)[:, None] & (c < channels)
    new = tl.load(x + batch * x_batch + time * x_time + c * x_channel, inside & (time >= 0), 0.0).to(tl.float32)
    if ACT:
        a = tl.load(alpha + c, c < channels, 0.0).to(tl.float32)
        b = tl.load(beta + c, c < channels, 0.0).to(tl.float32)
        new = _wave(new, a, b, LOG)
    if HAS_PAST:
        at = past + batch * past_batch + (time + tail) * past_time + c
        new += tl.load(at, inside & (time < 0), 0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64)[:, None] * channels + c, _narrowed(new, out), inside)


def extend(x: Tensor, past: Tensor | None, tail: int, waves: Waves | None) -> Tensor:
    """[B, tail + T, C]: past [B, tail, C] (None: zeros), then the activation of x [B, T, C]."""
    batch, count, channels = x.shape
    length = tail + count
    out = torch.empty(batch, length, channels, dtype=x.dtype, device=x.device)
    block_c = min(128, triton.next_power_of_2(channels))
    block_t = ELEMENTS // block_c
    before = x if past is None else past
    assert before.stride(2) == 1 or past is None
    alpha, beta, log = (x, x, False) if waves is None else waves
    _extend[(triton.cdiv(batch * length, block_t), triton.cdiv(channels, block_c))](
        x, before, alpha, beta, out, batch * length, length, tail, channels, x.stride(0), x.stride(1), x.stride(2),
        before.stride(0), before.stride(1),
        HAS_PAST=past is not None, ACT=waves is not None, LOG=log, BLOCK_T=block_t, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _finish(
    acc, bias, residual, alpha, beta, out, row, n, batch, time, rows, outputs, width, r_batch, r_time,
    HAS_BIAS: tl.constexpr, ADD: tl.constexpr, ACT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Store residual + activation(acc + bias) for rows [M, 1] and outputs n [1, N]; channel n % width."""
    inside = (row < rows) & (n < outputs)
    channel = n % width
    if HAS_BIAS:
        acc += tl.load(bias + channel, n < outputs, 0.0).to(tl.float32)
    if ACT:
        a = tl.load(alpha + channel, n < outputs, 0.0).to(tl.float32)
        b = tl.load(beta + channel, n < outputs, 0.0).to(tl.float32)
        acc = _wave(acc, a, b, LOG)
    if ADD:
        acc += tl.load(residual + batch * r_batch + time * r_time + n, inside, 0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * outputs + n, _narrowed(acc, out), inside)


@triton.jit(do_not_specialize=["rows", "length", "taps", "first", "step"])
def _dense(
    x, weight, bias, residual, alpha, beta, out, rows, length, taps, first, step, channels, outputs, width,
    x_batch, x_time, r_batch, r_time, tap_stride, out_stride,
    HAS_BIAS: tl.constexpr, ADD: tl.constexpr, ACT: tl.constexpr, LOG: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(outputs, BLOCK_N)
    row = (tl.program_id(0) // across) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % across) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    batch = (row // length).to(tl.int64)
    time = row % length
    x_at = x + (batch * x_batch + (time + first) * x_time)[:, None] + k[None, :]
    w_at = weight + n[None, :] * out_stride + k[:, None]
    chunks = tl.cdiv(channels, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(taps * chunks):
        tap = i // chunks
        c = (i % chunks) * BLOCK_K
        left = channels - c
        a = tl.load(x_at + tap * step * x_time + c, (row < rows)[:, None] & (k < left)[None, :], 0.0)
        w = tl.load(w_at + tap * tap_stride + c, (n < outputs)[None, :] & (k < left)[:, None], 0.0)
        acc = tl.dot(a, w, acc)
    _finish(
        acc, bias, residual, alpha, beta, out, row[:, None], n[None, :], batch[:, None], time[:, None], rows, outputs,
        width, r_batch, r_time, HAS_BIAS, ADD, ACT, LOG,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "length", "step"])
def _depthwise(
    x, weight, bias, alpha, beta, out, rows, length, step, channels, x_batch, x_time, tap_stride,
    HAS_BIAS: tl.constexpr, ACT: tl.constexpr, LOG: tl.constexpr, TAPS: tl.constexpr,
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
    _finish(
        acc, bias, x, alpha, beta, out, row, c, batch, time, rows, channels, channels, 0, 0,
        HAS_BIAS, False, ACT, LOG,
    )  # fmt: skip


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, waves: Waves | None, residual: Tensor | None
) -> Tensor:
    """x [B, (k - 1) * dilation + T, C] with its history, weight [O, C or 1, k] laid out tap by tap -> [B, T, O].

    The bias is added, the activation applied, then `residual` [B, T, O] added.
    """
    outputs, inputs, taps = weight.shape
    count = x.shape[1] - (taps - 1) * dilation
    if inputs == 1 and x.shape[2] == outputs > 1:
        assert residual is None, "depthwise convolutions end no residual branch"
        return _run_depthwise(x, weight, bias, dilation, waves, count)
    return _run_dense(x, weight, bias, waves, residual, outputs, count, taps, 0, dilation)


def upsample(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, waves: Waves | None, residual: Tensor | None
) -> Tensor:
    """Transposed convolution, x [B, k / stride - 1 + T, C], weight [C, O, k] laid out tap by tap -> [B, T * stride, O].

    Output t * stride + r is x[t] W[r] + x[t - 1] W[r + stride]: `stride` times as many outputs of two taps.
    """
    _, width, kernel = weight.shape
    taps = kernel // stride
    outputs, count = width * stride, x.shape[1] - taps + 1
    wide = None if residual is None else residual.reshape(len(x), count, outputs)
    y = _run_dense(x, weight.transpose(0, 1), bias, waves, wide, outputs, count, taps, taps - 1, -1)
    return y.view(len(x), count * stride, width)


def _channels_last(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 else x.contiguous()


def _tile(rows: int, outputs: int) -> tuple[int, int, int]:
    """The largest tile that wastes little and still makes enough programs for the chip."""
    widest = 32 if outputs <= 32 else 64 if 0 < outputs % 128 <= 64 else 128
    fitting = [t for t in TILES if t[1] <= widest]
    enough = [t for t in fitting if triton.cdiv(rows, t[0]) * triton.cdiv(outputs, t[1]) >= PROGRAMS]
    return enough[0] if enough else fitting[-1 if rows <= 64 else -2]


def _run_dense(
    x: Tensor, weight: Tensor, bias: Tensor | None, waves: Waves | None, residual: Tensor | None,
    outputs: int, count: int, taps: int, first: int, step: int,
) -> Tensor:  # fmt: skip
    x, added = _channels_last(x), x if residual is None else _channels_last(residual)
    batch, channels, width = len(x), x.shape[2], weight.shape[0]
    assert weight.stride(1) == 1, "weights must be laid out tap by tap (layers.conv.cast)"
    out = torch.empty(batch, count, outputs, dtype=x.dtype, device=x.device)
    rows = batch * count
    block_m, block_n, warps = _tile(rows, outputs)
    block_k = 64 if channels % 64 == 0 else 32 if channels > 16 else 16
    alpha, beta, log = (x, x, False) if waves is None else waves
    _dense[(triton.cdiv(rows, block_m) * triton.cdiv(outputs, block_n),)](
        x, weight, x if bias is None else bias, added, alpha, beta, out, rows, count, taps, first, step, channels,
        outputs, width, x.stride(0), x.stride(1), added.stride(0), added.stride(1), 
        weight.stride(2) * (outputs // width), weight.stride(0),
        HAS_BIAS=bias is not None, ADD=residual is not None, ACT=waves is not None, LOG=log,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out


def _run_depthwise(
    x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, waves: Waves | None, count: int
) -> Tensor:
    x = _channels_last(x)
    batch, _, channels = x.shape
    out = torch.empty(batch, count, channels, dtype=x.dtype, device=x.device)
    block_c = min(64, triton.next_power_of_2(channels))
    block_t = ELEMENTS // 2 // block_c
    alpha, beta, log = (x, x, False) if waves is None else waves
    _depthwise[(triton.cdiv(batch * count, block_t), triton.cdiv(channels, block_c))](
        x, weight, x if bias is None else bias, alpha, beta, out, batch * count, count, dilation, channels,
        x.stride(0), x.stride(1), weight.stride(2),
        HAS_BIAS=bias is not None, ACT=waves is not None, LOG=log, TAPS=weight.shape[2],
        BLOCK_T=block_t, BLOCK_C=block_c, num_warps=4,
    )  # fmt: skip
    return out
