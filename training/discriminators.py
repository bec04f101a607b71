"""Discriminators for the VAE: multi-period (Kong et al., 2020) and multi-band complex STFT (Kumar et al., 2023)."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Judgement = tuple[Tensor, list[Tensor]]


class Period(nn.Module):
    """Sees every `period`-th sample side by side. x [B, 1, samples] -> (score map, features)."""

    def __init__(self, period: int, widths: tuple[int, ...] = (32, 128, 512, 512)) -> None:
        super().__init__()
        self.period = period
        sizes = (1, *widths)
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)))
            for a, b in itertools.pairwise(sizes)
        )
        self.convs.append(weight_norm(nn.Conv2d(widths[-1], widths[-1], (5, 1), 1, (2, 0))))
        self.score = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, x: Tensor) -> Judgement:
        x = F.pad(x, (0, -x.shape[-1] % self.period)).unflatten(-1, (-1, self.period))
        x = x.contiguous(memory_format=torch.channels_last)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            features.append(x)
        return self.score(x), features


class BandSpectrum(nn.Module):
    """Sees the complex spectrum of one window size in five frequency bands, each with its own layers."""

    bands = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)

    def __init__(self, fft: int, width: int = 32) -> None:
        super().__init__()
        self.fft = fft
        self.register_buffer("window", torch.hann_window(fft), persistent=False)
        self.stacks = nn.ModuleList(self._stack(width) for _ in self.bands[1:])
        self.score = weight_norm(nn.Conv2d(width, 1, (3, 3), 1, (1, 1)))

    @staticmethod
    def _stack(width: int) -> nn.ModuleList:
        layers = [nn.Conv2d(2, width, (3, 9), 1, (1, 4))]
        layers += [nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4)) for _ in range(3)]
        layers += [nn.Conv2d(width, width, (3, 3), 1, (1, 1))]
        return nn.ModuleList(weight_norm(layer) for layer in layers)

    def forward(self, x: Tensor) -> Judgement:
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.stft(
                x.squeeze(1).float(),
                self.fft,
                self.fft // 4,
                window=self.get_buffer("window"),
                return_complex=True,
            )
        z = torch.view_as_real(spectrum).permute(0, 3, 2, 1)  # [B, 2, frames, bins]
        bins = z.shape[-1]
        features, tops = [], []
        for stack, low, high in zip(self.stacks, self.bands, self.bands[1:], strict=False):
            y = z[..., int(low * bins) : int(high * bins)].contiguous(
                memory_format=torch.channels_last
            )
            for layer in stack:
                y = F.leaky_relu(layer(y), 0.1)
                features.append(y)
            tops.append(y)
        return self.score(torch.cat(tops, dim=-1)), features


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.judges = nn.ModuleList([Period(p) for p in (2, 3, 5, 7, 11)])
        self.judges.extend(BandSpectrum(n) for n in (2048, 1024, 512))

    def forward(self, x: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
        """x [B, 1, samples] -> scores and features of every judge."""
        scores, features = zip(*(judge(x) for judge in self.judges), strict=True)
        return list(scores), list(features)
