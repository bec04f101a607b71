"""The sampler of this family: nucleus before temperature, and without the crossing token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stentor import kernels
from stentor.kernels.constants import MIN_TEMPERATURE
from stentor.layers.sampling import draw


class Ranking(NamedTuple):
    """Logits [B, V] in float32 from large to small, where each came from, and the probability up to and including it.

    One ranking serves any number of draws with different parameters.
    """

    logits: Tensor
    order: Tensor
    mass: Tensor


def rank(logits: Tensor) -> Ranking | Tensor:
    """logits [B, V] of any floating dtype; equal ones keep their order. The kernel takes them as they are."""
    if kernels.enabled(kernels.Kernel.SAMPLE_RANKED, logits):
        return logits
    ranked, order = logits.float().sort(dim=-1, descending=True, stable=True)
    return Ranking(ranked, order, ranked.softmax(-1).cumsum(-1))


def choose(r: Ranking | Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """One index per row [B]; all parameters are [B].

    A token stays if the mass up to and including it is at most `top_p` and fewer than `top_k` (0: any number) are
    before it; the first always stays. Temperature acts on those that stay; temperature 0 takes the first.
    """
    if isinstance(r, Tensor):
        from stentor.models.fish_s2.kernels import sample_ranked

        return sample_ranked(r, u, temperature, top_k, top_p)
    place = torch.arange(r.logits.shape[-1], device=r.logits.device)
    limit = torch.where(top_k > 0, top_k, r.logits.shape[-1])
    outside = (r.mass > top_p[:, None]) & (top_p < 1)[:, None]  # rounding takes the sum of all past 1
    drop = (outside | (place >= limit[:, None])) & (place > 0)
    scaled = r.logits.masked_fill(drop, float("-inf")) / temperature.clamp_min(MIN_TEMPERATURE)[:, None]
    at = torch.where(temperature > 0, draw(scaled, u), 0)
    return r.order.gather(-1, at[:, None])[:, 0]
