"""Random numbers of a step: uniforms by SplitMix64 and normals by Box-Muller. Their reference is
`layers.rng`."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from stentor.kernels import constants
from stentor.kernels.pdl import PDL_LAUNCH, pdl_wait

GOLDEN = tl.constexpr(constants.GOLDEN)
MIX1 = tl.constexpr(constants.MIX1)
MIX2 = tl.constexpr(constants.MIX2)
MAX_BLOCK = 256  # draws of a CTA


@triton.jit
def _mix(z):
    # A right shift of a signed integer copies the sign. The masks make the shifts logical.
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MIX2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit(do_not_specialize=["num_draws"])
def _uniform_kernel(
    seed_ptr, step_ptr, out_ptr, num_draws, BLOCK: tl.constexpr, USE_PDL: tl.constexpr
):
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    key = _mix(_mix(tl.load(seed_ptr + row)) + (tl.load(step_ptr + row) + 1) * GOLDEN)
    bits = (_mix(key + (offs + 1).to(tl.int64) * GOLDEN) >> 40) & 0xFFFFFF
    # The half keeps u above 0, whose logarithm is infinite. The minimum is for the largest draw,
    # which rounds to 1.
    u = tl.minimum((bits.to(tl.float32) + 0.5) * (1.0 / 16777216.0), 1.0 - 1.0 / 16777216.0)
    tl.store(out_ptr + row * num_draws + offs, u, offs < num_draws)


def uniform(seed: Tensor, step: Tensor, draws: int) -> Tensor:
    """Uniforms in (0, 1), float32 [B, draws], for int64 seed and step [B], bit by bit those of
    `layers.rng.uniform`."""
    out = torch.empty(len(seed), draws, dtype=torch.float32, device=seed.device)
    block = min(MAX_BLOCK, triton.next_power_of_2(draws))
    _uniform_kernel[(len(seed), triton.cdiv(draws, block))](
        seed, step, out, draws, BLOCK=block, num_warps=1, **PDL_LAUNCH
    )
    return out


@triton.jit(do_not_specialize=["stride_u", "half"])
def _grid_normal_kernel(
    u_ptr, scale_ptr, out_ptr, stride_u, half,
    OUTER: tl.constexpr, INNER: tl.constexpr, TWO_PI: tl.constexpr, BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    pdl_wait(USE_PDL)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < half
    radius = tl.sqrt(-2.0 * tl.log(tl.load(u_ptr + row * stride_u + offs, mask, 0.5)))
    angle = TWO_PI * tl.load(u_ptr + row * stride_u + half + offs, mask, 0.0)
    scale = tl.load(scale_ptr + row)
    row_ptr = out_ptr + row * (2 * half)
    offs_sin = offs + half
    cosine = (radius * tl.cos(angle)).to(dtype).to(tl.float32) * scale
    sine = (radius * tl.sin(angle)).to(dtype).to(tl.float32) * scale
    tl.store(row_ptr + (offs % INNER) * OUTER + offs // INNER, cosine.to(dtype), mask)
    tl.store(row_ptr + (offs_sin % INNER) * OUTER + offs_sin // INNER, sine.to(dtype), mask)


def grid_normal(u: Tensor, outer: int, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normals of uniforms u [B, n], drawn as [B, outer, n / outer] and transposed: [B, n /
    outer, outer], rounded to `dtype`, then times scale [B] and rounded again."""
    batch, count = u.shape
    out = torch.empty(batch, count // outer, outer, dtype=dtype, device=u.device)
    _grid_normal_kernel[(batch,)](
        u, scale, out, u.stride(0), count // 2, OUTER=outer, INNER=count // outer, TWO_PI=2.0 * math.pi,
        BLOCK=triton.next_power_of_2(count // 2), num_warps=4, **PDL_LAUNCH,
    )  # fmt: skip
    return out
