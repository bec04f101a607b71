"""Resampling on a GPU by soxr's own filters, as a product."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import soxr
import torch
from torch import Tensor

REACH = 1024
"""Samples on both sides of an impulse, beyond those that any filter reaches."""
NOISE = 1e-7
"""Smallest tap that counts, where the peak is at most 1: float32 rounds the others."""
FIRST = 160
"""Samples of a recording in whose time soxr uses other filters, at its beginning."""
LARGEST = 640
HIGHEST = 48_000
STEEPEST = 4
"""Rates in lowest terms, in Hz, and by each other, for which soxr is so imitated: a matrix has 2 MB
at most."""


@dataclass(frozen=True, eq=False)
class Filters:
    """Linear resampling of windows: window [width] of samples, `before` of them before a block of
    `step` samples, times `matrix` [width, outputs] is the output of the block. `first` is the
    matrix of the first block."""

    before: int
    step: int
    matrix: Tensor
    first: Tensor

    def __call__(self, samples: Tensor, count: int) -> Tensor:
        """Samples [n] -> the first `count` of those that are made."""
        width, outputs = self.matrix.shape
        blocks = max(1, -(-count // outputs))
        behind = (blocks - 1) * self.step + width - self.before - len(samples)
        windows = torch.nn.functional.pad(samples, (self.before, behind)).unfold(
            0, width, self.step
        )
        out = windows @ self.matrix
        out[:1] = windows[:1] @ self.first
        return out.view(-1)[:count]


def filters(source: int, target: int, quality: str) -> Filters | None:
    """The filters by which soxr resamples, from what it makes of impulses. None: they are not known
    for these rates.

    In lowest terms `step` samples become `outputs`, each by a filter of its own, and so on for the
    next ones. quality: of soxr.
    """
    common = math.gcd(source, target)
    step = source // common
    outputs = target // common
    if max(step, outputs) > LARGEST or source > min(HIGHEST, STEEPEST * target):
        return None
    at = -(-REACH // step) * step
    ones = np.zeros((at + REACH, step), np.float32)
    ones[at + np.arange(step), np.arange(step)] = 1
    response = soxr.resample(ones, source, target, quality=quality)
    times = np.arange(len(response))[:, None] * (step / outputs) - (at + np.arange(step))
    reach = math.ceil(np.abs(times[np.abs(response) > NOISE]).max())
    repeats = max(1, reach // step)  # small blocks would be of many windows that overlap
    step = repeats * step
    outputs = repeats * outputs
    samples = np.arange(-reach, step + reach)  # of a window
    phase = samples % ones.shape[1]
    index = np.arange(outputs) + ((at + phase - samples) * outputs // step)[:, None]
    near = np.abs(index * (step / outputs) - (at + phase)[:, None]) <= reach
    matrix = np.where(
        near, response[np.minimum(index, len(response) - 1), phase[:, None]], np.float32(0)
    )
    first = _first(matrix, reach, source, target, quality)
    return Filters(reach, step, torch.from_numpy(matrix), torch.from_numpy(first))


def _first(matrix: np.ndarray, reach: int, source: int, target: int, quality: str) -> np.ndarray:
    """The matrix of the first block, whose first samples soxr makes by other filters."""
    changed = min(-(-FIRST * target // source), matrix.shape[1])
    count = min(reach + FIRST, len(matrix) - reach)  # samples that these see
    response = soxr.resample(
        np.eye(count + REACH, count, dtype=np.float32), source, target, quality=quality
    )
    first = matrix.copy()
    first[reach : reach + count, :changed] = response[:changed].T
    return first


def resampled(samples: Tensor, source: int, target: int, by: Filters) -> Tensor:
    """Samples [n] -> [ceil(n * target / source)] as audio.resample makes them: soxr's number of
    samples, then zeros."""
    length = -(-len(samples) * target // source)
    count = int(len(samples) / (source / target) + 0.5)  # as soxr rounds
    return torch.nn.functional.pad(by(samples, min(count, length)), (0, max(0, length - count)))
