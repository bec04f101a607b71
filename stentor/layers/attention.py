"""Attention over short, dense sequences: bidirectional stacks, depth transformers and training.

Attention over a request's whole history is the engine's (engine/running/kv_cache.py). All
implementations have the signature `Attend`: they take q and k as projected, and they apply head
norms and RoPE themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.configs import LOCAL_TOKENS
from stentor.layers.qk_norm_rope import NormRope


class Attend(Protocol):
    """Attention of one layer, over whatever history the implementation keeps."""

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norm_rope: NormRope,
    ) -> Tensor:
        """q [..., Hq, D], k and v [..., Hkv, D], all as projected -> [..., Hq, D].

        `norm_rope` holds the head norms and the RoPE of this layer. The implementation applies
        them, in its kernel or by `norm_rope.apply`.
        """
        ...


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """q [B, T, Hq, D], k and v [B, S, Hkv, D] (Hq a multiple of Hkv) -> [B, T, Hq, D]. mask [B, 1,
    T, S] or [T, S]."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def sdpa_once(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """`sdpa` for a length that may never come again: references have any. On CUDA it takes a kernel
    that needs no plan, where the library might have cuDNN plan for the length."""
    same_heads = q.shape[2] == k.shape[2]
    if not (q.is_cuda and torch.is_inference_mode_enabled() and same_heads):
        return sdpa(q, k, v, mask, causal)
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    result = efficient(q, k, v, mask, False, 0.0, causal)
    out: Tensor = result[0]
    return out.transpose(1, 2)


def full(
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm_rope: NormRope,
) -> Tensor:
    """Every token sees every token of its sequence: q [B, T, Hq, D], k and v [B, S, Hkv, D]."""
    tokens = max(q.shape[1], k.shape[1])
    if tokens <= LOCAL_TOKENS and kernels.enabled(Kernel.LOCAL, q):
        q, k, rest = norm_rope.for_kernel(q, k)
        return kernels.short_attention.local_attention(q, k, v, rest, norm_rope.first_query)
    q, k = norm_rope.apply(q, k)
    return sdpa(q, k, v)


def causal(
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norm_rope: NormRope,
) -> Tensor:
    """Each token sees itself and those before it: q [B, T, Hq, D]. For whole sequences (references,
    training)."""
    q, k = norm_rope.apply(q, k)
    return sdpa_once(q, k, v, causal=True)


class KeptQueries:
    """Attention that keeps the queries of the first `heads` heads of some layers, each [..., heads,
    D] with norms and RoPE, in the order in which the layers run."""

    def __init__(self, attend: Attend, layers: Collection[int], heads: int) -> None:
        self._attend = attend
        self._layers = layers
        self._heads = heads
        self.queries: list[Tensor] = []

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norm_rope: NormRope,
    ) -> Tensor:
        """`Attend`: q [..., Hq, D], k and v [..., Hkv, D]."""
        if layer in self._layers:
            queries = q[..., : self._heads, :].contiguous()
            key = k[..., :1, :].contiguous()
            rotated, _ = norm_rope.apply(queries, key)
            self.queries.append(rotated)
        return self._attend(layer, q, k, v, norm_rope)


class DepthKV:
    """Keys and values of a depth loop: a few positions, local to one step, with lengths known when
    it is traced."""

    def __init__(
        self,
        layers: int,
        batch: int,
        positions: int,
        heads: int,
        dim: int,
        like: Tensor,
    ) -> None:
        shape = (layers, 2, batch, positions, heads, dim)
        self.cache = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.length = 0

    def advance(self, count: int) -> None:
        """Declare that the `count` tokens just attended by every layer are complete."""
        self.length += count

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norm_rope: NormRope,
    ) -> Tensor:
        """n new tokens per row, q [B, n, Hq, D]. They see all earlier ones and, causally, each
        other."""
        if kernels.enabled(Kernel.DEPTH, q):
            q, k, rest = norm_rope.for_kernel(q, k)
            cache = self.cache[layer]
            return kernels.short_attention.depth_attention(cache, self.length, q, k, v, rest)
        q, k = norm_rope.apply(q, k)
        new = q.shape[1]
        end = self.length + new
        keys = self.cache[layer, 0]
        values = self.cache[layer, 1]
        keys[:, self.length : end] = k
        values[:, self.length : end] = v
        # A single new token sees all that is stored.
        mask = None
        if new > 1:
            positions = torch.arange(end, device=q.device)
            queries = positions[self.length :]
            mask = positions[None, :] <= queries[:, None]
        return sdpa(q, keys[:, :end], values[:, :end], mask)
