"""The segments of one request as one audio: joined without clicks, with pauses, and timed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stentor.speech.timing import SegmentTiming
from stentor.speech.words import Span, timed
from stentor.text.pauses import PAUSES
from stentor.text.segments import shown
from stentor.text.sentences import Segment

UNSPOKEN_SECONDS = 0.3  # of silence in place of a text that cannot be spoken
FADE_SECONDS = 0.005


class JoinedAudio:
    """Joins the segments of one request in their order, and counts what it gives out.

    For each segment call `begin`, `feed` with its samples, `note_end` and `close`. rate: Hz of the samples. speed: how
    much faster a client plays them than they are. alone: there is one segment, of which nothing is kept back.
    """

    def __init__(self, rate: int, speed: float = 1.0, alone: bool = False) -> None:
        self.rate, self.speed = rate, speed
        self.samples = 0  # given out so far, pauses included
        self.timings: list[SegmentTiming] = []
        self.ending = "stop"  # of the last segment that did not end by itself
        self._joiner = SegmentJoiner(rate, 0.0 if alone else FADE_SECONDS)
        self._start = 0

    @property
    def duration(self) -> float:
        """Seconds of audio so far, as a client plays them."""
        return self.samples / self.rate / self.speed

    def begin(self, segment: Segment) -> np.ndarray:
        """A segment begins, with the silence that its text asks for."""
        silence = self._out(np.zeros(round(segment.before * self.rate * self.speed), np.float32))
        self._start = self.samples + len(self._joiner.held)
        return silence

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 samples [n] of the segment -> what may go out now. The last 5 ms are kept."""
        return self._out(self._joiner.feed(samples))

    def note_end(self, segment: Segment, samples: int, finish: str, spans: Sequence[Span | None] = ()) -> None:
        """Note the times of the segment, which has had so many `samples`, and how it ended. spans: of its words."""
        if finish != "stop":
            self.ending = finish
        begin, end = (at / self.rate / self.speed for at in (self._start, self._start + samples))
        s, words = segment, timed(segment.words, spans, begin, end, self.speed) if spans else ()
        at = len(self.timings)
        self.timings.append(SegmentTiming(at, shown(s.text), begin, end, s.start, s.end, words, s.voice, s.turn))

    def close(self, segment: Segment, last: bool, cut: bool = False) -> np.ndarray:
        """The end of the segment, and the pause behind it. The last has one if its text asks for it.

        cut: it broke off inside its sound.
        """
        usual = 0.0 if last else PAUSES[segment.ending]
        pause = usual if segment.after is None else segment.after * self.speed
        return self._out(self._joiner.end_segment(pause, fade=not last or cut or segment.after is not None))

    def close_early(self) -> np.ndarray:
        """The faded end of a segment of which it is not known whether another follows. See `pause`."""
        return self._out(self._joiner.end_segment(0.0, fade=True))

    def pause(self, before: Segment, following: Segment) -> np.ndarray:
        """The pause between two segments, besides what the second begins with."""
        usual = 0.0 if following.before else PAUSES[before.ending]
        pause = usual if before.after is None else before.after * self.speed
        return self._out(np.zeros(round(pause * self.rate), np.float32))

    def _out(self, samples: np.ndarray) -> np.ndarray:
        self.samples += len(samples)
        return samples


def unspoken(rate: int) -> np.ndarray:
    """float32 samples [n] in place of a segment with nothing to speak in it."""
    return np.zeros(round(UNSPOKEN_SECONDS * rate), np.float32)


class SegmentJoiner:
    """Joins segments end to end without clicks: the first and last 5 ms of each are faded.

    Only the length of a fade is held back while a segment runs, so streaming loses 5 ms.
    """

    def __init__(self, rate: int, fade_seconds: float = FADE_SECONDS) -> None:
        self.rate = rate
        self.length = round(fade_seconds * rate)
        self.held = np.zeros(0, np.float32)
        self.fade_in = False  # the very first samples stay as they are

    @cached_property
    def ramp(self) -> np.ndarray:
        """Gains of a fade: float32 [length]. Speech of one segment needs none."""
        return np.linspace(0, 1, self.length, dtype=np.float32)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        joined = np.concatenate((self.held, samples))
        if self.fade_in and len(joined) >= 2 * self.length:
            joined[: self.length] *= self.ramp
            self.fade_in = False
        elif self.fade_in:
            self.held = joined
            return joined[:0]
        cut = max(0, len(joined) - self.length)
        self.held = joined[cut:]
        return joined[:cut]

    def end_segment(self, pause: float, fade: bool) -> np.ndarray:
        """The end of a segment, faded if another follows or if it was cut, and `pause` seconds of silence."""
        tail = self.held
        self.held = tail[:0]
        if fade and len(tail):
            tail = tail * np.linspace(1, 0, len(tail), dtype=np.float32)
        self.fade_in = fade
        return np.concatenate((tail, np.zeros(round(pause * self.rate), np.float32)))
