"""Aligners, which find words in a segment's audio: the caller's own, else the one for English.

docs/word_times.md has the interface with an example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Protocol

from stentor.arguments import shown
from stentor.config import function_of
from stentor.errors import EngineError

if TYPE_CHECKING:
    import numpy as np

    from stentor.models.info import ModelInfo

ENGLISH = "english"
UNKNOWN = "auto"
"""The language of a text that nobody has named and that does not look English."""
_CODES = ("en", "english", "eng")
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_LOOKED_AT = 4000  # characters of a text
_KNOWN = 0.75  # share of the small words of an English text that a dictionary has


class Alignment(Protocol):
    """The audio of one segment, and when its words are spoken in it. All calls come from one thread
    at a time."""

    def add(self, samples: np.ndarray) -> None:
        """Take the next float32 samples [n]."""
        ...

    def spans(self, words: Sequence[str]) -> Sequence[tuple[float, float] | None]:
        """Return when each word begins and ends in the audio so far, in seconds: infinity for one
        that is not reached yet, None for one that is never spoken, such as a dash.

        Called at the end, and before that for the words so far. A word is empty where a mark of the
        model's stood.
        """
        ...


Aligner = Callable[[str, int], Alignment | None]
"""Begins a segment in a language, at a rate in Hz. Returns None for a language that it does not
know. It is called for every request, so slow work belongs into `Alignment.add`."""


class Aligners:
    """The aligners of a model without alignment heads: the caller's own, if there is one, else the
    one for English."""

    def __init__(self, own: str | Aligner | None = None) -> None:
        """own: `package.module:function`, or the function. InvalidRequest("aligner") if it cannot
        be imported."""
        self._own: Aligner | None = None if own is None else function_of("aligner", own)

    def segment(self, spec: ModelInfo, language: str | None, text: str) -> Alignment | None:
        """Begin a segment with this text. Returns None if the model reports its own word times, or
        if no aligner knows the language."""
        if spec.alignment is not None:
            return None
        text_language = language_of(spec, language, text)
        rate = spec.sample_rate
        alignment = self._begin_own(text_language, rate)
        if alignment is None and text_language == ENGLISH:
            return _alignment()(rate)
        return alignment

    def missing(self, spec: ModelInfo, language: str | None, text: str) -> str | None:
        """Return why the words of a text cannot be timed with a model, or None if they can."""
        if spec.alignment is not None:
            return None
        text_language = language_of(spec, language, text)
        if text_language == ENGLISH or self._begin_own(text_language, spec.sample_rate) is not None:
            return None
        if text_language == UNKNOWN:
            which = "of a text that does not look English"
        else:
            which = f"of {shown(text_language)}"
        return f"no aligner knows the words {which}; --aligner takes one that does (docs/word_times.md)"

    def _begin_own(self, language: str, rate: int) -> Alignment | None:
        if self._own is None:
            return None
        with failing():
            return self._own(language, rate)


@contextmanager
def failing() -> Iterator[None]:
    """Raise EngineError in place of what an aligner raises."""
    try:
        yield
    except Exception as e:
        raise EngineError(f"the aligner failed: {type(e).__name__}: {e}") from e


def language_of(spec: ModelInfo, language: str | None, text: str) -> str:
    """The language of a text: as the request names it, else the only one of the model, else English
    where it looks so, else UNKNOWN."""
    if language not in (None, UNKNOWN):
        if str(language).lower() in _CODES:
            return ENGLISH
        return str(language)
    if len(spec.languages) == 1:
        return language_of(spec, spec.languages[0], text)
    if looks_english(text):
        return ENGLISH
    return UNKNOWN


def looks_english(text: str) -> bool:
    """Whether a dictionary has most of a text's words that begin with a small letter. True where
    there are none."""
    from stentor.text.english.dictionary import is_word  # its dictionaries take memory

    words = [w for w in _WORD.findall(text[:_LOOKED_AT]) if not w[0].isupper()]
    return sum(map(is_word, words)) >= _KNOWN * len(words)


@cache
def _alignment() -> Callable[[int], Alignment]:
    from stentor.align.english import (
        EnglishAlignment,
    )  # imported where it is first needed, with its weights

    return EnglishAlignment
