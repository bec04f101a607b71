"""The language model: Qwen2 over rows of text and of speech codes, one code per step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.linear import linear
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.base import KVView
from stentor.models.cosyvoice3.config import MAX_MODEL_LEN, SPECIAL_CODES, LanguageConfig
from stentor.models.weights import meta_init


class Language(nn.Module):
    """Parameters start on the meta device, in `dtype`. Text ids and codes are rows of one table (`row`)."""

    table: Tensor

    def __init__(self, c: LanguageConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = c
        with meta_init():
            self.embed_tokens = nn.Embedding(c.text_vocab, c.stack.hidden)
            self.speech_embedding = nn.Embedding(c.codes + SPECIAL_CODES, c.stack.hidden)
            self.stack = Stack(c.stack)
            self.llm_decoder = nn.Linear(c.stack.hidden, c.codes + SPECIAL_CODES, bias=False)
        self.to(dtype)
        table = angles(c.stack.head_dim, MAX_MODEL_LEN, c.theta)
        self.rope = Rope(table, torch.float32, interleaved=False, in_float32=True)

    def process_weights_after_loading(self) -> None:
        """Join the tables of text and codes, and free the parts."""
        parts = (self.embed_tokens.weight, self.speech_embedding.weight)
        self.register_buffer("table", torch.cat([p.detach() for p in parts]), persistent=False)
        del self.embed_tokens, self.speech_embedding

    def embed(self, rows: Tensor) -> Tensor:
        """Rows [N] of the table: a text id, or text_vocab + a code. [N, hidden]."""
        return F.embedding(rows, self.table)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Codes [N] -> [N, hidden]."""
        return self.embed(codes + self.config.text_vocab)

    def hidden(self, x: Tensor, kv: KVView) -> Tensor:
        """After the final norm."""
        out: Tensor = self.stack(x, kv.attend, self.rope, kv.pos)
        return out

    def logits(self, h: Tensor) -> Tensor:
        """h [B, hidden] -> float32 [B, codes + 200]."""
        return linear(h, self.llm_decoder.weight).float()
