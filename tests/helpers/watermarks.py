"""Watermarks of a package that is not stentor's: one that works, and those that break what they declare."""

from __future__ import annotations

import numpy as np

LOUD = 0.05
QUIET = 1 / 64  # what is left of the audio: the toy model's is so loud that a sum would be clipped


def tone(count: int, start: int = 0) -> np.ndarray:
    """The mark itself, float32 [count], from sample `start` on."""
    return (LOUD * np.sin(2 * np.pi * np.arange(start, start + count) / 8)).astype(np.float32)


class Tone:
    """Adds a tone to audio that it makes quiet, and waits for 10 ms that it does not need."""

    def __init__(self, rate: int) -> None:
        self.look_ahead = self.delay = rate // 100
        self.held = np.zeros(0, np.float32)
        self.made = 0

    def process(self, samples: np.ndarray) -> np.ndarray:
        samples *= QUIET
        samples += tone(len(samples), self.made)
        self.made += len(samples)
        self.held = np.concatenate((self.held, samples))
        ready = max(0, len(self.held) - self.delay)
        out, self.held = self.held[:ready], self.held[ready:]
        return out

    def flush(self) -> np.ndarray:
        return self.held


class Slow(Tone):
    """Holds back more than it declares."""

    def __init__(self, rate: int) -> None:
        super().__init__(rate)
        self.look_ahead = 1


class Short(Tone):
    """Loses what it has held back."""

    def flush(self) -> np.ndarray:
        return self.held[1:]


class Doubles(Tone):
    """Returns another kind of numbers."""

    def process(self, samples: np.ndarray) -> np.ndarray:
        return super().process(samples).astype(np.float64)


class NotFinite(Tone):
    def process(self, samples: np.ndarray) -> np.ndarray:
        return super().process(samples) * np.float32(np.nan)


class Backwards(Tone):
    """Declares a look-ahead that is none."""

    def __init__(self, rate: int) -> None:
        super().__init__(rate)
        self.look_ahead = -1


class FailsLater(Tone):
    """Works where it is tried, at the rates that are sent, and not in the middle of what the toy model speaks."""

    def __init__(self, rate: int) -> None:
        super().__init__(rate)
        self.good = 100 if rate < 8000 else rate

    def process(self, samples: np.ndarray) -> np.ndarray:
        if self.made + len(samples) > self.good:
            raise RuntimeError("no more marks")
        return super().process(samples)


class HighOnly(Tone):
    def __init__(self, rate: int) -> None:
        if rate < 16_000:
            raise ValueError("needs 16 kHz")
        super().__init__(rate)
