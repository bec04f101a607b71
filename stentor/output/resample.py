"""Streaming resamplers of audio on its way out."""

from __future__ import annotations

import math
from functools import cache
from typing import Protocol

import numpy as np
import soxr
from numpy.lib.stride_tricks import sliding_window_view

TELEPHONE_HZ = 8000
PASSED = 0.85  # of the lower half rate: 3.4 kHz of telephone speech
ATTENUATION_DB = 90.0  # from the lower half rate on


class Resampler(Protocol):
    """float32 samples [n] at one rate in, float32 samples [m] at another out."""

    def feed(self, samples: np.ndarray) -> np.ndarray: ...

    def finish(self) -> np.ndarray: ...


def resampler(source: int, target: int) -> Resampler:
    """Return a resampler from `source` to `target` Hz."""
    if target == TELEPHONE_HZ < source:
        return TelephoneResampler(source, target)
    return SoxrResampler(source, target)


class SoxrResampler:
    """soxr HQ. Its blocks of about 490 output samples are 10 to 40 ms at 16 kHz and above."""

    def __init__(self, source: int, target: int) -> None:
        self._stream = soxr.ResampleStream(source, target, 1, "float32", "HQ")

    def feed(self, samples: np.ndarray) -> np.ndarray:
        return self._resampled(samples, last=False)

    def finish(self) -> np.ndarray:
        return self._resampled(np.zeros(0, np.float32), last=True)

    def _resampled(self, samples: np.ndarray, last: bool) -> np.ndarray:
        out: np.ndarray = self._stream.resample_chunk(
            np.ascontiguousarray(samples, np.float32), last
        )
        return out


class TelephoneResampler:
    """A linear-phase polyphase FIR filter that returns every output sample as soon as its taps have
    arrived.

    Telephone lines send a packet each 20 ms. soxr returns 8 kHz audio in bursts of 60 ms, 80 to 150
    ms late; this filter is 5 ms late and returns 20 ms for each 20 ms. It passes 3.4 kHz and
    suppresses 4 kHz by 90 dB.
    """

    def __init__(self, source: int, target: int) -> None:
        divisor = math.gcd(source, target)
        self._up = target // divisor
        self._down = source // divisor
        self._kernels = _kernels(source, target, self._up)
        self._half = self._kernels.shape[1] // 2
        # buffer[0] is input sample `start`: silence stands before the first sample
        self._start = 1 - self._half
        self._buffer = np.zeros(self._half - 1, np.float32)
        self._received = 0
        self._emitted = 0

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """Return the samples whose taps have arrived."""
        self._received += len(samples)
        return self._advance(samples)

    def finish(self) -> np.ndarray:
        """Return the rest. The whole output has round(input * target / source) samples."""
        numerator = self._received * self._up + self._down // 2
        total = numerator // self._down
        remaining = total - self._emitted
        step = self._down // self._up + 1
        silence = np.zeros(self._half + step, np.float32)
        return self._advance(silence)[:remaining]

    def _advance(self, samples: np.ndarray) -> np.ndarray:
        self._buffer = np.concatenate((self._buffer, samples), dtype=np.float32)
        complete = self._start + len(self._buffer) - self._half  # input samples with all taps
        end = math.ceil(complete * self._up / self._down)
        if end <= self._emitted:
            return np.zeros(0, np.float32)

        positions = np.arange(self._emitted, end) * self._down
        length = 2 * self._half
        centers = positions // self._up
        first_taps = centers - self._half + 1
        windows = sliding_window_view(self._buffer, length)
        windows = windows[first_taps - self._start]

        # not a matrix product: BLAS rounds a row differently with the number of rows
        out: np.ndarray
        if self._up == 1:
            out = np.einsum("nt,t->n", windows, self._kernels[0])
        else:
            phases = positions % self._up
            out = np.einsum("nt,nt->n", windows, self._kernels[phases])

        self._emitted = end
        start = end * self._down // self._up - self._half + 1
        self._buffer = self._buffer[start - self._start :]
        self._start = start
        return out


@cache
def _kernels(source: int, target: int, up: int) -> np.ndarray:
    """Taps float32 [up, taps] of each phase: a sinc in a Kaiser window, each phase with gain 1."""
    rate = min(source, target)
    half_rate = rate / 2
    cutoff = half_rate * (1 + PASSED) / source
    transition = half_rate * (1 - PASSED) / source  # in cycles per input sample

    # Kaiser's formulas for the length and the shape of the window
    radians = 2 * np.pi * transition
    length = (ATTENUATION_DB - 8) / (2.285 * radians)
    half = math.ceil(length / 2)
    beta = 0.1102 * (ATTENUATION_DB - 8.7)

    taps = np.arange(2 * half) - half + 1
    phases = np.arange(up) / up
    offsets = taps[None] - phases[:, None]
    inside = np.maximum(0, 1 - (offsets / half) ** 2)
    window = np.i0(beta * np.sqrt(inside))
    ideal = np.sinc(cutoff * offsets)

    kernels = ideal * window
    gains = kernels.sum(axis=1, keepdims=True)
    kernels = kernels / gains
    normalised: np.ndarray = kernels.astype(np.float32)
    return normalised
