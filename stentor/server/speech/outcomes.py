"""What is counted and timed of a request, outcomes of recent requests, and segment times as subtitles."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from stentor.server.limits import LIMITS

MAX_OUTCOMES = LIMITS.outcomes


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


@dataclass
class Usage:
    """What a request has used and generated so far."""

    input_tokens: int = 0
    audio_tokens: int = 0  # of those, positions that hold reference audio
    frames: int = 0
    samples: int = 0  # at the model's rate, pauses included

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's usage object. Output tokens are frames."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.frames,
            "total_tokens": self.input_tokens + self.frames,
            "input_token_details": {
                "text_tokens": self.input_tokens - self.audio_tokens,
                "audio_tokens": self.audio_tokens,
            },
        }


@dataclass
class Timing:
    """Moments of one request, on time.monotonic()'s clock."""

    received: float = field(default_factory=time.monotonic)
    submitted: float | None = None
    first: float | None = None
    done: float | None = None

    def header(self) -> str:
        """The Server-Timing header for what is known."""
        marks = [("prepare", self.received, self.submitted), ("first-audio", self.submitted, self.first)]
        marks.append(("total", self.received, self.done))
        return ", ".join(f"{n};dur={(b - a) * 1000:.1f}" for n, a, b in marks if a is not None and b is not None)


@dataclass
class Outcome:
    """What is known of one request. It runs until `finish_reason` is set."""

    id: str
    model: str
    status: str = "running"  # running, completed, failed, cancelled
    finish_reason: str | None = None
    seed: int | None = None
    duration: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)
    segments: list[SegmentTiming] = field(default_factory=list)
    error: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"object": "audio.speech.outcome", **asdict(self)}


class Outcomes:
    """The last MAX_OUTCOMES requests by id."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Outcome] = OrderedDict()

    def add(self, outcome: Outcome) -> None:
        self._kept[outcome.id] = outcome
        self._kept.move_to_end(outcome.id)
        while len(self._kept) > MAX_OUTCOMES:
            self._kept.popitem(last=False)

    def get(self, id: str) -> Outcome | None:
        return self._kept.get(id)


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
