"""Attention over short, dense sequences: bidirectional stacks, depth transformers and training.

Attention over a request's whole history is the engine's (engine/kv.py); both have the shape of `layers.types.Attend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.configs import LOCAL_TOKENS
from stentor.kernels.types import QKNormRope


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """q [B, T, Hq, D], k and v [B, S, Hkv, D] (Hq a multiple of Hkv) -> [B, T, Hq, D]. mask [B, 1, T, S] or [T, S]."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


class Turning(ABC):
    """An attention (`layers.types.Attend`) whose kernel can do the norms and positions of queries and keys itself."""

    @abstractmethod
    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries and keys are ready to meet."""

    @abstractmethod
    def turns(self, x: Tensor) -> bool:
        """Whether `turned` serves the tokens x [..., hidden]."""

    @abstractmethod
    def turned(self, layer: int, q: Tensor, k: Tensor, v: Tensor, turn: QKNormRope | None) -> Tensor:
        """Queries and keys are as projected."""


class Full(Turning):
    """Every token sees every token of its sequence: q [B, T, Hq, D]; positions count from 0."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if max(q.shape[1], k.shape[1]) <= LOCAL_TOKENS and kernels.enabled(Kernel.LOCAL, q):
            return kernels.attention.local_attention(q, k, v)
        return sdpa(q, k, v)

    def turns(self, x: Tensor) -> bool:
        return (
            x.shape[1] <= LOCAL_TOKENS and kernels.enabled(Kernel.LOCAL, x) and kernels.enabled(Kernel.QK_NORM_ROPE, x)
        )

    def turned(self, layer: int, q: Tensor, k: Tensor, v: Tensor, turn: QKNormRope | None) -> Tensor:
        return kernels.attention.local_attention(q, k, v, turn)


full = Full()


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each token sees itself and what came before: q [B, T, Hq, D]. For whole sequences (training, checks)."""
    return sdpa(q, k, v, causal=True)


class DepthKV(Turning):
    """Scratch keys and values of a depth loop: a few positions, local to one step, lengths known when it is traced.

    Call it with n new tokens per row: q [B, n, Hq, D]. Tokens see all earlier ones and, causally, each other.
    """

    def __init__(self, layers: int, batch: int, positions: int, heads: int, dim: int, like: Tensor) -> None:
        shape = (layers, 2, batch, positions, heads, dim)
        self.cache = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.length = 0

    def advance(self, count: int) -> None:
        """Declare that the `count` tokens just attended by every layer are complete."""
        self.length += count

    def turns(self, x: Tensor) -> bool:
        return kernels.enabled(Kernel.DEPTH, x) and kernels.enabled(Kernel.QK_NORM_ROPE, x)

    def turned(self, layer: int, q: Tensor, k: Tensor, v: Tensor, turn: QKNormRope | None) -> Tensor:
        return kernels.attention.depth_attention(self.cache[layer], self.length, q, k, v, turn)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if kernels.enabled(Kernel.DEPTH, q):
            return kernels.attention.depth_attention(self.cache[layer], self.length, q, k, v)
        new = q.shape[1]
        end = self.length + new
        keys, values = self.cache[layer, 0], self.cache[layer, 1]
        keys[:, self.length : end] = k
        values[:, self.length : end] = v
        mask = None
        if new > 1:
            span = torch.arange(end, device=q.device)
            mask = span[None, :] <= span[self.length :, None]
        return sdpa(q, keys[:, :end], values[:, :end], mask)
