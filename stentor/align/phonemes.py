"""Phonemes that the English aligner tells apart, and the way through them that a text allows."""

from __future__ import annotations

GAP = 0
"""The class of silence and of what lies between words."""
_SAME = {"ɐ": "ə", "ᵊ": "ə", "ᵻ": "ɪ"}
SYMBOLS = "AIOTWYabdfhijklmnpstuvwzæðŋɑɔəɛɜɡɪɹʃʊʌʒʤʧθ"
"""Signs of `stentor.text.english.phonemes.ALPHABET`, with reduced vowels folded. Symbol i is class i + 1."""
_CLASSES = {s: i + 1 for i, s in enumerate(SYMBOLS)}
CLASSES = len(SYMBOLS) + 1


def class_of(sign: str) -> int | None:
    """The class of a sign of a phoneme string. None: it has none (a stress mark)."""
    if sign in "ˈˌ":
        return None
    return _CLASSES.get(_SAME.get(sign, sign), GAP)
