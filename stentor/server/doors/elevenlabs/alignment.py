"""When each character of a text is spoken: by its words where the model knows their times, else by its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.speech.timing import SegmentTiming


@dataclass(frozen=True)
class Characters:
    """Characters in a row. bounds: seconds [n + 1], where each begins, and where the last ends."""

    text: str
    bounds: np.ndarray

    def as_seconds(self) -> dict[str, Any]:
        """Times in seconds, for answers over HTTP."""
        return {
            "characters": list(self.text),
            "character_start_times_seconds": self.bounds[:-1].round(4).tolist(),
            "character_end_times_seconds": self.bounds[1:].round(4).tolist(),
        }

    def as_ms(self) -> dict[str, Any]:
        """Times for messages over WebSocket: whole milliseconds, from the first character on."""
        ms = np.rint(1000 * self.bounds).astype(int)
        return {
            "chars": list(self.text),
            "charStartTimesMs": (ms[:-1] - ms[0]).tolist(),
            "charDurationsMs": np.diff(ms).tolist(),
        }


class Aligner:
    """Gives the characters of a text once each, in order. What lies between two segments belongs to the second.

    Between the places whose times are known, characters share the time evenly.
    """

    def __init__(self) -> None:
        self.at, self.seconds = 0, 0.0  # given so far

    def take(self, text: str, segments: Sequence[SegmentTiming], rest: bool = False) -> Characters:
        """Take characters to the end of the last of these segments. rest: with what no segment has, as a line end."""
        places = [(self.at, self.seconds)]
        for times in segments:
            places.append((times.start_char, times.start))
            for word in times.words:
                places += [(word.start_char, word.start), (word.end_char, word.end)]
            places.append((times.end_char, times.end))
        begin, stop = self.at, len(text) if rest else max(self.at, min(places[-1][0], len(text)))
        positions, seconds = np.maximum.accumulate(np.array(places, float)).T
        bounds = np.interp(np.arange(begin, stop + 1), positions, seconds)
        self.at, self.seconds = stop, float(bounds[-1])
        return Characters(text[begin:stop], bounds)
