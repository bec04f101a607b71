"""When each segment of a text is spoken, and each of its words, also as subtitles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def srt(segments: Sequence[SegmentTiming]) -> str:
    """SubRip subtitles, one for each word of a segment that has their times. In a dialogue the
    speaker's name stands before the text."""
    cues = [cue for s in segments for cue in _cues(s)]
    return "\n".join(
        f"{i}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{name}{_line(cue.text)}\n"
        for i, (name, cue) in enumerate(cues, 1)
    )


def _cues(segment: SegmentTiming) -> list[tuple[str, SegmentTiming | WordTiming]]:
    """The speaker's name where it is to be shown, and what is shown at a time."""
    if segment.voice is None:
        name = ""
    else:
        name = f"{_line(segment.voice)}: "
    if not segment.words:
        return [(name, segment)]
    return [(name if i == 0 else "", word) for i, word in enumerate(segment.words)]


def vtt(segments: Sequence[SegmentTiming]) -> str:
    """WebVTT subtitles. Where a segment has the times of its words, each stands behind its time. In
    a dialogue the speaker is the voice of the cue."""
    cues = [f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_vtt_text(s)}\n" for s in segments]
    return "WEBVTT\n\n" + "\n".join(cues)


def _vtt_text(segment: SegmentTiming) -> str:
    if segment.voice is None:
        speaker = ""
    else:
        speaker = f"<v {_escaped(_line(segment.voice))}>"
    if not segment.words:
        return speaker + _escaped(_line(segment.text))
    return speaker + " ".join(
        f"<{_clock(w.start, '.')}>{_escaped(_line(w.text))}" for w in segment.words
    )


def _clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
