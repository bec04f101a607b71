"""When each segment of a text is spoken, and each of its words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class WordTiming:
    """A word of the input, with the marks beside it, and when it is spoken, as in
    `SegmentTiming`."""

    text: str
    start: float
    end: float
    start_char: int
    end_char: int


@dataclass(frozen=True)
class SegmentTiming:
    """A segment of the input and when it is spoken, in seconds of the audio. `start_char` and
    `end_char` are positions in the input. words: those of the segment, where the request has them
    on. voice, turn: who speaks it and in which turn, in a dialogue. Of a script, `start_char` and
    `end_char` are places in the turn's text."""

    index: int
    text: str
    start: float
    end: float
    start_char: int
    end_char: int
    words: tuple[WordTiming, ...] = ()
    voice: str | None = None
    turn: int | None = None


def words_of(segments: Iterable[SegmentTiming]) -> tuple[WordTiming, ...]:
    """The words of segments."""
    return tuple(word for segment in segments for word in segment.words)
