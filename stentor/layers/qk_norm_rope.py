"""Norms of the heads, then RoPE, of projected queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.types import QKNormRope

if TYPE_CHECKING:
    from stentor.layers.norm import RMSNorm
    from stentor.layers.rope import CosSin, Rope


class RopePositions:
    """A RoPE and the positions of the tokens of one call: `pos` [...], or 0, 1, 2, ... of each
    sequence where None.

    All layers of a stack share one object, so that rows of the tables are looked up once.
    """

    def __init__(self, rope: Rope, pos: Tensor | None = None) -> None:
        self.rope = rope
        self.pos = pos
        self._cos_sin: CosSin | None = None
        self._factors: CosSin | None = None

    def cos_sin(self, tokens: int) -> CosSin:
        """Rows of the tables [..., tokens, 1, dim / 2] for sequences (or packed rows) of `tokens`
        tokens."""
        if self._cos_sin is None:
            if self.pos is None:
                self._cos_sin = self.rope.first(tokens)
            else:
                self._cos_sin = self.rope.at(self.pos)
        return self._cos_sin

    def factors(self, tokens: int) -> CosSin:
        """Cosines and sines as `Rope.turn` takes them, [..., tokens, 1, dim]."""
        if self._factors is None:
            self._factors = self.rope.factors(self.cos_sin(tokens))
        return self._factors


@dataclass(frozen=True)
class NormRope:
    """Norms of the heads of q and k, and their RoPE. Each may be absent.

    Where q has fewer tokens than k, its tokens are those from `first_query` on.
    """

    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None
    positions: RopePositions | None = None
    first_query: int = 0

    def apply(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q [..., T, Hq, D] and k [..., S, Hkv, D] after norms and RoPE."""
        if self.positions is None:
            return self._norms(q, k)
        rope = self.positions.rope
        tokens = k.shape[-3]
        if kernels.enabled(Kernel.ROPE, q):
            cos_sin = self.positions.cos_sin(tokens)
            if q.shape[-3] == tokens:  # one kernel does both where q and k have the same positions
                args = rope.kernel_args(cos_sin)
                return kernels.norm_rope.qk_norm_rope(q, k, *self._weights(), args)
            q, k = self._norms(q, k)
            q_cos_sin = self._of_queries(cos_sin, q)
            return rope.rotate(q, q_cos_sin), rope.rotate(k, cos_sin)
        q, k = self._norms(q, k)
        factors = self.positions.factors(tokens)
        if q.shape[-3] == tokens:
            num_heads = q.shape[-2]
            turned = rope.turn(torch.cat((q, k), dim=-2), factors)
            return turned[..., :num_heads, :], turned[..., num_heads:, :]
        q_factors = self._of_queries(factors, q)
        return rope.turn(q, q_factors), rope.turn(k, factors)

    def _of_queries(self, tables: CosSin, q: Tensor) -> CosSin:
        """The part of tables [..., S, 1, n] that belongs to the tokens of q [..., T, Hq, D]."""
        cos, sin = tables
        queries = slice(self.first_query, self.first_query + q.shape[-3])
        return cos[..., queries, :, :], sin[..., queries, :, :]

    def for_kernel(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, QKNormRope | None]:
        """q, k, and the norms and RoPE that an attention kernel has to apply. None: they have been
        applied."""
        if self.positions is None or not kernels.enabled(Kernel.QK_NORM_ROPE, q):
            return *self.apply(q, k), None
        rope = self.positions.rope
        a = self.q_norm
        b = self.k_norm
        if a is None or b is None:
            norms = None
        else:
            norms = (a.weight, b.weight, a.eps, a.weight_after_cast)
        rest = QKNormRope(rope.cos, rope.sin, rope.interleaved, rope.in_float32, norms)
        return q, k, rest

    def _norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        return q, k

    def _weights(self) -> tuple[Tensor | None, Tensor | None, float, bool]:
        a = self.q_norm
        b = self.k_norm
        if a is None or b is None:
            return None, None, 0.0, False
        return a.weight, b.weight, a.eps, a.weight_after_cast
