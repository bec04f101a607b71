"""When each segment of a text is spoken, and each of its words, also as subtitles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar


@dataclass(frozen=True)
class WordTiming:
    """A word of the input, with the marks beside it, and when it is spoken, as in `SegmentTiming`."""

    text: str
    start: float
    end: float
    start_char: int
    end_char: int


@dataclass(frozen=True)
class SegmentTiming:
    """A segment of the input and when it is spoken, in seconds of the audio. `start_char` and `end_char` are positions
    in the input. words: those of the segment, where the request asks for them."""

    index: int
    text: str
    start: float
    end: float
    start_char: int
    end_char: int
    words: tuple[WordTiming, ...] = ()


Timed = TypeVar("Timed", SegmentTiming, WordTiming)


def words_of(segments: Iterable[SegmentTiming]) -> tuple[WordTiming, ...]:
    """The words of segments."""
    return tuple(word for segment in segments for word in segment.words)


def faster(segments: Sequence[SegmentTiming], speed: float) -> list[SegmentTiming]:
    """The times in audio that is `speed` times as fast."""
    return [_faster(replace(s, words=tuple(_faster(w, speed) for w in s.words)), speed) for s in segments]


def _faster(timing: Timed, speed: float) -> Timed:
    return replace(timing, start=timing.start / speed, end=timing.end / speed)


def srt(segments: Sequence[SegmentTiming]) -> str:
    """SubRip subtitles, one for each word of a segment that has their times."""
    cues: list[SegmentTiming | WordTiming] = [cue for s in segments for cue in (s.words or (s,))]
    return "\n".join(
        f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_line(s.text)}\n" for i, s in enumerate(cues, 1)
    )


def vtt(segments: Sequence[SegmentTiming]) -> str:
    """WebVTT subtitles. Where a segment has the times of its words, each stands behind its time."""
    cues = [f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_vtt_text(s)}\n" for s in segments]
    return "WEBVTT\n\n" + "\n".join(cues)


def _vtt_text(segment: SegmentTiming) -> str:
    if not segment.words:
        return _escaped(_line(segment.text))
    return " ".join(f"<{_clock(w.start, '.')}>{_escaped(_line(w.text))}" for w in segment.words)


def _clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
