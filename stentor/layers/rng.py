"""Counter-based random numbers: a pure function of (seed, frame, draw). SplitMix64 finaliser
(Steele et al., 2014).

The audio of a request therefore does not depend on its batch, slot, padding or preemption, nor on
how late the host reads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stentor import kernels
from stentor.kernels.constants import GOLDEN, MIX1, MIX2


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    mask = (1 << (64 - bits)) - 1
    return (z >> bits) & mask


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * MIX1
    z = (z ^ _shift(z, 27)) * MIX2
    return z ^ _shift(z, 31)


def uniform(seed: Tensor, step: Tensor, draws: int) -> Tensor:
    """Uniforms in (0, 1), float32 [B, draws], for int64 `seed` [B] and `step` [B]."""
    if not draws:
        return torch.empty(len(seed), 0, device=seed.device)
    if kernels.slot_kernels_enabled(seed.device):
        return kernels.rng.uniform(seed, step, draws)
    frame = GOLDEN * (step + 1)
    key = _mix(_mix(seed) + frame)
    index = torch.arange(1, draws + 1, device=seed.device, dtype=torch.int64)
    mixed = _mix(key[:, None] + GOLDEN * index)
    bits = _shift(mixed, 40)  # 24 bits: exact in float32
    # The half keeps the result above 0, whose logarithm is infinite. The largest rounds to 1 and is
    # clamped.
    scaled = (bits.to(torch.float32) + 0.5) * 2.0**-24
    return scaled.clamp_max(1.0 - 2.0**-24)


def normal(u: Tensor) -> Tensor:
    """Standard normals [B, n] from uniforms u [B, n], n even (Box-Muller, both branches)."""
    a, b = u.chunk(2, dim=-1)
    radius = torch.sqrt(-2.0 * torch.log(a))
    angle = (2.0 * math.pi) * b
    first = radius * torch.cos(angle)
    second = radius * torch.sin(angle)
    return torch.cat((first, second), dim=-1)


def grid_normal(u: Tensor, outer: int, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normals [B, n / outer, outer] from uniforms u [B, n], times scale [B].

    They are drawn as [B, outer, n / outer] and transposed. They are rounded to `dtype` before and
    after the scaling.
    """
    if kernels.slot_kernels_enabled(u.device) and u.stride(1) == 1:
        return kernels.rng.grid_normal(u, outer, scale, dtype)
    drawn = normal(u).view(len(u), outer, -1)
    rounded = drawn.transpose(1, 2).to(dtype)
    scaled = rounded.float() * scale.view(-1, 1, 1)
    return scaled.to(dtype)
