"""Counts and times of a request, what its client has played, and outcomes of recent requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from stentor.audio.silence import AUDIBLE_PEAK
from stentor.server.limits import LIMITS
from stentor.speech.timing import SegmentTiming, WordTiming, words_of

MAX_OUTCOMES = LIMITS.outcomes
OK_SECONDS = 0.1  # a stall that short still counts as continuous (vLLM-Omni's threshold)


@dataclass
class Usage:
    """Tokens and audio that a request has used and made so far."""

    input_tokens: int = 0
    audio_tokens: int = 0  # of those, positions that hold reference audio
    frames: int = 0

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
    ended: float | None = None
    # of a traced request: when it was sent, and messages.Audio.moments
    engine: tuple[float, ...] = ()
    encoded: float | None = None  # the first bytes of the container were made
    flushed: float | None = None  # the connection took them

    def header(self) -> str:
        """The Server-Timing header for what is known."""
        marks = [
            ("prepare", self.received, self.submitted),
            ("first-audio", self.submitted, self.first),
        ]
        marks.append(("total", self.received, self.ended))
        return ", ".join(
            f"{n};dur={(b - a) * 1000:.1f}" for n, a, b in marks if a is not None and b is not None
        )


@dataclass
class Outcome:
    """Record of one request. It runs until `finish_reason` is set."""

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
        segments = [timing_as_dict(s) for s in self.segments]
        words = [word_as_dict(w) for w in words_of(self.segments)]
        if words:
            more = {"words": words}
        else:
            more = {}
        return {"object": "audio.speech.outcome", **asdict(self), "segments": segments, **more}


def timing_as_dict(timing: SegmentTiming) -> dict[str, Any]:
    """One segment's times as clients see them."""
    if timing.turn is None:
        speaker = {}
    else:
        speaker = {"voice": timing.voice, "turn": timing.turn}
    return {"index": timing.index, "text": timing.text, **_times(timing), **speaker}


def word_as_dict(word: WordTiming) -> dict[str, Any]:
    """A word's times as clients see them, with OpenAI's names."""
    return {"word": word.text, **_times(word)}


def _times(timing: SegmentTiming | WordTiming) -> dict[str, Any]:
    return {
        "start": round(timing.start, 4),
        "end": round(timing.end, 4),
        "start_char": timing.start_char,
        "end_char": timing.end_char,
    }


class Outcomes:
    """The last `most` requests of this process by id."""

    def __init__(self, most: int = MAX_OUTCOMES) -> None:
        self._most = most
        self._kept: OrderedDict[str, Outcome] = OrderedDict()

    def add(self, outcome: Outcome) -> None:
        self._kept[outcome.id] = outcome
        self._kept.move_to_end(outcome.id)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def note_end(self, outcome: Outcome) -> None:
        """The request has ended, and its outcome changes no more. This process needs to do
        nothing."""

    async def find(self, id: str) -> Outcome | None:
        """The outcome of a request that this process has served."""
        return self._kept.get(id)


class ClientPlayback:
    """An estimate of what a client has played, and of the stalls it had, if it plays a stream as it
    arrives. It is fed each block of audio as it is sent. All times are in seconds.

    The engine keeps a model of its own (`Sequence.lead`), which cannot be used here: it counts the
    audio of one segment at the model's rate when the engine delivers it. This one counts what
    leaves the server for a whole request, with pauses between segments, time stretch and audio that
    is held back.
    """

    def __init__(self, requested: float, rate: float) -> None:
        self.requested = requested
        self.rate = rate
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
        if self.first is None:
            return 0.0
        return self.sent - (time.monotonic() - self.first)
