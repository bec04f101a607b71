"""Log-mel features of a stream of samples, in numpy."""

from __future__ import annotations

from copy import copy

import numpy as np

RATE = 16_000
HOP = 160
"""Samples between two windows, 10 ms."""
STACK = 2
"""Windows of a frame, so a frame is 20 ms."""
MELS = 64
FRAME_SECONDS = HOP * STACK / RATE
_WINDOW, _FFT = 400, 512
_LEAD = (_WINDOW - HOP) // 2  # zeros in front, so that the middle of window k is the middle of its hop
_FLOOR = 1e-5
_LOWEST, _HIGHEST = 60.0, 7600.0  # Hz


class LogMel:
    """Cuts 16 kHz samples into frames [n, STACK * MELS], float32."""

    def __init__(self) -> None:
        self._held = np.zeros(_LEAD, np.float32)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """The frames that these samples complete."""
        held = np.concatenate((self._held, samples.astype(np.float32, copy=False)))
        count = max(0, (len(held) - _WINDOW) // HOP + 1) // STACK * STACK
        self._held = held[count * HOP :]
        if not count:
            return np.zeros((0, STACK * MELS), np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(held, _WINDOW)[: count * HOP : HOP] * _HANN
        spectrum = np.fft.rfft(windows, _FFT)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        frames: np.ndarray = np.log(np.maximum(power @ _BANK, _FLOOR))
        return frames.reshape(-1, STACK * MELS)

    def finish(self) -> np.ndarray:
        """Frames that are left if silence follows. More samples may still be fed."""
        return copy(self).feed(np.zeros(STACK * HOP + _LEAD, np.float32))


def _bank() -> np.ndarray:
    """Triangles on the mel scale, [FFT bins, MELS]."""
    low, high = np.log1p(_LOWEST / 700), np.log1p(_HIGHEST / 700)
    edges = 700 * np.expm1(np.linspace(low, high, MELS + 2))
    at = np.arange(_FFT // 2 + 1)[:, None] * RATE / _FFT
    rising, falling = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    bank: np.ndarray = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return bank


_BANK = _bank()
_HANN = np.hanning(_WINDOW + 1)[:-1].astype(np.float32)
