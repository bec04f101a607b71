"""An estimate of what a client has played, and of the stalls it had, if it plays a stream as it arrives."""

from __future__ import annotations

import time

import numpy as np

from stentor.silence import AUDIBLE_PEAK

OK_SECONDS = 0.1  # a stall that short still counts as continuous (vLLM-Omni's threshold)


class ClientPlayback:
    """One client. It is fed each block of audio as it is sent. All times are in seconds.

    The engine keeps a model of its own (`Sequence.lead`), which cannot be used here: it counts the audio of one segment
    at the model's rate when the engine delivers it. This one counts what leaves the server for a whole request, with
    pauses between segments, time stretch and audio that is held back.
    """

    def __init__(self, requested: float, rate: float) -> None:
        self.requested, self.rate = requested, rate
        self.first: float | None = None
        self.sent = 0.0
        self.underrun = 0.0
        self.audible: float | None = None  # request to first audible sample, as played
        self._ends = 0.0  # when all that has been sent will have been played, stalls included

    def add(self, samples: np.ndarray) -> None:
        """`samples` float32 [n] are sent now. They are played at `rate` samples per second."""
        now = time.monotonic()
        if self.first is None:
            self.first = now
        self.underrun = max(self.underrun, now - self.first - self.sent)
        if self.audible is None and len(loud := np.flatnonzero(np.abs(samples) > AUDIBLE_PEAK)):
            at = self.first + self.sent + loud[0] / self.rate
            self.audible = max(now, at) - self.requested
        seconds = len(samples) / self.rate
        self.sent += seconds
        self._ends = max(self._ends, now) + seconds

    @property
    def played_seconds(self) -> float:
        """How much of the audio the client has played by now."""
        return self.sent - min(self.sent, max(0.0, self._ends - time.monotonic()))

    @property
    def lead(self) -> float:
        """How much audio the client has buffered."""
        return 0.0 if self.first is None else self.sent - (time.monotonic() - self.first)
