"""How long a text takes to speak, in letters of English prose, by which long text is cut.

A letter counts one. A digit counts as its part of an amount ("forty-nine thousand"), a sign as its
name ("percent"), and a Chinese character or a syllable as the letters that take as long.
"""

from __future__ import annotations

import unicodedata
from functools import cache

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


def spoken_lengths(text: str) -> list[int]:
    """The spoken length of each character, at least 1."""
    return list(map(_spoken_length, text))


def spoken_length(text: str) -> int:
    """The spoken length of a text, at least its number of characters."""
    return sum(map(_spoken_length, text))


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
