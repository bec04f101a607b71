"""A recording as the encoders take it: without quiet ends, at 48 kHz, in whole patches. On the host.

The package trims at the rate of the file, and resamples by its own filter, so both are done before the engine sees it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.audio import Recording

FRAME, HOP, TOP_DB, LEAST = 2048, 512, 30.0, 1e-5
WIDTH, ROLLOFF, BETA = 64, 0.95, 14.769656459379492
"""Windowed sinc: zero crossings on a side, share of the band that is kept, and Kaiser's parameter."""


def as_heard(recording: Recording, rate: int, patch: int) -> Recording:
    """The recording between its first and last part within 30 dB of the loudest, at `rate`, with zeros behind it to a
    whole number of patches of so many samples."""
    x = resampled(trimmed(torch.from_numpy(recording.samples).float()), recording.rate, rate)
    samples = F.pad(x, (0, -len(x) % patch)).numpy()
    return Recording(samples, rate)


def trimmed(x: Tensor) -> Tensor:
    """x [n] without the frames at both ends whose level is 30 dB or more below the loudest one's."""
    windows = F.pad(x, (FRAME // 2, FRAME // 2)).unfold(0, FRAME, HOP)
    level = torch.from_numpy(np.sqrt(np.square(windows.numpy()).mean(1))).clamp_min(LEAST)
    loud = torch.nonzero(20 * torch.log10(level / level.max()) > -TOP_DB).flatten()
    return x[int(loud[0]) * HOP : (int(loud[-1]) + 1) * HOP]


def resampled(x: Tensor, source: int, target: int) -> Tensor:
    """x [n] -> [ceil(n * target / source)], by a sinc in Kaiser's window."""
    if source == target:
        return x
    common = math.gcd(source, target)
    a, b = source // common, target // common
    base = min(a, b) * ROLLOFF
    half = math.ceil(WIDTH * a / base)
    step = torch.arange(-half, half + a, dtype=torch.float64) / a
    t = ((torch.arange(0, -b, -1, dtype=torch.float64)[:, None] / b + step) * base).clamp(-WIDTH, WIDTH)
    window = torch.i0(BETA * (1 - (t / WIDTH) ** 2).sqrt()) / torch.i0(torch.tensor(BETA, dtype=torch.float64))
    kernel = (torch.sinc(t) * window * base / a).float()
    y = F.conv1d(F.pad(x, (half, half + a))[None, None], kernel[:, None], stride=a)[0].T.reshape(-1)
    return y[: math.ceil(b * len(x) / a)]


def speaker_window(wav: Tensor, longest: int) -> Tensor:
    """The middle of a recording that is longer than the speaker encoder takes. The package takes a random part."""
    start = max(0, len(wav) - longest) // 2
    return wav[start : start + longest]
