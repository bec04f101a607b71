"""How long a text takes to speak, in letters of English prose, by which long text is cut.

A letter counts one, and four where it is spelled: in capitals without a vowel, and in keys. A digit
counts as its part of an amount ("forty-nine thousand"), a sign as its name ("percent"), and a
Chinese character or a syllable as the letters that take as long.
"""

from __future__ import annotations

import unicodedata
from functools import cache

from stentor.text.patterns import lazy

_DIGIT = 9
_SIGN = 9
_NAMED_SIGNS = frozenset("$£€¥₹₩₽₿¢%‰°&@#+=×÷±√∞≤≥≠≈→²³½¼¾²³_/\\^~")
_IDEOGRAPH = 3
_SYLLABLE = 2
_SYLLABLES = (
    ("\u1100", "\u11ff"),  # Hangul letters
    ("\u1200", "\u139f"),  # Ethiopic
    ("\u3040", "\u312f"),  # kana, bopomofo
    ("\u31f0", "\u31ff"),
    ("\ua000", "\ua4cf"),  # Yi
    ("\uac00", "\ud7af"),  # Hangul
)


_CONSONANTS = "bcdfghjklmnpqrstvwxz"
_SPELLED = lazy(
    rf"(?<![A-Za-z])(?:[{_CONSONANTS.upper()}]{{3,}}|[{_CONSONANTS}]{{5,}})(?![A-Za-z])"
    r"|(?<![A-Za-z\d+/=])[A-Za-z\d+/=]{24,}"
)
_SPELLED_LETTER = 4
_VOWELS = frozenset("aeiouy")


def spoken_lengths(text: str) -> list[int]:
    """The spoken length of each character, at least 1."""
    lengths = list(map(_spoken_length, text))
    for m in _SPELLED.finditer(text):
        if not _is_word(m[0]):
            for at in range(*m.span()):
                lengths[at] = max(lengths[at], _SPELLED_LETTER)
    return lengths


def spoken_length(text: str) -> int:
    """The spoken length of a text, at least its number of characters."""
    return sum(spoken_lengths(text))


def _is_word(run: str) -> bool:
    """Whether a run of letters is one long word: in small letters, with vowels."""
    return run[1:].islower() and not _VOWELS.isdisjoint(run)


@cache
def _spoken_length(sign: str) -> int:
    if sign.isdecimal():
        return _DIGIT
    if sign in _NAMED_SIGNS:
        return _SIGN
    if any(first <= sign <= last for first, last in _SYLLABLES):
        return _SYLLABLE
    if sign.isalpha() and unicodedata.east_asian_width(sign) in "WF":
        return _IDEOGRAPH
    return 1
