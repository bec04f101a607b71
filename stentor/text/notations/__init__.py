"""Rules for notations, one module for each class. A rule is a pattern and what reads a match of it.

`RULES` has all of them in order, the more specific before the more general, so a later rule never sees what an earlier
one read. No pattern may need more than quadratic time in a window (english.py).
"""

from __future__ import annotations

from stentor.text.notations import (
    abbreviations,
    addresses,
    calendar,
    clock,
    codes,
    identifiers,
    items,
    money,
    quantities,
    romans,
    signs,
    verses,
)
from stentor.text.notations.rule import Rule

RULES: list[Rule] = [
    *codes.SPELLED,
    *clock.BASIC,
    *romans.ITEMS,
    *items.RULES,
    *addresses.RULES,
    *identifiers.RULES,
    *money.EUROPEAN,
    *signs.COMPARISONS,
    *verses.RULES,
    *abbreviations.RULES,
    *clock.RULES,
    *calendar.RULES,
    *codes.RULES,
    *money.RULES,
    *quantities.RULES,
    *romans.RULES,
    *quantities.PLAIN,
    *signs.RULES,
]
