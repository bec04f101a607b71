"""Kokoro by torch (implements models.piece_model.PieceModel)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stentor.layers.rng import normal, uniform
from stentor.models.base import Prompted
from stentor.models.codec_timing import PieceTiming
from stentor.models.kokoro.durations import planned
from stentor.models.kokoro.network import Features, Network
from stentor.models.kokoro.prompt import PromptBuilder
from stentor.models.kokoro.spec import make_spec
from stentor.models.kokoro.voices import STYLE, Voices
from stentor.models.lora import NO_ADAPTERS
from stentor.models.piece_model import PieceRow, Planned

PADDING = 1536
"""Frames that a GPU computes in about the time of a call's launches."""
ON_CPU = PieceTiming(rows=4, frames=1200)
ON_CUDA = PieceTiming(rows=64, frames=16_384, padding=PADDING)
WARM = ((1, 16), (1, 32), (1, 64), (1, 128), (1, 320), (8, 64), (4, 256), (16, 128), (64, 64))
"""Rows and frames of the calls that choose every tile of the convolutions."""


class Kokoro(Prompted):
    """A loaded checkpoint. A frame is the place in the text that it speaks."""

    adapters = NO_ADAPTERS

    def __init__(
        self,
        net: Network,
        voices: Voices,
    ) -> None:
        self.net = net
        if net.device.type == "cuda":
            self.timing = ON_CUDA
        else:
            self.timing = ON_CPU
        self.spec = make_spec(voices.names, self.timing)
        default_voice = self.spec.default_voice or voices.names[0]
        self.prompts = PromptBuilder(voices, default_voice)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile kernels, and start the libraries."""
        for rows, frames in WARM:
            tokens = [torch.zeros(frames // 4, dtype=torch.int64)] * rows
            styles = torch.zeros(rows, STYLE, device=self.net.device)
            _, features = self.net.plan(tokens, styles, torch.ones_like(styles[:, 0]))
            places = [np.arange(frames) // 4] * rows
            samples = self.net.speak(features, places, styles, self.noise([0] * rows, frames))
            _on_host(samples)

    @torch.inference_mode()
    def plan(
        self,
        rows: Sequence[PieceRow],
    ) -> list[Planned]:
        tokens = [torch.from_numpy(row.prompt.rows["token"]) for row in rows]
        speeds = [row.prompt.columns["speed"] for row in rows]
        factors = torch.tensor(speeds).to(self.net.device)
        frames, features = self.net.plan(tokens, self._styles(rows), factors)
        counts = frames.cpu().numpy()
        parts = zip(rows, counts, features, map(len, tokens), strict=True)
        return [planned(row.prompt, count[:n], tuple(f)) for row, count, f, n in parts]

    @torch.inference_mode()
    def speak(
        self,
        rows: Sequence[PieceRow],
    ) -> list[np.ndarray]:
        features = []
        tokens = []
        for row in rows:
            assert row.planned is not None, "a row is planned before it is spoken"
            features.append(Features(*row.planned.features))
            tokens.append(row.planned.frames)
        counts = [len(row) for row in tokens]
        seeds = [row.seed for row in rows]
        noise = self.noise(seeds, max(counts))
        samples = self.net.speak(features, tokens, self._styles(rows), noise)
        audio = _on_host(samples.clamp_(-1.0, 1.0)).numpy()
        hop = self.net.hop
        return [row[: count * hop] for row, count in zip(audio, counts, strict=True)]

    def noise(
        self,
        seeds: list[int],
        frames: int,
    ) -> Tensor:
        """Standard normals [B, samples, harmonics] of each seed, the same for every length."""
        shape = self.net.noise_shape(frames)
        seed = torch.tensor(seeds, device=self.net.device)
        count = shape[0] * shape[1]
        first = uniform(seed, torch.zeros_like(seed), count)
        second = uniform(seed, torch.ones_like(seed), count)
        uniforms = torch.cat((first, second), dim=1)
        drawn = normal(uniforms)[:, :count]
        return drawn.view(len(seeds), *shape)

    def _styles(
        self,
        rows: Sequence[PieceRow],
    ) -> Tensor:
        styles = np.stack([row.prompt.columns["style"] for row in rows])
        return torch.from_numpy(styles).to(self.net.device)


def _on_host(samples: Tensor) -> Tensor:
    """Copy to pinned memory, which a GPU writes ten times as fast."""
    if samples.is_cpu:
        return samples
    host = torch.empty(samples.shape, pin_memory=True)
    return host.copy_(samples)
