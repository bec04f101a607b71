"""Slow transformer over frames, fast transformer over the codes of one frame, and their samplers.

Top-p comes before the temperature, and the first code is drawn by repetition-aware sampling (RAS).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.constants import MIN_TEMPERATURE, NO_ID
from stentor.kernels.types import MinFrames, SampleOut, SamplingParams
from stentor.layers.depth_loop import DepthLoop
from stentor.layers.linear import linear
from stentor.layers.sampling import drawable, sample_inverse_cdf, store_sample
from stentor.layers.transformer import Stack
from stentor.models.base import KVView, Rows
from stentor.models.fish_s2.codec import interleaved
from stentor.models.fish_s2.config import LanguageConfig
from stentor.models.weights import meta_init

RAS_WINDOW = 10  # frames in which a repeated code is sampled again
RAS_TEMPERATURE = 1.0
RAS_TOP_P = 0.9


class Ranking(NamedTuple):
    """Logits [B, V] in float32 from large to small, where each came from, and the probability up to
    and including it.

    One ranking serves any number of samples with different parameters.
    """

    logits: Tensor
    order: Tensor
    mass: Tensor


def rank(logits: Tensor) -> Ranking | Tensor:
    """Rank logits [B, V] of any floating dtype. Equal ones keep their order. The kernel takes
    logits as they are."""
    if kernels.enabled(Kernel.SAMPLE_RANKED, logits):
        return logits
    ranked, order = logits.float().sort(dim=-1, descending=True, stable=True)
    return Ranking(ranked, order, ranked.softmax(-1).cumsum(-1))


def sample_ranked(
    r: Ranking | Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor
) -> Tensor:
    """One index per row [B]. All parameters are [B].

    A token stays if the mass up to and including it is at most `top_p` and fewer than `top_k` (0:
    any number) are before it. The first always stays. Temperature acts on those that stay.
    Temperature 0 takes the first.
    """
    if isinstance(r, Tensor):
        from stentor.models.fish_s2.kernels import sample_ranked as fused

        return fused(r, u, temperature, top_k, top_p)
    ranks = torch.arange(r.logits.shape[-1], device=r.logits.device)
    limit = torch.where(top_k > 0, top_k, r.logits.shape[-1])
    # rounding takes the sum of all past 1
    outside = (r.mass > top_p[:, None]) & (top_p < 1)[:, None]
    drop = (outside | (ranks >= limit[:, None])) & (ranks > 0)
    scaled = (
        r.logits.masked_fill(drop, float("-inf")) / temperature.clamp_min(MIN_TEMPERATURE)[:, None]
    )
    chosen = torch.where(temperature > 0, sample_inverse_cdf(scaled, u), 0)
    token = r.order.gather(-1, chosen[:, None])[:, 0]
    return torch.where(drawable(r.logits), token, NO_ID)


def sample_ranked_into(logits: Tensor, params: SamplingParams, out: SampleOut) -> None:
    """`sample_ranked` from logits [B, V]. Writes the ids, and the embeddings of the next token, to
    `out`."""
    if kernels.enabled(Kernel.FUSED_SAMPLING, logits):
        from stentor.models.fish_s2.kernels import sample_ranked_into as fused

        fused(logits, params, out)
    else:
        store_sample(sample_ranked(rank(logits), *params), out)


def sample_first_code(logits: Tensor, params: SamplingParams, out: SampleOut, rows: Rows) -> Tensor:
    """Repetition-aware sampling from logits [B, codes + 1], with uniforms [B, 2] in `params`.

    A code that the last frames began with is sampled once more, with the second uniform and looser
    parameters. The last id is the end: it cannot be sampled before `min_frames` and is stored as
    code 0. Returns [B] bool, whether it was sampled.
    """
    min_frames = MinFrames(rows["step"], rows["min_frames"])
    if kernels.enabled(Kernel.FUSED_SAMPLING, logits):
        from stentor.models.fish_s2.kernels import sample_first_code as fused

        return fused(
            logits,
            params,
            (RAS_TEMPERATURE, RAS_TOP_P),
            out,
            rows.history(),
            RAS_WINDOW,
            min_frames,
        )
    u, temperature, top_k, top_p = params
    end = logits.shape[1] - 1
    early = (min_frames.step < min_frames.least)[:, None]
    logits = logits.float()
    ranking = rank(
        torch.cat((logits[:, :-1], logits[:, -1:].masked_fill(early, float("-inf"))), dim=-1)
    )
    code = sample_ranked(ranking, u[:, 0], temperature, top_k, top_p)
    free = torch.where(temperature > 0, RAS_TEMPERATURE, 0.0)
    again = sample_ranked(ranking, u[:, 1], free, top_k, torch.full_like(free, RAS_TOP_P))
    code = torch.where(_repeats(code, rows), again, code)
    stop = code == end
    store_sample(torch.where(stop, 0, code), out)
    return stop


def _repeats(code: Tensor, rows: Rows) -> Tensor:
    """Whether code [B] is among the last frames'. Frame 0 never counts, as in the reference."""
    frames, exists = rows.recent(RAS_WINDOW)
    at = rows["step"][:, None] - torch.arange(1, RAS_WINDOW + 1, device=code.device)
    return ((frames[..., 0] == code[:, None]) & exists & (at > 0)).any(-1)


class Language(nn.Module):
    """Both transformers. Parameters start on the meta device, in `dtype`."""

    head: Tensor
    first_row: Tensor

    def __init__(self, c: LanguageConfig, semantic: int, im_end: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = c
        self.semantic = semantic
        self.im_end = im_end
        hidden = c.slow.hidden
        with meta_init():
            self.embeddings = nn.Embedding(c.vocab, hidden)
            self.codebook_embeddings = nn.Embedding(c.codes * c.books, hidden)
            self.slow = Stack(c.slow)
            self.fast_embeddings = nn.Embedding(c.codes, hidden)
            self.fast = Stack(c.fast)
            self.fast_output = nn.Linear(hidden, c.codes, bias=False)
        self.to(dtype)
        self.slow_rope = interleaved(c.slow.head_dim, c.max_model_len, c.rope_base)
        self.fast_rope = interleaved(c.fast.head_dim, c.books, c.rope_base)
        self.register_buffer("first_row", c.codes * torch.arange(c.books), persistent=False)

    def process_weights_after_loading(self) -> None:
        """Select the tied output rows that can be sampled: those of the codes, then that of im_end.
        Prepare the loop over the other codes, which all have one table and one head."""
        table = self.embeddings.weight.detach()
        rows = (
            table[self.semantic : self.semantic + self.config.codes],
            table[self.im_end : self.im_end + 1],
        )
        self.register_buffer("head", torch.cat(rows), persistent=False)
        others = self.config.books - 1
        head = self.fast_output.weight.detach()
        self.depth = DepthLoop(
            self.config.fast,
            self.fast,
            head.expand(others, -1, -1),
            nn.Identity(),
            self.fast_embeddings.weight.detach(),
            [0] * (others + 1),
            self.fast_rope,
            torch.int64,
            sample_ranked_into,
        )

    def embed_codes(self, frames: Tensor) -> Tensor:
        """Input of positions that hold frames [N, books]."""
        scale = math.sqrt(self.config.books + 1)
        table = self.codebook_embeddings.weight
        tokens = self.embeddings.weight
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
        """Slow transformer's output h [B, hidden] and uniforms u [B, books + 1] -> the frame [B,
        books], and [B] bool, whether it is the end (its first code is 0 then)."""
        parameters = (rows["temperature"], rows["top_k"], rows["top_p"])
        loop = self.depth.start(h)
        stop = sample_first_code(
            self.logits(h), SamplingParams(u[:, :2], *parameters), loop.first, rows
        )
        return self.depth(loop, u[:, 2:], *parameters), stop
