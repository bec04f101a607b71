"""A listener who plays a stream as it comes: how far the stream is ahead, how long the listener had to wait."""

from __future__ import annotations

import time

import numpy as np

from stentor.silence import AUDIBLE_PEAK

OK_SECONDS = 0.1  # a stall that short still counts as continuous (vLLM-Omni's threshold)


class Playback:
    """Fed with each block of audio as it leaves. Seconds throughout."""

    def __init__(self, asked: float, rate: float) -> None:
        self.asked, self.rate = asked, rate
        self.first: float | None = None
        self.sent = 0.0
        self.underrun = 0.0
        self.audible: float | None = None  # request to first audible sample, as played
        self._ends = 0.0  # when what has been sent will have been played, stalls included

    def add(self, samples: np.ndarray) -> None:
        """`samples` float32 [n] leave now, at `rate` samples per second of playback."""
        now = time.monotonic()
        if self.first is None:
            self.first = now
        self.underrun = max(self.underrun, now - self.first - self.sent)
        if self.audible is None and len(loud := np.flatnonzero(np.abs(samples) > AUDIBLE_PEAK)):
            at = self.first + self.sent + loud[0] / self.rate
            self.audible = max(now, at) - self.asked
        seconds = len(samples) / self.rate
        self.sent += seconds
        self._ends = max(self._ends, now) + seconds

    @property
    def heard(self) -> float:
        """How much of the audio has been played by now."""
        return self.sent - min(self.sent, max(0.0, self._ends - time.monotonic()))

    @property
    def lead(self) -> float:
        """How much audio the listener still has."""
        return 0.0 if self.first is None else self.sent - (time.monotonic() - self.first)
