"""Log-mel frames of a stream of samples, and a small causal network from them to phonemes, chunk by
chunk in numpy.

Its output for a frame comes `DELAY` frames later, so it sees that much beyond the frame.
training/train_aligner.py has the same network in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import numpy as np

RATE = 16_000
HOP = 160
"""Samples between two windows, 10 ms."""
STACK = 2
"""Windows of a frame, so a frame is 20 ms."""
MELS = 64
FRAME_SECONDS = HOP * STACK / RATE
_WINDOW = 400
_FFT = 512
# zeros in front, so that the middle of window k is the middle of its hop
_LEAD = (_WINDOW - HOP) // 2
# windows. Those of a second would need fresh memory from the system each time, which doubles the
# time
_AT_ONCE = 32
_FLOOR = 1e-5
_LOWEST = 60.0  # Hz
_HIGHEST = 7600.0

DELAY = 9
"""Frames of look-ahead, 180 ms."""
KERNEL = 5
DILATIONS = (1, 1, 2, 2, 3)
"""Spacing of the taps of each block's depthwise convolution."""
Weights = Mapping[str, np.ndarray]


class Network:
    """The network with what it remembers of one stream. weights: float32
    (`training.train_aligner.export`)."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        width = weights["enter.bias"].shape[0]
        self._before: list[np.ndarray] = []
        for dilation in DILATIONS:
            length = (KERNEL - 1) * dilation
            self._before.append(np.zeros((length, width), np.float32))
        self._late = DELAY  # answers about frames before the first, still to be dropped

    def feed(self, frames: np.ndarray) -> np.ndarray:
        """Log-probabilities [n, classes] of the frames that are decided now. frames: [m, STACK *
        MELS]."""
        w = self._weights
        x = frames @ w["enter.weight"] + w["enter.bias"]
        for i, dilation in enumerate(DILATIONS):
            x = x + self._block(x, i, dilation)
        drop = min(self._late, len(x))
        self._late -= drop
        hidden = _normal(x[drop:])
        scores: np.ndarray = hidden @ w["leave.weight"]
        scores = scores + w["leave.bias"]
        scores -= scores.max(1, keepdims=True)
        total = np.exp(scores).sum(1, keepdims=True)
        scores -= np.log(total)
        return scores

    def finish(self, frames: np.ndarray) -> np.ndarray:
        """Return those of the frames that are left, and of these, if silence follows. More frames
        may still be fed."""
        rest = copy(self)
        rest._before = list(self._before)
        silence = self._weights["silence"][None]
        following = np.repeat(silence, DELAY, axis=0)
        return rest.feed(np.concatenate((frames, following)))

    def _block(self, x: np.ndarray, i: int, dilation: int) -> np.ndarray:
        w = self._weights
        block = f"blocks.{i}"
        n = len(x)
        before = self._before[i]
        context = np.concatenate((before, x))
        # a view would keep the whole chunk
        self._before[i] = context[n:].copy()
        taps = w[f"{block}.taps"]
        total = np.zeros(1, np.float32)
        for k in range(KERNEL):
            start = k * dilation
            shifted = context[start : start + n]
            total = total + shifted * taps[k]
        y = taps[KERNEL] + total
        hidden = _normal(y) @ w[f"{block}.rise.weight"]
        hidden = hidden + w[f"{block}.rise.bias"]
        np.maximum(hidden, 0, out=hidden)
        change: np.ndarray = hidden @ w[f"{block}.fall.weight"]
        change = change + w[f"{block}.fall.bias"]
        return change


def _normal(x: np.ndarray) -> np.ndarray:
    """Each row with a mean of 0 and a deviation of 1."""
    x = x - x.mean(1, keepdims=True)
    variance = (x * x).mean(1, keepdims=True)
    x /= np.sqrt(variance + 1e-5)
    return x


class LogMelStream:
    """Cuts 16 kHz samples into frames [n, STACK * MELS], float32."""

    def __init__(self) -> None:
        self._held = np.zeros(_LEAD, np.float32)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """The frames that these samples complete."""
        samples = samples.astype(np.float32, copy=False)
        pending = np.concatenate((self._held, samples))
        num_windows = (len(pending) - _WINDOW) // HOP + 1
        count = max(0, num_windows) // STACK * STACK
        self._held = pending[count * HOP :]
        if not count:
            return np.zeros((0, STACK * MELS), np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(pending, _WINDOW)
        windows = windows[: count * HOP : HOP]
        power = []
        for start in range(0, count, _AT_ONCE):
            batch = windows[start : start + _AT_ONCE]
            power.append(_power(batch))
        mel = np.concatenate(power) @ _BANK
        frames: np.ndarray = np.log(np.maximum(mel, _FLOOR))
        return frames.reshape(-1, STACK * MELS)

    def finish(self, samples: np.ndarray) -> np.ndarray:
        """The frames that these last samples complete if silence follows. More samples may still be
        fed."""
        silence = np.zeros(STACK * HOP + _LEAD, np.float32)
        padded = np.concatenate((samples, silence))
        return copy(self).feed(padded)


def _power(windows: np.ndarray) -> np.ndarray:
    """Power [n, FFT bins] of windows [n, _WINDOW]."""
    spectrum = np.fft.rfft(windows * _HANN, _FFT)
    power: np.ndarray = spectrum.real**2 + spectrum.imag**2
    return power.astype(np.float32)


def _bank() -> np.ndarray:
    """Triangles on the mel scale, [FFT bins, MELS]."""
    low = np.log1p(_LOWEST / 700)
    high = np.log1p(_HIGHEST / 700)
    mels = np.linspace(low, high, MELS + 2)
    edges = 700 * np.expm1(mels)
    widths = np.diff(edges)
    bins = np.arange(_FFT // 2 + 1)[:, None]
    at = bins * RATE / _FFT
    rising = (at - edges[:-2]) / widths[:-1]
    falling = (edges[2:] - at) / widths[1:]
    bank: np.ndarray = np.maximum(0, np.minimum(rising, falling))
    return bank.astype(np.float32)


_BANK = _bank()
_HANN = np.hanning(_WINDOW + 1)[:-1].astype(np.float32)
