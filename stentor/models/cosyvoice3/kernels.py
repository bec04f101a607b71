"""Triton kernels of this family: convolutions of the flow's transformer, and sampling.

They round where the reference implementations in `ops.py` and `codec_flow.py` round.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.constants import MIN_TEMPERATURE
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait, tile_rows
from stentor.kernels.sampling import (
    checked,
    kth_largest,
    load_logits,
    load_params,
    mass_threshold,
    ordered_key,
)

CONV_M = 64  # frames of a branch of a CTA that convolves
CONV_CTAS = 256  # enough to fill a GPU
SMALLEST = 16  # of a dimension that tensor cores take


def takes(width: int) -> bool:
    """Whether attention takes heads, and `position_conv` groups, of `width` channels."""
    return width >= SMALLEST and width & (width - 1) == 0


@triton.jit
def _mish(x):
    """x tanh(log(1 + exp(x)))."""
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@triton.jit
def _inputs(x_ptrs, at, exist, dim, tap, TAPS: tl.constexpr):
    """Inputs [M, C] of a tap for frames at [M].

    Zeros stand before the first frame, and are the inputs of the tap behind the last.
    """
    frame = (at - (TAPS - 1) + tap)[:, None]
    return tl.load(x_ptrs + frame * dim, exist & (frame >= 0) & (tap < TAPS), 0.0)


@triton.jit(do_not_specialize=["num_frames", "num_branches"])
def _position_conv_kernel(
    x_ptr, weight_ptr, bias_ptr, residual_ptr, out_ptr, num_frames, num_branches, dim, stride_out, stride_in,
    stride_tap,
    TAPS: tl.constexpr, WIDTH: tl.constexpr, HAS_RESIDUAL: tl.constexpr, BLOCK_M: tl.constexpr, BRANCHES: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    """residual + mish(convolution) of the WIDTH channels of a group, for BLOCK_M frames of some
    branches of rows.

    Every tap reads the frames again, one further on. Plain loads find them in the cache of the SM,
    which loads into shared memory pass by. They are of the next tap while this one computes.
    Weights, which are read once, run further ahead in shared memory.
    """
    pdl_wait(USE_PDL)
    offs = tl.arange(0, BRANCHES * BLOCK_M)
    offs_c = tl.arange(0, WIDTH)
    branch = (tl.program_id(2) * BRANCHES + offs // BLOCK_M).to(tl.int64)
    at = tl.program_id(0) * BLOCK_M + offs % BLOCK_M
    channel = tl.program_id(1) * WIDTH + offs_c
    exist = ((at < num_frames) & (branch < num_branches))[:, None]
    rows = (branch * num_frames * dim)[:, None] + channel[None, :]
    w_ptrs = weight_ptr + channel[None, :] * stride_out + offs_c[:, None] * stride_in
    acc = tl.zeros([BRANCHES * BLOCK_M, WIDTH], tl.float32)
    x = _inputs(x_ptr + rows, at, exist, dim, 0, TAPS)
    for tap in range(TAPS):
        next_x = _inputs(x_ptr + rows, at, exist, dim, tap + 1, TAPS)
        acc = tl.dot(x, tl.load(w_ptrs + tap * stride_tap), acc, input_precision="ieee")
        x = next_x
    acc += tl.load(bias_ptr + channel)[None, :].to(tl.float32)
    y = _mish(acc.to(out_ptr.dtype.element_ty).to(tl.float32)).to(out_ptr.dtype.element_ty)
    out = rows + at[:, None] * dim
    if HAS_RESIDUAL:
        y = (y.to(tl.float32) + tl.load(residual_ptr + out, exist, 0.0).to(tl.float32)).to(y.dtype)
    tl.store(out_ptr + out, y, exist)


def position_conv(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None) -> Tensor:
    """mish(causal convolution) of x [B, 2, T, C], weight [C, C / groups, taps]; + residual."""
    batch, _, frames, dim = x.shape
    _, width, taps = weight.shape
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tiles = triton.cdiv(frames, CONV_M)
    groups = dim // width
    ctas = tiles * groups * tile_rows(batch, 1)
    branches = 2 if ctas >= CONV_CTAS else 1  # of a CTA: they share its weights
    _position_conv_kernel[(tiles, groups, 2 * batch // branches)](
        x, weight, bias, x if residual is None else residual.contiguous(), out, frames, 2 * batch, dim,
        *weight.stride(),
        TAPS=taps, WIDTH=width, HAS_RESIDUAL=residual is not None, BLOCK_M=CONV_M, BRANCHES=branches,
        num_warps=4 * branches, num_stages=1 if x.dtype == torch.float32 else 4, **PDL_LAUNCH,
    )  # fmt: skip
    return out


@triton.jit
def _sample_ras_kernel(
    logits_ptr, u_ptr, temperature_ptr, top_p_ptr, top_k_ptr, codes_ptr, exist_ptr, out_ptr, stride_logits, stride_u,
    stride_codes, stride_exist, size, most,
    MIN_TEMPERATURE: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr, BLOCK_WINDOW: tl.constexpr,
    USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs, mask, logits = load_logits(logits_ptr, row, stride_logits, size, BLOCK)
    temperature, top_k, top_p = load_params(row, temperature_ptr, top_k_ptr, top_p_ptr)
    token = tl.argmax(logits, 0).to(tl.int64)
    if temperature > 0:
        x = logits / tl.maximum(temperature, MIN_TEMPERATURE)
        largest = tl.max(x, 0)
        p = tl.where(mask, tl.exp(x - largest), 0.0)
        key = ordered_key(x)
        candidates = p
        if top_p < 1:
            candidates = tl.where(
                (key >= mass_threshold(key, p, top_p * tl.sum(p, 0), 32)) | (x == largest),
                candidates,
                0.0,
            )
        if (top_k > 0) & (top_k < size):
            candidates = tl.where(key >= kth_largest(key, mask, top_k, 32), candidates, 0.0)
        token = _drawn(candidates, mask, tl.load(u_ptr + row * stride_u))
        at = tl.arange(0, BLOCK_WINDOW)
        codes = tl.load(codes_ptr + row * stride_codes + at, at < WINDOW, -1)
        exist = tl.load(exist_ptr + row * stride_exist + at, at < WINDOW, 0) != 0
        if tl.sum(((codes == token) & exist).to(tl.int32), 0) >= most:
            token = _drawn(
                tl.where(offs == token, 0.0, p), mask, tl.load(u_ptr + row * stride_u + 1)
            )
    tl.store(out_ptr + row, checked(token, logits))


@triton.jit
def _drawn(p, mask, u):
    """The first id whose cumulated weight is above u of the sum."""
    cdf = tl.cumsum(p, 0)
    below = mask & (cdf <= u * tl.max(cdf, 0))
    last = tl.max(tl.where(p > 0, tl.arange(0, p.shape[0]), 0), 0)
    return tl.minimum(tl.sum(below.to(tl.int32), 0), last).to(tl.int64)


def sample_ras(
    logits: Tensor,
    u: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    recent: tuple[Tensor, Tensor],
    most: float,
) -> Tensor:
    """`sampling.sample_ras`, which draws in the order of ids: with the same probabilities, not the
    same ids."""
    codes = recent[0]
    exist = recent[1].to(torch.int8)
    assert codes.stride(1) == exist.stride(1) == u.stride(1) == 1
    out = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    window = codes.shape[1]
    _sample_ras_kernel[(len(logits),)](
        logits, u, temperature, top_p, top_k, codes, exist, out, logits.stride(0), u.stride(0), codes.stride(0),
        exist.stride(0), logits.shape[1], most,
        MIN_TEMPERATURE=MIN_TEMPERATURE, WINDOW=window, BLOCK=triton.next_power_of_2(logits.shape[1]),
        BLOCK_WINDOW=triton.next_power_of_2(window), num_warps=8, **PDL_LAUNCH,
    )  # fmt: skip
    return out
