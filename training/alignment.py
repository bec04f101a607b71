"""Losses that teach the language model to read, in training only: the flow loss alone rewards it too little.

The teacher's durations say which phoneme each latent sounds. From lm_hidden, a classifier must name the phonemes of the
patch that is about to be made (`Speller`), and a few attention heads must look at them (`Pointer`): supervised
attention in place of a guess at the diagonal (guided attention, Tachibana et al., 2018).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import causal
from stentor.layers.qk_norm_rope import NormRope
from training.examples import Batch


class Speller(nn.Module):
    """Names the phoneme of each of a patch's latents from lm_hidden."""

    def __init__(self, hidden: int, vocab: int, patch: int) -> None:
        super().__init__()
        self.labels = nn.Linear(hidden, patch * vocab)
        self.patch = patch

    def forward(self, h: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """h [M, hidden] -> cross-entropy per latent, and the share of latents named right."""
        known = batch.sounding >= 0
        labels = batch.ids[batch.row.unsqueeze(1), batch.sounding.clamp_min(0)].masked_fill(
            ~known, -1
        )
        scores = self.labels(h).float().unflatten(-1, (self.patch, -1))
        count = known.sum().clamp_min(1)
        loss = F.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum"
        )
        return loss / count, (scores.argmax(-1) == labels).sum() / count


class Pointer:
    """Attention for whole sequences that keeps queries and keys of `heads` heads of the chosen layers."""

    SLACK = 1  # phonemes before and after those that sound in the patch may be looked at too

    def __init__(self, layers: list[int], heads: int) -> None:
        self.layers, self.heads = layers, heads
        self.kept: list[tuple[Tensor, Tensor]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        """`layers.attention.Attend`: q [B, T, Hq, D], k and v [B, T, Hkv, D]."""
        q, k = norm_rope.apply(q, k)
        if layer in self.layers:
            shared = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
            self.kept.append((q[:, :, : self.heads], shared[:, :, : self.heads]))
        return causal(layer, q, k, v, NormRope())

    def loss(self, batch: Batch) -> Tensor:
        """Mean negative log of the attention that falls on a patch's own phonemes when it is about to be made."""
        known = (batch.sounding >= 0).all(1, keepdim=True)
        row, at = batch.row, batch.text_len[batch.row] - 1 + batch.patch
        first = batch.sounding.amin(1, keepdim=True) - self.SLACK
        last = batch.sounding.amax(1, keepdim=True) + self.SLACK
        position = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        seen = position <= at.unsqueeze(1)
        own = (
            (position >= first) & (position <= last) & (position < batch.text_len[row].unsqueeze(1))
        )
        own = torch.where(known, own, seen)  # a patch whose phonemes are not known costs nothing
        total = batch.patches.new_zeros(())
        for q, k in self.kept:
            scores = torch.einsum("bshd,bthd->bsth", q, k)[row, at].float() / k.shape[-1] ** 0.5
            inside = scores.masked_fill(~own.unsqueeze(-1), -torch.inf).logsumexp(1)
            total = (
                total
                + (scores.masked_fill(~seen.unsqueeze(-1), -torch.inf).logsumexp(1) - inside).sum()
            )
        count = known.sum().clamp_min(1) * len(self.kept) * self.heads
        self.kept.clear()
        return total / count
