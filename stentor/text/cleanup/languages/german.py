"""Endings of German ordinals, by the article or the preposition in front."""

from __future__ import annotations

import re

_OTHER = r"(?: (?:\d{1,4}\.|\w{2,30}en) (?:und|oder|bis))?"  # "am dritten und"
_ARTICLE = re.compile(rf"\b(?:[Dd]er|[Dd]ie|[Dd]as){_OTHER} $")
_DATIVE = re.compile(
    rf"\b(?:[AaIi]m|[Vv]om|[Zz]um|[Zz]ur|[Dd]em|[Dd]en|[Bb]eim|[Aa]b|[Bb]is|[Ss]eit){_OTHER} $"
)
_LONGEST_CONTEXT = 50


def ordinal_rule(m: re.Match[str], alone: str = "spellout-ordinal-r") -> str:
    """Return the rule of an ordinal. alone: where no word in front governs it."""
    before = m.string[max(0, m.start() - _LONGEST_CONTEXT) : m.start()]
    if _DATIVE.search(before):
        return "spellout-ordinal-n"
    if _ARTICLE.search(before):
        return "spellout-ordinal"
    return alone
