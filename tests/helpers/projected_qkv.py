"""Queries, keys and values as attention gets them, with the norms and RoPE that it applies to them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stentor.kernels.types import QKNormRope
from stentor.layers.norm import RMSNorm
from stentor.layers.rope import Rope, angles
from tests.helpers.kernel_tests import DEVICE, random

NORM_ROPES = [
    (True, True, True, False),
    (False, False, True, True),
    (True, True, False, False),
    (False, True, True, True),
]
"""(interleaved, in_float32, normed, cast_first)"""


def projected(
    *rows: int, heads: int, group: int, dim: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q [*rows, heads * group, dim], k and v [*rows, heads, dim]: slices of one projection."""
    whole = random(*rows, (group + 2) * heads * dim, dtype=dtype)
    q, k, v = whole.split((group * heads * dim, heads * dim, heads * dim), -1)
    return q.unflatten(-1, (-1, dim)), k.unflatten(-1, (-1, dim)), v.unflatten(-1, (-1, dim))


class RandomNormRope:
    """Norms with random weights and RoPE: what a kernel is given, and the same by PyTorch."""

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype,
        interleaved: bool,
        in_float32: bool,
        normed: bool,
        cast_first: bool,
    ) -> None:
        self.rope = Rope(angles(dim, 60, 1e4), torch.bfloat16, interleaved, in_float32).to(DEVICE)
        norms = [RMSNorm(dim, 1e-6, cast_first).to(DEVICE, dtype) for _ in range(2)]
        for norm in norms:
            norm.weight.data = random(dim, dtype=dtype)
        weights = (norms[0].weight, norms[1].weight, 1e-6, cast_first) if normed else None
        self.args = QKNormRope(self.rope.cos, self.rope.sin, interleaved, in_float32, weights)
        self.norms: list[Callable[[Tensor], Tensor]] = [*norms] if normed else [lambda x: x] * 2

    def apply(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        """q and k after norms and RoPE at pos."""
        norm_q, norm_k = self.norms
        return self.rope.rotate(norm_q(q), self.rope.at(pos)), self.rope.rotate(
            norm_k(k), self.rope.at(pos)
        )
