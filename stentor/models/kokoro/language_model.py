"""The language model of phonemes, an ALBERT: one layer of attention, run several times."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.models.kokoro.config import EMBEDDING, BertConfig

EPS = 1e-12


class Embeddings(nn.Module):
    def __init__(
        self,
        tokens: int,
        c: BertConfig,
    ) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(tokens, EMBEDDING)
        self.position_embeddings = nn.Embedding(c.positions, EMBEDDING)
        self.token_type_embeddings = nn.Embedding(2, EMBEDDING)
        self.LayerNorm = nn.LayerNorm(EMBEDDING, eps=EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.word_embeddings(tokens) + self.position_embeddings(places)
        normed: Tensor = self.LayerNorm(x + self.token_type_embeddings.weight[0])
        return normed


class Attention(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.query = nn.Linear(c.hidden, c.hidden)
        self.key = nn.Linear(c.hidden, c.hidden)
        self.value = nn.Linear(c.hidden, c.hidden)
        self.dense = nn.Linear(c.hidden, c.hidden)
        self.LayerNorm = nn.LayerNorm(c.hidden, eps=EPS)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
    ) -> Tensor:
        q, k, v = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).flatten(2)
        normed: Tensor = self.LayerNorm(x + self.dense(y))
        return normed

    def _heads(self, x: Tensor) -> Tensor:
        batch, count, _ = x.shape
        return x.view(batch, count, self.heads, -1).transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, c: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(c)
        self.ffn = nn.Linear(c.hidden, c.ffn)
        self.ffn_output = nn.Linear(c.ffn, c.hidden)
        self.full_layer_layer_norm = nn.LayerNorm(c.hidden, eps=EPS)

    def forward(
        self,
        x: Tensor,
        mask: Tensor,
    ) -> Tensor:
        x = self.attention(x, mask)
        y = self.ffn_output(F.gelu(self.ffn(x), approximate="tanh"))
        normed: Tensor = self.full_layer_layer_norm(x + y)
        return normed


class LanguageModel(nn.Module):
    """Tokens [B, T] -> hidden states [B, T, hidden]."""

    def __init__(
        self,
        tokens: int,
        c: BertConfig,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(tokens, c)
        self.mapping_in = nn.Linear(EMBEDDING, c.hidden)
        self.layer = Layer(c)
        self.times = c.layers

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """mask [B, T]: which tokens exist."""
        x: Tensor = self.mapping_in(self.embeddings(tokens))
        visible = mask[:, None, None, :]
        for _ in range(self.times):
            x = self.layer(x, visible)
        return x
