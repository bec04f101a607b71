"""Codebooks 1 to 15 of a frame: fifteen draws of a small transformer with a fresh KV cache per frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels.buffers import empty_aligned
from stentor.kernels.types import SampleOut, SamplingParams
from stentor.layers.attention import DepthKV
from stentor.layers.linear import linear
from stentor.layers.rope import Rope
from stentor.layers.sampling import pick
from stentor.layers.transformer import Stack, StackConfig
from stentor.models.qwen3_tts.talker import Tables


@dataclass(frozen=True)
class Sampling:
    """Per-row parameters [B] of a draw."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor

    def draw(self, logits: Tensor, u: Tensor) -> Tensor:
        """logits [B, V] and uniforms u [B] -> ids [B]."""
        return pick(logits, u, self.temperature, self.top_k, self.top_p)

    def asked(self, u: Tensor) -> SamplingParams:
        """The same draw for kernels."""
        return SamplingParams(u, self.temperature, self.top_k, self.top_p)


class DepthLoop:
    """The predictor, ready to run inside the step."""

    def __init__(
        self, c: StackConfig, stack: Stack, heads: Tensor, project: nn.Module, tables: Tables, rope: Rope
    ) -> None:
        """heads [15, vocab, hidden]; `project` takes the talker's hidden state to the predictor's width."""
        self._stack, self._heads, self._project = stack, heads, project
        self._table, self._starts, self._rope = tables.depth, tables.starts, rope
        self._places = torch.arange(len(heads) + 1, device=heads.device)
        self._shape = (c.layers, c.kv_heads, c.head_dim)

    def __call__(self, h: Tensor, first: Tensor, u: Tensor, sampling: Sampling) -> Tensor:
        """Talker output h [B, H] and codebook 0 `first` [B] -> the whole frame [B, 16]; u [B, 15]."""
        batch, steps = len(first), len(self._heads)
        layers, heads, dim = self._shape
        start = F.embedding(first, self._table)
        x = torch.stack((self._project(h), start), dim=1)
        kv = DepthKV(layers, batch, steps + 1, heads, dim, x)
        codes = [first]
        for g in range(steps):
            logits = self._logits(x, kv, g)
            codes.append(sampling.draw(logits, u[:, g]))
            if g + 1 < steps:
                x = F.embedding(codes[-1], self._book(g + 1))[:, None]
        return torch.stack(codes, dim=-1)

    def fused(self, h: Tensor, first: Callable[[SampleOut], None], u: Tensor, sampling: Sampling) -> Tensor:
        """The same loop with draws that write the next token themselves; `first` draws codebook 0. Codes are int32."""
        batch, steps = len(h), len(self._heads)
        layers, heads, dim = self._shape
        codes = empty_aligned(steps + 1, batch, torch.int32, h.device)
        x = h.new_empty(batch, 2, self._table.shape[1])
        first(SampleOut(codes[0], self._table, x, self._projected(h)))
        kv = DepthKV(layers, batch, steps + 1, heads, dim, x)
        for g in range(steps):
            logits = self._logits(x, kv, g)
            into = SampleOut(codes[g + 1])
            if g + 1 < steps:
                x = h.new_empty(batch, 1, x.shape[2])
                into = SampleOut(codes[g + 1], self._book(g + 1), x)
            kernels.sampling.sample_into(logits, sampling.asked(u[:, g]), into)
        return codes.T

    def _book(self, g: int) -> Tensor:
        """The rows of codebook g and of those behind it."""
        return self._table[self._starts[g] :]

    def _logits(self, x: Tensor, kv: DepthKV, g: int) -> Tensor:
        """Of codebook g + 1, from the new tokens x [B, n, H]."""
        pos = self._places[kv.length : kv.length + x.shape[1]]
        logits = self._stack.head(x, kv, self._rope, pos, self._heads[g])
        kv.advance(x.shape[1])
        return logits

    def _projected(self, h: Tensor) -> Tensor:
        layer = self._project
        return linear(h, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else layer(h)
