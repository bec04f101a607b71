"""Slow transformer over frames, fast transformer over the codes of one frame."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels.buffers import empty_aligned
from stentor.kernels.types import SampleOut, SamplingParams
from stentor.layers.attention import DepthKV
from stentor.layers.linear import linear
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack, StackConfig
from stentor.models.base import KVView, Rows
from stentor.models.fish_s2.config import LanguageConfig
from stentor.models.fish_s2.sampling import sample_first_code, sample_ranked_into
from stentor.models.weights import meta_init


class Language(nn.Module):
    """Both transformers. Parameters start on the meta device, in `dtype`."""

    head: Tensor
    positions: Tensor
    first_row: Tensor

    def __init__(self, c: LanguageConfig, semantic: int, im_end: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config, self.semantic, self.im_end = c, semantic, im_end
        hidden = c.slow.hidden
        with meta_init():
            self.embeddings = nn.Embedding(c.vocab, hidden)
            self.codebook_embeddings = nn.Embedding(c.codes * c.books, hidden)
            self.slow = Stack(c.slow)
            self.fast_embeddings = nn.Embedding(c.codes, hidden)
            self.fast = Stack(c.fast)
            self.fast_output = nn.Linear(hidden, c.codes, bias=False)
        self.to(dtype)
        self.slow_rope = _rope(c.slow, c.max_model_len, c.rope_base)
        self.fast_rope = _rope(c.fast, c.books, c.rope_base)
        self.register_buffer("positions", torch.arange(c.books), persistent=False)
        self.register_buffer("first_row", c.codes * torch.arange(c.books), persistent=False)

    def process_weights_after_loading(self) -> None:
        """Select the tied output rows that can be sampled: those of the codes, then that of im_end."""
        table = self.embeddings.weight.detach()
        rows = (table[self.semantic : self.semantic + self.config.codes], table[self.im_end : self.im_end + 1])
        self.register_buffer("head", torch.cat(rows), persistent=False)

    def embed_codes(self, frames: Tensor) -> Tensor:
        """Input of positions that hold frames [N, books]."""
        scale = math.sqrt(self.config.books + 1)
        table, tokens = self.codebook_embeddings.weight, self.embeddings.weight
        if kernels.enabled(kernels.Kernel.EMBED, table):
            from stentor.models.fish_s2.kernels import embed_codes

            return embed_codes(frames, self.first_row, table, tokens, self.semantic, scale)
        token = self.embeddings(self.semantic + frames[:, 0])
        codes = self.codebook_embeddings(frames + self.first_row).sum(-2)
        out: Tensor = (token + codes) / scale
        return out

    def hidden(self, x: Tensor, kv: KVView) -> Tensor:
        """Slow transformer, after its final norm."""
        out: Tensor = self.slow(x, kv.attend, self.slow_rope, kv.pos)
        return out

    def logits(self, h: Tensor) -> Tensor:
        """h [B, hidden] -> [B, codes + 1]. The last one is im_end."""
        return linear(h, self.head)

    def frame(self, h: Tensor, rows: Rows, u: Tensor) -> tuple[Tensor, Tensor]:
        """Slow transformer's output h [B, hidden] and uniforms u [B, books + 1] -> the frame [B, books], and [B] bool,
        whether it is the end (its first code is 0 then).

        The fast transformer's first pass takes two positions, the hidden state and the first code: both are known.
        """
        fast, c = self.config.fast, self.config
        parameters = (rows["temperature"], rows["top_k"], rows["top_p"])
        codes = empty_aligned(c.books, len(h), torch.int64, h.device)
        table = self.fast_embeddings.weight
        x = h.new_empty(len(h), 2, h.shape[1])
        first = SampleOut(codes[0], table, x, h)
        stop = sample_first_code(self.logits(h), SamplingParams(u[:, :2], *parameters), first, rows)
        kv = DepthKV(fast.layers, len(h), c.books, fast.kv_heads, fast.head_dim, h)
        for i in range(1, c.books):
            logits = self._next_logits(x, kv)
            out = SampleOut(codes[i])
            if i + 1 < c.books:
                x = h.new_empty(len(h), 1, h.shape[1])
                out = SampleOut(codes[i], table, x)
            sample_ranked_into(logits, SamplingParams(u[:, i + 1], *parameters), out)
        return codes.T, stop

    def _next_logits(self, x: Tensor, kv: DepthKV) -> Tensor:
        """Logits of the code that follows the new tokens x [B, n, hidden]."""
        pos = self.positions[kv.length : kv.length + x.shape[1]]
        logits = self.fast.head(x, kv.attend, self.fast_rope, pos, self.fast_output.weight)
        kv.advance(x.shape[1])
        return logits


def _rope(c: StackConfig, positions: int, base: float) -> Rope:
    """Interleaved, in float32, by tables rounded to bfloat16 whatever the model's dtype."""
    return Rope(angles(c.head_dim, positions, base), torch.bfloat16, interleaved=True, in_float32=True)
