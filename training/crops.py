"""Examples of the autoencoder: stretches of speech, and the latents from which some of them are decoded."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.data import RATE, Speech
from training.store import STEP, Latents

LEAD = 4
"""Latents decoded before a stretch that begins within an utterance. Without them the decoder's first 40 ms differ by
-6 dB from what it makes of the whole utterance, after four latents by -24 dB."""


@dataclass(frozen=True)
class Crops:
    """Waveforms x [B, 1, samples] of one step, and whether the discriminators judge it.

    The last of x are decoded from `given`, groups of latents [G, D, frames]: of each, the last `samples` samples. The
    others are decoded from their own latents.
    """

    x: Tensor
    adversary: bool
    given: tuple[Tensor, ...] = ()

    @property
    def own(self) -> int:
        """How many are decoded from their own latents."""
        return len(self.x) - sum(map(len, self.given))

    def shape(self) -> Hashable:
        return (self.x.shape, self.adversary, *(z.shape for z in self.given))

    def overwrite(self, other: Crops) -> None:
        self.x.copy_(other.x)
        for mine, theirs in zip(self.given, other.given, strict=True):
            mine.copy_(theirs)


class PredictedCrops:
    """Stretches of `speech` with the latents that `training.predicted` wrote for them, aligned to the sample.

    Utterances that are shorter than a stretch are left out.
    """

    def __init__(self, speech: Speech, folder: Path, frames: int, hop: int) -> None:
        """frames: latents of a stretch, of `hop` samples each. KeyError if `speech` lacks an utterance of `folder`."""
        latents = Latents(folder, "predicted", speech.device)
        rows = [row for row in latents.index if row["frames"] >= frames]
        self.speech, self.flat, self.frames, self.hop = speech, latents.flat, frames, hop
        begins = [
            (row["start"], speech.spans[row["id"], row["voice"]][0], row["frames"]) for row in rows
        ]
        self._latent, self._sample, lengths = torch.tensor(begins, device=speech.device).unbind(1)
        self._places = (lengths - frames - LEAD + 1).clamp(
            min=0
        )  # where a stretch with a lead may begin
        self._upto = self._places.cumsum(0)
        self._total = int(self._places.sum())

    def onsets(self, count: int) -> tuple[Tensor, Tensor]:
        """The beginnings of utterances: x [count, 1, samples] and latents [count, D, frames]."""
        drawn = torch.randint(0, len(self._latent), (count,), device=self.flat.device)
        return self._cut(drawn, torch.zeros_like(drawn), 0)

    def within(self, count: int) -> tuple[Tensor, Tensor]:
        """Stretches from anywhere behind the first `LEAD` latents: x [count, 1, samples] and latents
        [count, D, LEAD + frames]."""
        place = torch.randint(0, self._total, (count,), device=self.flat.device)
        drawn = torch.searchsorted(self._upto, place, right=True)
        return self._cut(drawn, LEAD + place - (self._upto - self._places)[drawn], LEAD)

    def _cut(self, drawn: Tensor, at: Tensor, lead: int) -> tuple[Tensor, Tensor]:
        """Stretches of the utterances `drawn` [count] that begin with their latents `at` [count]."""
        columns, samples = (
            torch.arange(n, device=at.device) for n in (lead + self.frames, self.frames * self.hop)
        )
        z = self.flat[(self._latent[drawn] + at - lead)[:, None] + columns].float() * STEP
        x = (
            self.speech.flat[(self._sample[drawn] + at * self.hop)[:, None] + samples].float()
            / 32768
        )
        return x.unsqueeze(1), z.transpose(1, 2).contiguous()


def draw(
    speech: Speech, predicted: PredictedCrops | None, c: dict[str, Any], adversary: bool
) -> Crops:
    """The examples of one step by the settings `c`: without `predicted` all are decoded from their own latents."""
    given = int(c["predicted"] * c["batch"]) if predicted else 0
    x = speech.crops(c["batch"] - given, int(c["crop"] * RATE), c["onsets"])
    if not predicted:
        return Crops(x, adversary)
    first = int(c["onsets"] * given)
    groups = [predicted.onsets(first), predicted.within(given - first)]
    return Crops(
        torch.cat((x, *(x for x, _ in groups))), adversary, tuple(z for _, z in groups if len(z))
    )
