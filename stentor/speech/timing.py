"""When each segment of a text is spoken, also as subtitles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SegmentTiming:
    """A segment of the input and when it is spoken, in seconds of the audio. `start_char` and `end_char` are positions
    in the input."""

    index: int
    text: str
    start: float
    end: float
    start_char: int
    end_char: int


def faster(segments: Sequence[SegmentTiming], speed: float) -> list[SegmentTiming]:
    """The times in audio that is `speed` times as fast."""
    return [replace(s, start=s.start / speed, end=s.end / speed) for s in segments]


def srt(segments: Sequence[SegmentTiming]) -> str:
    """SubRip subtitles."""
    return "\n".join(
        f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_line(s.text)}\n" for i, s in enumerate(segments, 1)
    )


def vtt(segments: Sequence[SegmentTiming]) -> str:
    """WebVTT subtitles."""
    cues = [f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_escaped(_line(s.text))}\n" for s in segments]
    return "WEBVTT\n\n" + "\n".join(cues)


def _clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
