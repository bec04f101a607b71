"""Draws of a request, seen from outside: what samplers are given, and how far a draw is from drawing something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stentor.kernels import Kernel, switches
from stentor.layers import frame_codes, sampling
from stentor.models.fish_s2 import language_model as ranked_sampling
from tests.helpers.levels import unlike
from tests.helpers.tiny import Bench

NUDGES = (1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 1e-4, 1e-3)
TRIALS = 256


@dataclass(frozen=True)
class Draw:
    """Arguments of a sampler: logits [B, V], u and top_p [B]; `sample` answers for others of any B, all else as is."""

    logits: Tensor
    u: Tensor
    top_p: Tensor
    sample: Callable[[Tensor, Tensor, Tensor], Tensor]

    def answer(self) -> Tensor:
        return self.sample(self.logits, self.u, self.top_p)

    def reached(self, by: float) -> set[int]:
        """Tokens that one row may draw when its logits are off by up to `by` of the largest, u and top_p by up to `by`."""
        noise = torch.Generator().manual_seed(0)
        off = [
            by * (2 * torch.rand(n, generator=noise) - 1)
            for n in ((TRIALS, self.logits.shape[-1]), TRIALS, TRIALS)
        ]
        scale = self.logits[self.logits.isfinite()].abs().max()
        top_p = torch.where(self.top_p < 1, self.top_p + off[2], self.top_p)
        return set(self.sample(self.logits + scale * off[0], self.u + off[1], top_p).tolist())


@contextmanager
def drawing(take: Callable[[Draw], Tensor]) -> Iterator[None]:
    """Samplers of all families hand what they are asked to `take`, whose answer goes on."""
    sample, rank, sample_ranked = (
        sampling.sample,
        ranked_sampling.rank,
        ranked_sampling.sample_ranked,
    )

    def unranked(
        logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor
    ) -> Tensor:
        def again(x: Tensor, u: Tensor, top_p: Tensor) -> Tensor:
            return sample(x, u, temperature.expand(len(x)), top_k.expand(len(x)), top_p)

        return take(Draw(logits, u, top_p, again))

    def ranked(
        logits: Tensor, u: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor
    ) -> Tensor:
        def again(x: Tensor, u: Tensor, top_p: Tensor) -> Tensor:
            return sample_ranked(
                rank(x), u, temperature.expand(len(x)), top_k.expand(len(x)), top_p
            )

        return take(Draw(logits, u, top_p, again))

    with pytest.MonkeyPatch.context() as patch:
        # The fused samplers write the next token themselves and show neither logits nor draw.
        patch.setattr(switches, "OFF", switches.OFF | {Kernel.FUSED_SAMPLING})
        patch.setattr(sampling, "sample", unranked)
        patch.setattr(frame_codes, "sample", unranked)
        patch.setattr(ranked_sampling, "rank", lambda logits: logits)
        patch.setattr(ranked_sampling, "sample_ranked", ranked)
        yield


class Led:
    """A request by the plain formulas on a CPU, led along frames [n, books] that were spoken; keeps the last draws."""

    def __init__(
        self, bench: Bench, family: str, text: str, options: dict[str, Any], frames: np.ndarray
    ) -> None:
        self.bench, self.frames = bench, torch.as_tensor(frames).long()
        self.group = [bench.admit(family, 0, text=text, **options)]
        self.extra = bench.model.spec.draws - self.frames.shape[1]  # code 0 may take several
        self.draws: list[Draw] = []

    def take(self, draw: Draw) -> Tensor:
        book = max(0, len(self.draws) - self.extra)
        self.draws.append(draw)
        return draw.answer() if self.at == len(self.frames) else self.frames[self.at, book][None]

    def frame(self, at: int) -> list[Draw]:
        """The draws of frame `at`, which may be the one after the last."""
        w = self.bench.runner
        with torch.inference_mode(), drawing(self.take):
            for self.at in range(at + 1):
                self.draws = []
                if self.at == 0:
                    w.prefill(self.group)
                else:
                    w.idx[:1] = 0
                    w._decode(1, self.bench.sizes.max_pages, self.group[0][0].num_evals)
        return self.draws

    def distance(self, at: int, code: int, other: int | None) -> float:
        """The least nudge by which code `code` of frame `at` becomes `other` (None: the end instead of a code)."""
        draws = self.frame(at)
        mine = int(self.frames[at, code]) if at < len(self.frames) else None
        recent = (
            set(self.frames[max(1, at - ranked_sampling.RAS_WINDOW) : at, 0].tolist())
            if self.extra
            else set()
        )
        for by in NUDGES:
            found = draws[code + self.extra if code else 0].reached(by)
            if code == 0 and self.extra:
                found = (found - recent) | (draws[1].reached(by) if found & recent else set())
            if other in found or (other is None and found - {mine}):
                return by
        return float("inf")


def apart(
    path: Path, family: str, text: str, options: dict[str, Any], want: np.ndarray, got: np.ndarray
) -> tuple[float, int, str]:
    """(least nudge that turns the first code in which the frames `got` differ from `want` into the other, how many
    frames are equal before it, where it is).

    Frames of latents are judged by levels.py. Infinite where frames are equal.
    """
    if not np.issubdtype(want.dtype, np.integer):
        return unlike(path, family, text, options, want, got)
    both = min(len(want), len(got))
    places = np.argwhere(want[:both] != got[:both])
    if len(want) == len(got) and not len(places):
        return float("inf"), 0, "no draw"
    at, code = (int(i) for i in places[0]) if len(places) else (both, 0)
    other = int(got[at, code]) if at < len(got) else None
    voice = {k: v for k, v in options.items() if k != "voice"}
    led = Led(Bench(path, "cpu", torch.float32, slots=1), family, text, voice, want)
    return led.distance(at, code, other), at, f"frame {at} code {code}"
