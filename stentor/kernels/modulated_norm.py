"""Adaptive layer norm of a diffusion transformer: the gated residual addition before it, then scale and shift."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait


@triton.jit(do_not_specialize=["tokens"])
def _add_norm_kernel(
    x_ptr, delta_ptr, gate_ptr, scale_ptr, shift_ptr, sum_ptr, out_ptr, tokens, stride_x, stride_token, stride_gate,
    stride_scale, stride_shift, dim, eps,
    HAS_DELTA: tl.constexpr, CONSTANT: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """One token. CONSTANT: scale and shift are weights, which may be read before the kernel in front has ended."""
    if not CONSTANT:
        pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    sequence = row // tokens
    offs = tl.arange(0, BLOCK)
    mask = offs < dim
    scale = tl.load(scale_ptr + sequence * stride_scale + offs, mask, 0.0).to(tl.float32)
    shift = tl.load(shift_ptr + sequence * stride_shift + offs, mask, 0.0).to(tl.float32)
    if CONSTANT:
        pdl_wait(USE_PDL)
    at = row * dim + offs
    x = tl.load(x_ptr + sequence * stride_x + (row - sequence * tokens) * stride_token + offs, mask, 0.0)
    if HAS_DELTA:
        gate = tl.load(gate_ptr + sequence * stride_gate + offs, mask, 0.0).to(tl.float32)
        x = (x.to(tl.float32) + gate * tl.load(delta_ptr + at, mask, 0.0).to(tl.float32)).to(x.dtype)
        tl.store(sum_ptr + at, x, mask)
    y = tl.where(mask, x.to(tl.float32), 0.0)
    y = tl.where(mask, y - tl.sum(y, 0) / dim, 0.0)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / dim + eps) * scale + shift
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), mask)


def add_norm(
    x: Tensor, delta: Tensor | None, gate: Tensor, scale: Tensor, shift: Tensor, eps: float, constant: bool = False
) -> tuple[Tensor, Tensor]:
    """(s, norm(s) * scale + shift) for s = x + gate * delta, or s = x without delta.

    x and delta [..., T, C]. gate, scale and shift [C], or of each sequence of x [S, T, C] as [S, C] or [1, C].
    constant: they are weights. What a step computes is not.
    """
    tokens, dim = x.shape[-2:]
    rows = x.reshape(-1, tokens, dim)
    rows = rows if rows.stride(2) == 1 else rows.contiguous()
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    total = rows if delta is None else torch.empty_like(out)
    _add_norm_kernel[(len(rows) * tokens,)](
        rows, rows if delta is None else delta.contiguous(), gate, scale, shift, total, out, tokens, rows.stride(0),
        rows.stride(1), _stride(gate), _stride(scale), _stride(shift), dim, eps,
        HAS_DELTA=delta is not None, CONSTANT=constant, BLOCK=triton.next_power_of_2(dim), USE_PDL=USE_PDL, num_warps=4,
        **PDL_LAUNCH,
    )  # fmt: skip
    return (x if delta is None else total.view(x.shape)), out.view(x.shape)


def _stride(numbers: Tensor) -> int:
    """From a sequence's numbers to the next one's. 0: all sequences have the same."""
    assert numbers.stride(-1) == 1
    return 0 if numbers.ndim == 1 or len(numbers) == 1 else numbers.stride(0)
