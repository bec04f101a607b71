"""Cutting a text, or the turns of a dialogue, into the segments that are spoken one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stentor.errors import InvalidRequest
from stentor.models.info import ModelInfo
from stentor.text.cleanup import ALL, steps
from stentor.text.lexicon import Lexicon
from stentor.text.pauses import PAUSES
from stentor.text.script import Turn
from stentor.text.segments import Reading
from stentor.text.sentences import MAX_CHARS, Segment


def reading(spec: ModelInfo, lexicon: Lexicon | None, cleanup: str, language: str | None = None) -> Reading:
    """How a family reads text. InvalidRequest("cleanup") for a step that is not known, or has no such language."""
    if not isinstance(cleanup, str):
        raise InvalidRequest("cleanup", f"must be a string, got {type(cleanup).__name__}")
    named = None if language == "auto" else language
    return Reading(spec.marks, spec.phonemes, lexicon, steps(cleanup, named), spec.unread)


def segments(
    spec: ModelInfo,
    text: str,
    granularity: str,
    max_chars: int = MAX_CHARS,
    lexicon: Lexicon | None = None,
    cleanup: str = ALL,
    language: str | None = None,
) -> list[Segment]:
    """Split a text into segments of at most `max_chars` characters, with the pauses that it asks for.

    "auto" is as the family wants it, else one segment if the text is short and sentences grouped up to `max_chars`
    characters if not. cleanup: steps of the clean-up (text/cleanup). language: of the text, for its notations.
    InvalidRequest("text") if there are pauses and no words, or pauses that are too long together, and
    InvalidRequest("cleanup") for a step that is not known.
    """
    wanted = spec.split_granularity if granularity == "auto" else granularity
    found = reading(spec, lexicon, cleanup, language).segments(text, min(max_chars, spec.max_text), wanted)
    if not found:
        raise InvalidRequest("text", "has no words besides its marks")
    return found


def dialogue(
    spec: ModelInfo,
    turns: Sequence[Turn],
    granularity: str,
    max_chars: int = MAX_CHARS,
    lexicon: Lexicon | None = None,
    cleanup: str = ALL,
    language: str | None = None,
) -> list[Segment]:
    """Cut turns into segments, each as `segments` does, with the pauses between them. A text without marks is no turn.

    InvalidRequest names the turn's text where a script is wrong.
    """
    if len(turns) == 1 and turns[0].voice is None and turns[0].field is None:
        return segments(spec, turns[0].text, granularity, max_chars, lexicon, cleanup, language)
    found: list[Segment] = []
    for i, turn in enumerate(turns):
        try:
            cut = segments(spec, turn.text, granularity, max_chars, lexicon, cleanup, language)
        except InvalidRequest as e:
            raise InvalidRequest(turn.named("text") if e.param == "text" else e.param, e.message) from None
        if turn.pause is not None:
            cut[-1] = replace(cut[-1], after=turn.pause)
        elif cut[-1].after is None and i + 1 < len(turns):
            cut[-1] = replace(cut[-1], after=PAUSES["turn"])
        found += [replace(segment.moved(turn.start), voice=turn.voice, turn=i) for segment in cut]
    return found
