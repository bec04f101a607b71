"""Codebooks 1 to 15 of a frame: fifteen draws of a small transformer with a fresh KV cache per frame.

See specs/qwen3_tts.md, 1.2 and 4c.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import DepthKV
from stentor.layers.rope import Rope
from stentor.layers.sampling import pick
from stentor.layers.transformer import Stack, StackConfig


@dataclass(frozen=True)
class Sampling:
    """Per-row parameters [B] of a draw."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor

    def draw(self, logits: Tensor, u: Tensor) -> Tensor:
        """logits [B, V] and uniforms u [B] -> ids [B]."""
        return pick(logits, u, self.temperature, self.top_k, self.top_p)


class DepthLoop:
    """The predictor, ready to run inside the step."""

    def __init__(
        self, c: StackConfig, stack: Stack, heads: Tensor, project: nn.Module, table: Tensor, offset: Tensor, rope: Rope
    ) -> None:
        """heads [15, vocab, hidden]; `project` takes the talker's hidden state to the predictor's width;
        table and offset: `talker.Tables.depth`, `.offset`."""
        self._stack, self._heads, self._project = stack, heads, project
        self._table, self._offset, self._rope = table, offset, rope
        self._shape = (c.layers, c.kv_heads, c.head_dim)

    def __call__(self, h: Tensor, first: Tensor, u: Tensor, sampling: Sampling) -> Tensor:
        """Talker output h [B, H] and codebook 0 `first` [B] -> the whole frame [B, 16]; u [B, 15]."""
        batch, steps = len(first), len(self._heads)
        layers, heads, dim = self._shape
        start = F.embedding(first, self._table)
        x = torch.stack((self._project(h), start), dim=1)
        kv = DepthKV(layers, batch, steps + 1, heads, dim, x)
        codes, places = [first], torch.arange(steps + 1, device=h.device)
        for g in range(steps):
            pos = places[kv.length : kv.length + x.shape[1]]
            logits = self._stack.head(x, kv, self._rope, pos, self._heads[g])
            kv.advance(x.shape[1])
            codes.append(sampling.draw(logits, u[:, g]))
            if g + 1 < steps:
                x = F.embedding(codes[-1] + self._offset[g + 1], self._table)[:, None]
        return torch.stack(codes, dim=-1)
