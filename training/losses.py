"""Spectral and adversarial losses for the VAE, and how their gradients are put together.

Multi-scale log-mel L1 (Kumar et al., 2023, DAC), multi-resolution log-magnitude STFT (Yamamoto et al., 2020),
least-squares adversary with feature matching (Kong et al., 2020, HiFi-GAN), gradients in fixed shares (Défossez et al.,
2022, EnCodec, section 3.4).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOOR = 1e-3
"""Added to magnitudes before their logarithm is taken: about -68 dB of full scale for noise of all frequencies.

The teacher's pauses are silent but for rounding. With a floor of 1e-5, 98 % of the gradient's energy was in them.
"""


def mel_filters(rate: int, fft: int, bands: int) -> Tensor:
    """Triangular filters on the HTK mel scale, unit peak: [fft / 2 + 1, bands]."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    bins = torch.linspace(0, rate / 2, fft // 2 + 1)[:, None]
    up = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return torch.minimum(up, down).clamp(min=0)


def magnitude(x: Tensor, fft: int, hop: int, window: Tensor) -> Tensor:
    """|STFT| of x [B, samples]: [B, frames, fft / 2 + 1]."""
    spectrum = torch.stft(x, fft, hop, window=window, center=True, return_complex=True)
    return spectrum.abs().transpose(1, 2)


class SpectralLoss(nn.Module):
    """Distance of two waveforms [B, 1, samples] over several windows: (log-mel L1, log-magnitude L1)."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.scales = ((64, 8), (128, 16), (256, 32), (512, 64), (1024, 100), (2048, 160))
        for fft, bands in self.scales:
            self.register_buffer(f"mel{fft}", mel_filters(rate, fft, bands))
            self.register_buffer(f"window{fft}", torch.hann_window(fft))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = x.squeeze(1).float(), y.squeeze(1).float()
        mel = stft = x.new_zeros(())
        for fft, _ in self.scales:
            window = self.get_buffer(f"window{fft}")
            a, b = (magnitude(w, fft, fft // 4, window) / math.sqrt(fft) for w in (x, y))
            filters = self.get_buffer(f"mel{fft}")
            mel = mel + F.l1_loss((a @ filters + FLOOR).log10(), (b @ filters + FLOOR).log10())
            if fft >= 512:
                stft = (
                    stft + F.l1_loss(a, b) + 0.1 * F.l1_loss((a + FLOOR).log(), (b + FLOOR).log())
                )
        return mel, stft


def discriminator_loss(real: list[Tensor], fake: list[Tensor]) -> Tensor:
    """Scores of all discriminators on real and generated audio -> scalar."""
    parts = [
        (1 - r.float()).pow(2).mean() + f.float().pow(2).mean()
        for r, f in zip(real, fake, strict=True)
    ]
    return torch.stack(parts).sum()


def generator_loss(fake: list[Tensor]) -> Tensor:
    return torch.stack([(1 - f.float()).pow(2).mean() for f in fake]).sum()


def feature_loss(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Summed L1 distances of all layers of all discriminators, in the type of the features."""
    pairs = [(p, q) for a, b in zip(real, fake, strict=True) for p, q in zip(a, b, strict=True)]
    return torch.stack([F.l1_loss(q, p.detach()).float() for p, q in pairs]).sum()


def latent_loss(mu: Tensor) -> Tensor:
    """Zero mean and unit deviation of every latent channel over the batch, mu [B, D, T]."""
    flat = mu.float().transpose(1, 2).flatten(0, 1)
    return flat.mean(0).pow(2).mean() + (flat.std(0) - 1).pow(2).mean()


def balanced(gradients: dict[str, Tensor], shares: dict[str, float]) -> Tensor:
    """Sum of gradients of one shape, each of them as long as its share of all that are given."""
    total = sum(shares[name] for name in gradients)
    return sum(
        (shares[name] / total * g / g.norm().clamp_min(1e-12) for name, g in gradients.items()),
        torch.zeros_like(next(iter(gradients.values()))),
    )
