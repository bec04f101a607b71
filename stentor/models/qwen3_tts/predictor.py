"""Codebooks 1 to 15 of a frame: fifteen samples of a small transformer, with a fresh KV cache per frame."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stentor.kernels.buffers import empty_aligned
from stentor.kernels.types import SampleOut, SamplingParams
from stentor.layers.attention import DepthKV
from stentor.layers.linear import linear
from stentor.layers.rope import Rope
from stentor.layers.sampling import sample_into
from stentor.layers.transformer import Stack, StackConfig
from stentor.models.qwen3_tts.talker import Tables


class FrameBuffers(NamedTuple):
    """A frame while it is made: codes [16, B] int32, and the predictor's first two tokens x [B, 2, H]."""

    codes: Tensor
    x: Tensor
    first: SampleOut
    """Where the sampler of codebook 0 writes. It fills `x`."""


class DepthLoop:
    """The predictor, ready to run inside the step."""

    def __init__(
        self, c: StackConfig, stack: Stack, heads: Tensor, project: nn.Module, tables: Tables, rope: Rope
    ) -> None:
        """heads [15, vocab, hidden]. `project` maps the talker's hidden state to the predictor's width."""
        self._stack, self._heads, self._project = stack, heads, project
        self._table, self._starts, self._rope = tables.depth, tables.starts, rope
        self._pos = torch.arange(len(heads) + 1, device=heads.device)
        self._shape = (c.layers, c.kv_heads, c.head_dim)

    def start(self, h: Tensor) -> FrameBuffers:
        """The buffers of a frame after the talker's output h [B, H]."""
        codes = empty_aligned(len(self._heads) + 1, len(h), torch.int32, h.device)
        x = h.new_empty(len(h), 2, self._table.shape[1])
        return FrameBuffers(codes, x, SampleOut(codes[0], self._table, x, self._projected(h)))

    def __call__(self, frame: FrameBuffers, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
        """The whole frame [B, 16] once codebook 0 is sampled, with u [B, 15] and parameters [B]."""
        codes, x, _ = frame
        batch, steps = len(x), len(self._heads)
        layers, heads, dim = self._shape
        kv = DepthKV(layers, batch, steps + 1, heads, dim, x)
        for g in range(steps):
            logits = self._logits(x, kv, g)
            out = SampleOut(codes[g + 1])
            if g + 1 < steps:
                x = x.new_empty(batch, 1, x.shape[2])
                out = SampleOut(codes[g + 1], self._book(g + 1), x)
            sample_into(logits, SamplingParams(u[:, g], temperature, top_k, top_p), out)
        return codes.T

    def _book(self, g: int) -> Tensor:
        """The rows of codebook g and of all later ones."""
        return self._table[self._starts[g] :]

    def _logits(self, x: Tensor, kv: DepthKV, g: int) -> Tensor:
        """Logits of codebook g + 1, from the new tokens x [B, n, H]."""
        pos = self._pos[kv.length : kv.length + x.shape[1]]
        logits = self._stack.head(x, kv.attend, self._rope, pos, self._heads[g])
        kv.advance(x.shape[1])
        return logits

    def _projected(self, h: Tensor) -> Tensor:
        layer = self._project
        return linear(h, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else layer(h)
