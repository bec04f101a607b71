"""A dialogue: turns of several voices, as a list or as marks in a text.

[voice: anna] Did you hear that? [voice: ben] Hear what?
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stentor.arguments import not_unicode, shown
from stentor.errors import InvalidRequest
from stentor.text.markup import LONGEST_PAUSE, MOST_SILENCE

MOST_TURNS = 1000
MOST_VOICES = 16
"""Different voices of one dialogue."""
FIELDS = ("voice", "text", "pause")
_MARK = re.compile(r"\[voice:\s*([^\[\]\n]{1,80}?)\s*\]", re.IGNORECASE)


@dataclass(frozen=True)
class Turn:
    """The words of one voice. voice: its name, None for the request's own. pause: seconds of silence behind it, None
    for the usual pause. start: its place in the text that was given. field: of a script that holds it."""

    text: str
    voice: str | None = None
    pause: float | None = None
    start: int = 0
    field: str | None = None

    def named(self, name: str) -> str:
        """The name of one of its fields, for errors."""
        return "text" if self.field is None else f"{self.field}.{name}"


def marked(text: str) -> list[Turn]:
    """The turns of a text with marks, each up to the next mark. Marks with nothing behind them are left out.

    A text without marks is one turn. InvalidRequest("text") for marks without words.
    """
    marks = list(_MARK.finditer(text))
    if not marks:
        return [Turn(text)]
    starts = [0, *(m.end() for m in marks)]
    ends = [*(m.start() for m in marks), len(text)]
    voices = [None, *(m[1] for m in marks)]
    found = [
        Turn(text[start:end], voice, None, start)
        for start, end, voice in zip(starts, ends, voices, strict=True)
        if text[start:end].strip()
    ]
    if not found:
        raise InvalidRequest("text", "has no words besides its marks")
    return _checked(found, "text")


def scripted(given: object) -> list[Turn]:
    """The turns of a list of `{"voice", "text", "pause"}`. InvalidRequest names the field of the turn that is wrong."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise InvalidRequest("script", f"must be a list of turns, got {type(given).__name__}")
    if not given:
        raise InvalidRequest("script", "must not be empty")
    if len(given) > MOST_TURNS:
        raise InvalidRequest("script", f"has {len(given)} turns, at most {MOST_TURNS} are allowed")
    return _checked([_turn(turn, f"script[{i}]") for i, turn in enumerate(given)], "script")


def _turn(given: Any, where: str) -> Turn:
    if not isinstance(given, Mapping):
        raise InvalidRequest(where, f"must be an object of {', '.join(FIELDS)}, got {type(given).__name__}")
    for name in given:
        if name not in FIELDS:
            raise InvalidRequest(f"{where}.{str(name)[:80]}", f"is not known; a turn has {', '.join(FIELDS)}")
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
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= LONGEST_PAUSE:
        raise InvalidRequest(where, f"must be seconds from 0 to {LONGEST_PAUSE:g}, got {shown(given)}")
    return float(given)


def _checked(turns: list[Turn], param: str) -> list[Turn]:
    voices = {turn.voice for turn in turns}
    if len(voices) > MOST_VOICES:
        raise InvalidRequest(param, f"has {len(voices)} voices, at most {MOST_VOICES} are allowed")
    silence = sum(turn.pause or 0.0 for turn in turns)
    if silence > MOST_SILENCE:
        raise InvalidRequest(param, f"has pauses of {silence:.0f} s together, at most {MOST_SILENCE:.0f} s are allowed")
    return turns
