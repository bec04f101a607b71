"""A small causal network from log-mel frames to phonemes, run chunk by chunk in numpy.

Its answer about a frame comes `DELAY` frames later, so it hears that much beyond it. training/train_aligner.py has
the same network in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import numpy as np

DELAY = 9
"""Frames of look-ahead, 180 ms."""
KERNEL = 5
DILATIONS = (1, 1, 2, 2, 3)
"""Spacing of the taps of each block's depthwise convolution."""
Weights = Mapping[str, np.ndarray]


class Network:
    """The network with what it remembers of one stream. weights: float32 (`training.train_aligner.export`)."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        width = weights["enter.bias"].shape[0]
        self._before = [np.zeros(((KERNEL - 1) * d, width), np.float32) for d in DILATIONS]
        self._late = DELAY  # answers about frames before the first, still to be dropped

    def feed(self, frames: np.ndarray) -> np.ndarray:
        """Log-probabilities [n, classes] of the frames that are decided now. frames: [m, STACK * MELS]."""
        w = self._weights
        x = frames @ w["enter.weight"] + w["enter.bias"]
        for i, dilation in enumerate(DILATIONS):
            x = x + self._block(x, i, dilation)
        drop = min(self._late, len(x))
        self._late -= drop
        scores: np.ndarray = _normal(x[drop:]) @ w["leave.weight"] + w["leave.bias"]
        scores -= scores.max(1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(1, keepdims=True))
        return scores

    def finish(self, frames: np.ndarray) -> np.ndarray:
        """Return those of the frames that are left, and of these, if silence follows. More frames may still be fed."""
        rest = copy(self)
        rest._before = list(self._before)
        return rest.feed(np.concatenate((frames, np.repeat(self._weights["silence"][None], DELAY, 0))))

    def _block(self, x: np.ndarray, i: int, dilation: int) -> np.ndarray:
        w, n = self._weights, len(x)
        seen = np.concatenate((self._before[i], x))
        self._before[i] = seen[len(seen) - len(self._before[i]) :]
        taps = w[f"blocks.{i}.taps"]
        y = taps[KERNEL] + sum(seen[k * dilation : k * dilation + n] * taps[k] for k in range(KERNEL))
        hidden = _normal(y) @ w[f"blocks.{i}.rise.weight"] + w[f"blocks.{i}.rise.bias"]
        np.maximum(hidden, 0, out=hidden)
        change: np.ndarray = hidden @ w[f"blocks.{i}.fall.weight"] + w[f"blocks.{i}.fall.bias"]
        return change


def _normal(x: np.ndarray) -> np.ndarray:
    """Each row with a mean of 0 and a deviation of 1."""
    x = x - x.mean(1, keepdims=True)
    x /= np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
    return x
