"""The vocoder's short Fourier transforms as products with small matrices: a library for transforms
makes a plan for every number of steps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


class Transforms:
    """Transforms of `fft` samples, `hop` apart, under a Hann window."""

    def __init__(
        self,
        fft: int,
        hop: int,
        device: torch.device,
    ) -> None:
        assert fft % hop == 0, "a sample is in the same number of transforms as another"
        self.fft = fft
        self.hop = hop
        self.overlap = fft // hop
        wide = torch.float64
        window = torch.hann_window(fft, dtype=wide)[:, None]
        half = fft // 2
        places = torch.arange(fft, dtype=wide)
        turns = torch.outer(places, places[: half + 1]) / fft
        cosines = torch.cos(2 * math.pi * turns)
        sines = -torch.sin(2 * math.pi * turns)
        self.cosines = (cosines * window)[1 : half + 1].float().to(device)
        self.sines = (sines * window)[1:half].float().to(device)

        # the first and the last bin stand for themselves alone, the others for their mirror images
        weights = torch.full((half + 1,), 2 / fft, dtype=wide)
        weights[[0, -1]] = 1 / fft
        parts = torch.cat((cosines * weights, sines * weights), dim=1)
        self.inverse = self._by_hop(parts * window).float().to(device)
        self.weights = self._by_hop(window.square()).float().to(device)

    def _by_hop(
        self,
        matrix: Tensor,
    ) -> Tensor:
        """A matrix [fft, n] to samples from one transform, as [overlap * n, hop] from those that a
        hop is in, the earliest first."""
        hops = matrix.view(self.overlap, self.hop, -1)
        return hops.flip(0).transpose(1, 2).reshape(-1, self.hop)

    def spectrum(
        self,
        rows: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Magnitudes and phases [B, steps, fft / 2 + 1] of rows [B, fft + (steps - 1) * hop]."""
        half = self.fft // 2
        frames = rows.unfold(1, self.fft, self.hop)
        # The window is zero at the first sample. Others meet their mirror images: in frames that
        # are symmetric, as the first of a row, imaginary parts are zero and not a rounding error,
        # whose sign would be that of a phase of half a turn.
        before = frames[..., 1:half]
        behind = frames[..., half + 1 :].flip(-1)
        real = torch.cat((before + behind, frames[..., half : half + 1]), dim=-1) @ self.cosines
        imaginary = (before - behind) @ self.sines
        # from a negative zero to zero
        return torch.hypot(real, imaginary), torch.atan2(imaginary + 0.0, real)

    def samples(
        self,
        magnitudes: Tensor,
        phases: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Overlap and add of inverse transforms [B, steps, fft / 2 + 1], of which those in `mask`
        [B, steps, 1] exist: [B, (steps - 1) * hop], between the middles of the first and the last.
        """
        scaled = magnitudes * mask
        real = scaled * torch.cos(phases)
        imaginary = scaled * torch.sin(phases)
        bins = torch.cat((real, imaginary), dim=-1)
        sums = self._overlapped(bins, self.inverse)
        weights = self._overlapped(mask, self.weights)
        samples = sums / weights.clamp(min=1e-8)
        half = self.fft // 2
        return samples[:, half : samples.shape[1] - half]

    def _overlapped(
        self,
        x: Tensor,
        matrix: Tensor,
    ) -> Tensor:
        """Samples [B, fft + (steps - 1) * hop] of x [B, steps, n] by a matrix of hops."""
        behind = self.overlap - 1
        wide = F.pad(x, (0, 0, behind, behind))
        rows = wide.flatten(1).unfold(1, len(matrix), x.shape[2])
        return (rows @ matrix).flatten(1)
