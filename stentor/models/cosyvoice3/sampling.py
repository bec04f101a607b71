"""Repetition-aware sampling (RAS, Chen et al., 2024, VALL-E 2) as this family does it."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.constants import MIN_TEMPERATURE, NO_ID
from stentor.layers.sampling import drawable
from stentor.models.base import Rows
from stentor.models.cosyvoice3.config import LanguageConfig

Recent = tuple[Tensor, Tensor]
"""The last codes [B, n] of each row, and which of them exist [B, n]."""


def mask_early(logits: Tensor, rows: Rows, asks: Tensor, c: LanguageConfig) -> Tensor:
    """Logits [B, V] in which special codes are -inf before `min_frames`, where a row does not ask [B] for text, and so
    is the code that starts before `start_from`, or where it asks."""
    step, ids = rows["step"][:, None], torch.arange(logits.shape[1], device=logits.device)
    early = (ids >= c.codes) & (step < rows["min_frames"][:, None]) & ~asks[:, None]
    early = early | ((ids == c.start) & ((step < rows["start_from"][:, None]) | asks[:, None]))
    return logits.masked_fill(early, float("-inf"))


def sample_ras(
    logits: Tensor, u: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, recent: Recent, most: float
) -> Tensor:
    """One id per row [B] of float32 logits [B, V], with uniforms u [B, 2].

    The first draw is among the likeliest ids: as long as those before have less than `top_p` and are fewer than
    `top_k` (0: any number). A drawn id that occurs `most` times or more in `recent` is drawn again from all other ids,
    by the second uniform. Temperature 0 takes the likeliest id.
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
    """The first index [B, 1] whose cumulated weight, of weights [B, V], is above u [B] of the sum. In float64."""
    cdf = weights.double().cumsum(-1)
    at = (cdf <= u.double()[:, None] * cdf[:, -1:]).sum(-1, keepdim=True)
    last = (weights > 0).long().mul(torch.arange(1, weights.shape[-1] + 1, device=u.device)).amax(-1, keepdim=True) - 1
    return at.minimum(last.clamp_min(0))
