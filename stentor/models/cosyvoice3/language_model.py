"""The language model: Qwen2 over rows of text and of speech codes, one code per step.

Codes are drawn by repetition-aware sampling (RAS, Chen et al., 2024, VALL-E 2) as this family does
it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.constants import MIN_TEMPERATURE, NO_ID
from stentor.layers.linear import linear
from stentor.layers.rope import Rope, angles
from stentor.layers.sampling import drawable
from stentor.layers.transformer import Stack
from stentor.models.base import KVView, Rows
from stentor.models.cosyvoice3.config import MAX_MODEL_LEN, SPECIAL_CODES, LanguageConfig
from stentor.models.weights import meta_init

Recent = tuple[Tensor, Tensor]
"""The last codes [B, n] of each row, and which of them exist [B, n]."""


def mask_early(logits: Tensor, rows: Rows, asks: Tensor, c: LanguageConfig) -> Tensor:
    """Logits [B, V] in which special codes are -inf before `min_frames`, where a row does not
    request [B] text, and so is the code that starts before `start_from`, or where it does."""
    step = rows["step"][:, None]
    ids = torch.arange(logits.shape[1], device=logits.device)
    early = (ids >= c.codes) & (step < rows["min_frames"][:, None]) & ~asks[:, None]
    early = early | ((ids == c.start) & ((step < rows["start_from"][:, None]) | asks[:, None]))
    return logits.masked_fill(early, float("-inf"))


def sample_ras(
    logits: Tensor,
    u: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    recent: Recent,
    most: float,
) -> Tensor:
    """One id per row [B] of float32 logits [B, V], with uniforms u [B, 2].

    The first draw is among the likeliest ids: as long as those before have less than `top_p` and
    are fewer than `top_k` (0: any number). A drawn id that occurs `most` times or more in `recent`
    is drawn again from all other ids, by the second uniform. Temperature 0 takes the likeliest id.
    """
    if kernels.enabled(Kernel.SAMPLE, logits):
        from stentor.models.cosyvoice3.kernels import sample_ras as fused

        return fused(logits, u, temperature, top_p, top_k, recent, most)
    scaled = logits / temperature.clamp_min(MIN_TEMPERATURE)[:, None]
    ranked, order = scaled.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(-1) - ranked
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[-1])
    keep = ((before < top_p[:, None]) | (top_p >= 1)[:, None]) & (ranks < limit[:, None])
    keep[:, 0] = True
    first = order.gather(-1, _drawn(ranked * keep, u[:, 0]))
    # Every row is drawn twice: a branch would wait for the device.
    others = scaled.scatter(-1, first, float("-inf")).softmax(-1)
    again = _drawn(others, u[:, 1])
    codes, exist = recent
    repeats = ((codes == first) & exist).sum(-1, keepdim=True)
    token = torch.where(repeats >= most, again, first)[:, 0]
    token = torch.where(temperature > 0, token, logits.argmax(-1))
    return torch.where(drawable(logits), token, NO_ID)


def _drawn(weights: Tensor, u: Tensor) -> Tensor:
    """The first index [B, 1] whose cumulated weight, of weights [B, V], is above u [B] of the sum.
    In float64."""
    cdf = weights.double().cumsum(-1)
    at = (cdf <= u.double()[:, None] * cdf[:, -1:]).sum(-1, keepdim=True)
    last = (weights > 0).long().mul(torch.arange(1, weights.shape[-1] + 1, device=u.device)).amax(
        -1, keepdim=True
    ) - 1
    return at.minimum(last.clamp_min(0))


class Language(nn.Module):
    """Parameters start on the meta device, in `dtype`. Text ids and codes are rows of one table
    (`row`)."""

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

    def hidden(self, x: Tensor, kv: KVView) -> Tensor:
        """After the final norm."""
        out: Tensor = self.stack(x, kv.attend, self.rope, kv.pos)
        return out

    def logits(self, h: Tensor) -> Tensor:
        """h [B, hidden] -> float32 [B, codes + 200]."""
        return linear(h, self.llm_decoder.weight).float()
