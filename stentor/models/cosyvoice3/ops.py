"""Operations between the GEMMs of the flow's transformer: reference formulas, and kernels where
they are enabled."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.models.cosyvoice3.config import DIT_EPS, TAIL


def add_norm(
    x: Tensor, delta: Tensor | None, gate: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    """(s, LayerNorm(s) * scale + shift) for s = x + gate * delta, or s = x without delta. x, delta
    [..., C]."""
    if kernels.enabled(Kernel.NORM, x):
        return kernels.norm_rope.add_modulated_norm(
            x, delta, gate, scale, shift, DIT_EPS, constant=True
        )
    if delta is None:
        total = x
    else:
        total = torch.addcmul(x, gate, delta)
    return total, F.layer_norm(total, total.shape[-1:], scale, shift, DIT_EPS)


def position_conv(conv: nn.Conv1d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Mish of a grouped causal convolution of x [B, 2, T, C], plus the residual. Zeros stand before
    x."""
    if kernels.enabled(Kernel.CONV1D, x):
        from stentor.models.cosyvoice3.kernels import position_conv as fused
        from stentor.models.cosyvoice3.kernels import takes

        if takes(conv.weight.shape[1]):
            assert conv.bias is not None
            return fused(x, conv.weight, conv.bias, residual)
    y = F.pad(x, (0, 0, TAIL, 0)).flatten(0, 1).transpose(1, 2)
    y = F.mish(conv(y)).transpose(1, 2).reshape(x.shape)
    if residual is None:
        return y
    return residual + y


def taps_product(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """A convolution of x [B, n, C] by weight [O, C, k] as one product, [B, n - k + 1, O].

    It is for few frames in float32 and float64, where the library's convolutions leave most of a
    GPU idle.
    """

    def product(rows: Tensor) -> Tensor:
        taps = rows.unfold(1, weight.shape[2], 1).flatten(2)
        return F.linear(taps, weight.flatten(1), bias)

    return by_row(product, x)


def by_row(operation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an operation of a library to x [B, ...].

    Where a row must not depend on the number of rows (`kernels.batch_invariant`), each has a call
    of its own, on a copy: the shape of a call and the address of an operand decide the order in
    which a library adds up.
    """
    if not kernels.is_batch_invariant():
        return operation(x)
    return torch.cat([operation(row[None].clone()) for row in x])
