"""Effects on samples before they are encoded: speed, sample rate, watermark. They stream, and the
result does not depend on how the input is cut into chunks, as far as the watermark's does not."""

from __future__ import annotations

import numpy as np

from stentor.output.resample import Resampler, resampler
from stentor.output.watermark import Make, WatermarkStage


class Stretch:
    """WSOLA time stretch: pitch stays, `speed` 2 halves the duration (Verhelst & Roelands, 1993).

    Frames of 40 ms are added every 20 ms. Each is taken from where it continues the last one best
    (by normalised cross-correlation), within 12 ms of its nominal position. python-stretch 0.3.1
    was tried first. Fed in small blocks, it moves a 220 Hz tone to 200-215 Hz and is not
    deterministic at 0.25.
    """

    def __init__(self, speed: float, rate: int) -> None:
        self.speed = speed
        self.hop = max(2, round(0.02 * rate))
        self.tolerance = max(1, round(0.012 * rate))
        self.window = np.hanning(2 * self.hop + 1)[:-1].astype(np.float32)
        self.start = 0  # input position of buffer[0]
        self.buffer = np.zeros(0, np.float32)
        self.received = 0
        self.emitted = 0
        self.frame = 0
        self.ended = False  # what follows is silence that pushes the rest out
        self.last = 0  # input position of the last frame
        self.tail = np.zeros(self.hop, np.float32)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] -> the part of the output that is final."""
        self.received += len(samples)
        return self._advance(samples)

    def finish(self) -> np.ndarray:
        """The rest. The whole output has round(input / speed) samples."""
        length = round(self.received / self.speed)
        self.ended = True
        out = []
        silence = np.zeros(2 * self.hop, np.float32)
        while self.emitted < length:
            out.append(self._advance(silence))
        if out:
            joined = np.concatenate(out)
        else:
            joined = np.zeros(0, np.float32)
        return joined[: len(joined) - (self.emitted - length)]

    def _advance(self, samples: np.ndarray) -> np.ndarray:
        self.buffer = np.concatenate((self.buffer, samples))
        out = []
        while (block := self._step()) is not None:
            out.append(block)
        if out:
            return np.concatenate(out)
        return np.zeros(0, np.float32)

    def _step(self) -> np.ndarray | None:
        """Add one frame to the output. None: its input has not arrived."""
        size = 2 * self.hop
        due = self.received / self.speed
        if not self.ended and self.emitted + self.hop > due:
            return None  # fast speech has the input of a frame before all of that frame is due
        nominal = round(self.frame * self.hop * self.speed)
        low = max(0, nominal - self.tolerance)
        high = nominal + self.tolerance
        follow = self.last + self.hop
        if self.start + len(self.buffer) < max(high, follow) + size:
            return None
        if self.frame == 0:
            position = 0
        else:
            position = self._best(low, high, follow, size)
        frame = self._cut(position, size) * (
            self.window
            if self.frame
            else np.r_[np.ones(self.hop, np.float32), self.window[self.hop :]]
        )
        block: np.ndarray = self.tail + frame[: self.hop]
        self.tail = frame[self.hop :]
        self.last = position
        self.frame = self.frame + 1
        self.emitted += self.hop
        keep = min(
            max(0, round(self.frame * self.hop * self.speed) - self.tolerance), self.last + self.hop
        )
        self.buffer = self.buffer[keep - self.start :]
        self.start = keep
        return block

    def _cut(self, position: int, size: int) -> np.ndarray:
        return self.buffer[position - self.start : position - self.start + size]

    def _best(self, low: int, high: int, follow: int, size: int) -> int:
        """The position in [low, high] whose frame is most like the continuation of the last one."""
        target = self._cut(follow, size)
        field = self._cut(low, high - low + size)
        match = np.correlate(field, target, "valid")
        power = np.concatenate(([0.0], np.cumsum(field.astype(np.float64) ** 2)))
        energy = power[size:] - power[:-size]
        return low + int(np.argmax(match / np.sqrt(energy + 1e-9)))


class EffectChain:
    """Speed, then sample rate, then watermark: float32 [n] at `source` Hz in, float32 at `target`
    Hz out."""

    def __init__(
        self, source: int, target: int, speed: float, watermark: Make | None = None
    ) -> None:
        if speed == 1.0:
            self.stretch = None
        else:
            self.stretch = Stretch(speed, source)
        self.resample: Resampler | None
        if source == target:
            self.resample = None
        else:
            self.resample = resampler(source, target)
        if watermark is None:
            self.watermark = None
        else:
            self.watermark = WatermarkStage(watermark, target)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] -> the part of the output that is final."""
        if self.stretch is not None:
            samples = self.stretch.feed(samples)
        if self.resample is not None:
            samples = self.resample.feed(samples)
        if self.watermark is not None:
            samples = self.watermark.feed(samples)
        return samples

    def finish(self) -> np.ndarray:
        """The rest of the output."""
        rest = np.zeros(0, np.float32)
        if self.stretch is not None:
            rest = self.stretch.finish()
        if self.resample is not None:
            rest = np.concatenate((self.resample.feed(rest), self.resample.finish()))
        if self.watermark is not None:
            rest = self.watermark.finish(rest)
        return rest


def pcm16(samples: np.ndarray) -> np.ndarray:
    """float32 [n] in [-1, 1] -> int16 [n], clipped. Every 16-bit output of the package is made
    here."""
    scaled: np.ndarray = np.clip(samples, -1.0, 1.0)
    scaled *= 32767.0
    integers: np.ndarray = np.rint(scaled, out=scaled).astype("<i2")
    return integers
