"""Loudness of speech by ITU-R BS.1770, and a stage that brings speech to a target while it streams.

scipy has no place in the core packages, so the K-weighting is applied in the frequency domain. It
differs from filters in time by less than 0.1 LU on speech.
"""

from __future__ import annotations

import math

import numpy as np

BLOCK_SECONDS = 0.4
HOP_SECONDS = 0.1
SILENCE_LUFS = -70.0
"""The absolute gate: quieter blocks do not count."""
RELATIVE_GATE = -10.0
CALIBRATION = -0.691
"""A full-scale sine of 997 Hz in one channel has -3.01 LUFS."""
MAX_GAIN = 10.0
"""20 dB: more would lift the noise of a recording that is nearly silent."""
PEAK = 10 ** (-1.5 / 20)
"""Largest sample. Between samples and after a lossy encoder, peaks stay below full scale."""
LOOKAHEAD_SECONDS = 0.005

_SECTION_SECONDS = 3.2
_MARGIN_SECONDS = 0.2
# Two stages of the K-weighting, as BS.1770 has them at 48 kHz: (numerator, denominator)
_STAGES = (
    (
        (1.53512485958697, -2.69169618940638, 1.19839281085285),
        (1.0, -1.69065929318241, 0.73248077421585),
    ),
    ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)),
)
_STAGE_RATE = 48000


def integrated(samples: np.ndarray, rate: int) -> float:
    """Return the integrated loudness of mono float32 samples [n] in LUFS, -inf for silence."""
    if not len(samples):
        return -math.inf
    powers = _block_powers(samples, rate)
    loud = powers[powers > _power(SILENCE_LUFS)]
    if not len(loud):
        return -math.inf
    loud = loud[loud > 10 ** (RELATIVE_GATE / 10) * loud.mean()]
    return _lufs(float(loud.mean()))


def _lufs(power: float) -> float:
    return CALIBRATION + 10 * math.log10(power)


def _power(lufs: float) -> float:
    return float(10 ** ((lufs - CALIBRATION) / 10))


def _block_powers(samples: np.ndarray, rate: int) -> np.ndarray:
    """The weighted power [blocks] of blocks that overlap by three quarters. Audio that is shorter
    than a block is one."""
    hop = max(1, round(HOP_SECONDS * rate))
    weighted = _k_weighted(samples.astype(np.float64), rate)
    per_block = round(BLOCK_SECONDS / HOP_SECONDS)
    num_hops = len(weighted) // hop
    if num_hops < per_block:
        return np.array([np.mean(weighted**2)])
    hops = (weighted[: num_hops * hop].reshape(num_hops, hop) ** 2).mean(1)
    powers: np.ndarray = np.convolve(hops, np.full(per_block, 1 / per_block), "valid")
    return powers


def _k_weighted(samples: np.ndarray, rate: int) -> np.ndarray:
    """Samples with the magnitude of the K-weighting, in sections that overlap by a margin."""
    section = round(_SECTION_SECONDS * rate)
    margin = round(_MARGIN_SECONDS * rate)
    size = section + 2 * margin
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    weights = _weights(frequencies)
    num_sections = -(-len(samples) // section)
    padded = np.pad(samples, (margin, num_sections * section - len(samples) + margin))
    weighted = np.empty(num_sections * section)
    for start in range(0, num_sections * section, section):
        spectrum = np.fft.rfft(padded[start : start + size]) * weights
        weighted[start : start + section] = np.fft.irfft(spectrum, size)[margin : margin + section]
    return weighted[: len(samples)]


def _weights(frequencies: np.ndarray) -> np.ndarray:
    z = np.exp(-2j * np.pi * frequencies / _STAGE_RATE)
    magnitude = np.ones(len(frequencies))
    for numerator, denominator in _STAGES:
        magnitude *= np.abs(np.polyval(numerator[::-1], z) / np.polyval(denominator[::-1], z))
    return magnitude


class Limiter:
    """A peak limiter that looks ahead, so that no sample is beyond PEAK and none is clipped.

    Its output is as long as its input, and does not depend on how that is cut into chunks.
    """

    def __init__(self, rate: int) -> None:
        self._size = max(1, round(LOOKAHEAD_SECONDS * rate))
        self._buffer = np.zeros(self._size, np.float32)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] -> the part of the output that is final."""
        buffer = np.concatenate((self._buffer, samples))
        size = self._size
        num_final = len(buffer) - 2 * size
        if num_final <= 0:
            self._buffer = buffer
            return np.zeros(0, np.float32)
        self._buffer = buffer[num_final:]
        final = buffer[size : size + num_final]
        peaks = np.abs(buffer)
        if peaks.max() <= PEAK:
            return final
        gains = np.minimum(1.0, PEAK / np.maximum(peaks, PEAK))
        # the smallest gain that is due soon, then its mean: smooth, and in time for each peak
        lowest = _windows(gains, size + 1).min(1)
        smooth = _windows(lowest, size + 1).mean(1)
        limited: np.ndarray = (final * smooth).astype(np.float32)
        return limited

    def finish(self) -> np.ndarray:
        """The rest of the output."""
        return self.feed(np.zeros(self._size, np.float32))


def _windows(values: np.ndarray, size: int) -> np.ndarray:
    windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(values, size)
    return windows


class Leveller:
    """Brings speech to a loudness. The first `hold` seconds set the gain of all that follows."""

    def __init__(self, rate: int, lufs: float, hold: float) -> None:
        self._rate = rate
        self._lufs = lufs
        self._hold = hold
        self._held: list[np.ndarray] = []
        self._num_held = 0
        self._gain: float | None = None
        self._limiter = Limiter(rate)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] -> the part of the output that is final."""
        if self._gain is not None:
            return self._limiter.feed(samples * np.float32(self._gain))
        self._held.append(samples)
        self._num_held += len(samples)
        if self._num_held < self._hold * self._rate:
            return np.zeros(0, np.float32)
        return self._begin()

    def finish(self) -> np.ndarray:
        """The rest of the output."""
        if self._gain is None:
            return np.concatenate((self._begin(), self._limiter.finish()))
        return self._limiter.finish()

    def _begin(self) -> np.ndarray:
        """Set the gain by what is held, and return the first of the output."""
        empty = np.zeros(0, np.float32)
        beginning = np.concatenate([empty, *self._held])
        self._held = []
        loudness = integrated(beginning, self._rate)
        if loudness == -math.inf:
            self._gain = 1.0
        else:
            self._gain = min(MAX_GAIN, float(10 ** ((self._lufs - loudness) / 20)))
        return self._limiter.feed(beginning * np.float32(self._gain))
