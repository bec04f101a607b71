"""Noise that the original draws once and keeps: of the flow, and of the vocoder's source.

No file holds it. It follows from the seed 0 and from the order in which the original makes its
parts, on a CPU. Values of normals differ between CPUs by up to 2.3e-6, with their vector units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.models.cosyvoice3.config import MELS, SPEAKER, Config

FLOW_FRAMES = 15_000  # 300 seconds of mel frames, prompt included
HARMONICS = 9
SEED = 0


def flow_noise() -> Tensor:
    """[15000, 80] float32: the flow's start at every frame, counted from the first frame of the
    prompt."""
    return _flow_noise(torch.Generator().manual_seed(SEED)).T.contiguous()


def source_noise(c: Config, samples: int) -> Tensor:
    """[samples, 9] float32 in [0, 1): the source's noise at every sample, counted from the first
    audible one.

    It is drawn after the flow's noise and the initial values of the flow's layers and the pitch
    predictor's.
    """
    g = torch.Generator().manual_seed(SEED)
    _flow_noise(g)
    torch.randn(c.flow.codes, MELS, generator=g)
    widths = [(MELS, 4), *[(c.vocoder.pitch, 3)] * 4]
    fans = [
        (MELS, SPEAKER),
        *((c.vocoder.pitch, inputs * taps) for inputs, taps in widths),
        (1, c.vocoder.pitch),
    ]
    for outputs, fan_in in fans:  # a weight, then a bias
        torch.rand(outputs * fan_in, generator=g)
        torch.rand(outputs, generator=g)
    torch.rand(1, HARMONICS, generator=g)
    return torch.rand(samples, HARMONICS, generator=g)


def _flow_noise(g: torch.Generator) -> Tensor:
    return torch.randn(MELS, FLOW_FRAMES, generator=g)
