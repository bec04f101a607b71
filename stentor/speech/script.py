"""A text, or a dialogue of several voices, cut into the segments that are spoken one at a time.

A dialogue is a list of turns, or a text with marks: [voice: anna] Is it late? [voice: ben]
Not yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stentor.arguments import not_unicode, shown
from stentor.errors import InvalidRequest
from stentor.models.info import ModelInfo
from stentor.text.cleanup import ALL, steps
from stentor.text.lexicon import Lexicon
from stentor.text.pauses import LONGEST_PAUSE, MAX_SILENCE, PAUSES
from stentor.text.segments import Reading
from stentor.text.sentences import MAX_CHARS, Segment

MAX_TURNS = 1000
MAX_VOICES = 16
"""Different voices of one dialogue."""
FIELDS = ("voice", "text", "pause")
_MARK = re.compile(r"\[voice:\s*([^\[\]\n]{1,80}?)\s*\]", re.IGNORECASE)


@dataclass(frozen=True)
class Turn:
    """The words of one voice. voice: its name, None for the request's own. pause: seconds of
    silence behind it, None for the usual pause. start: its place in the original text. field:
    of a script that holds it."""

    text: str
    voice: str | None = None
    pause: float | None = None
    start: int = 0
    field: str | None = None

    def named(self, name: str) -> str:
        """The name of one of its fields, for errors."""
        if self.field is None:
            return "text"
        return f"{self.field}.{name}"


def marked(text: str) -> list[Turn]:
    """The turns of a text with marks, each up to the next mark. Marks with nothing behind them are
    left out.

    A text without marks is one turn. InvalidRequest("text") for marks without words.
    """
    marks = list(_MARK.finditer(text))
    if not marks:
        return [Turn(text)]
    starts = [0, *(m.end() for m in marks)]
    ends = [*(m.start() for m in marks), len(text)]
    voices = [None, *(m[1] for m in marks)]
    turns = [
        Turn(text[start:end], voice, None, start)
        for start, end, voice in zip(starts, ends, voices, strict=True)
        if text[start:end].strip()
    ]
    if not turns:
        raise InvalidRequest("text", "has no words besides its marks")
    return _checked(turns, "text")


def scripted(given: object) -> list[Turn]:
    """The turns of a list of `{"voice", "text", "pause"}`. InvalidRequest names the field of the
    turn that is wrong."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise InvalidRequest("script", f"must be a list of turns, got {type(given).__name__}")
    if not given:
        raise InvalidRequest("script", "must not be empty")
    if len(given) > MAX_TURNS:
        raise InvalidRequest("script", f"has {len(given)} turns, at most {MAX_TURNS} are allowed")
    return _checked([_turn(turn, f"script[{i}]") for i, turn in enumerate(given)], "script")


def _turn(given: Any, where: str) -> Turn:
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            where, f"must be an object of {', '.join(FIELDS)}, got {type(given).__name__}"
        )
    for name in given:
        if name not in FIELDS:
            raise InvalidRequest(
                f"{where}.{str(name)[:80]}", f"is not known; a turn has {', '.join(FIELDS)}"
            )
    voice, text, pause = (given.get(name) for name in FIELDS)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.text", f"must be a string, got {type(text).__name__}")
    if not text.strip():
        raise InvalidRequest(f"{where}.text", "must not be empty")
    if voice is not None and not isinstance(voice, str):
        raise InvalidRequest(f"{where}.voice", f"must be a string, got {type(voice).__name__}")
    for name, value in (("text", text), ("voice", voice or "")):
        if (wrong := not_unicode(value)) is not None:
            raise InvalidRequest(f"{where}.{name}", wrong)
    return Turn(text, (voice or "").strip() or None, _pause(pause, f"{where}.pause"), field=where)


def _pause(given: object, where: str) -> float | None:
    if given is None:
        return None
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not 0 <= given <= LONGEST_PAUSE
    ):
        raise InvalidRequest(
            where, f"must be seconds from 0 to {LONGEST_PAUSE:g}, got {shown(given)}"
        )
    return float(given)


def _checked(turns: list[Turn], param: str) -> list[Turn]:
    voices = {turn.voice for turn in turns}
    if len(voices) > MAX_VOICES:
        raise InvalidRequest(param, f"has {len(voices)} voices, at most {MAX_VOICES} are allowed")
    silence = sum(turn.pause or 0.0 for turn in turns)
    if silence > MAX_SILENCE:
        raise InvalidRequest(
            param,
            f"has pauses of {silence:.0f} s together, at most {MAX_SILENCE:.0f} s are allowed",
        )
    return turns


def reading(
    spec: ModelInfo, lexicon: Lexicon | None, cleanup: str, language: str | None = None
) -> Reading:
    """How a family reads text. InvalidRequest("cleanup") for a step that is not known, or has no
    such language."""
    if not isinstance(cleanup, str):
        raise InvalidRequest("cleanup", f"must be a string, got {type(cleanup).__name__}")
    if language == "auto":
        notation = None
    else:
        notation = language
    return Reading(
        spec.marks, spec.phonemes, lexicon, steps(cleanup, notation), spec.unread, spec.dashes
    )


def dialogue(
    spec: ModelInfo,
    turns: Sequence[Turn],
    granularity: str,
    max_chars: int = MAX_CHARS,
    lexicon: Lexicon | None = None,
    cleanup: str = ALL,
    language: str | None = None,
    streaming: bool = False,
) -> list[Segment]:
    """Cut turns into segments of at most `max_chars` characters, with their own pauses and those
    between turns. A text without marks is no turn.

    "auto" is as the family wants it, else one segment if a text is short and sentences grouped up
    to `max_chars` characters if not. A stream begins with a short one where `spec.short_start`.
    cleanup: steps of the clean-up (text/cleanup). language: of
    the text, for its notations. InvalidRequest names the text of a turn with pauses and no words,
    or with pauses that are too long together, and "cleanup" for a step that is not known.
    """
    read = reading(spec, lexicon, cleanup, language)
    opening = replace(read, short_start=streaming and spec.short_start)
    segment_chars = min(max_chars, spec.max_text)
    if granularity == "auto":
        level = spec.split_granularity
    else:
        level = granularity
    segments: list[Segment] = []
    for i, turn in enumerate(turns):
        try:
            cut = (read if segments else opening).segments(turn.text, segment_chars, level)
        except InvalidRequest as e:
            raise InvalidRequest(turn.named(e.param), e.message) from None
        if not cut:
            raise InvalidRequest(turn.named("text"), "has no words besides its marks")
        if len(turns) == 1 and turn.voice is None and turn.field is None:
            return cut
        if turn.pause is not None:
            cut[-1] = replace(cut[-1], after=turn.pause)
        elif cut[-1].after is None and i + 1 < len(turns):
            cut[-1] = replace(cut[-1], after=PAUSES["turn"])
        segments += [
            replace(segment.moved(turn.start), voice=turn.voice, turn=i) for segment in cut
        ]
    return segments
