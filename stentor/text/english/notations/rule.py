"""Rules of notations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import ascii_letters

from stentor.text.draft import Action

_DIGITS = frozenset("0123456789")
_SIGNS = "#&+/;-_"
_SHORT_WORDS = ("a", "i", "s")  # of most texts: "it's"
_WORD = re.compile("[a-z]+")
_MEASURED = re.compile(
    r"\s(?:batter(?:y|ies)|bulbs?|chargers?|bills?|notes?|coins?|bottles?|bags?|tickets?|packs?|angles?|"
    r"pizzas?|monitors?|screens?|displays?|laptops?|wheels?|rims?|tires?|pipes?|skillets?|pans?|records?|heels?|nails?)\b"
)


@dataclass(frozen=True)
class Rule:
    """A regular expression, what reads a match of it, and what a text has to have for one.

    needs: groups of signs and words in small letters. A text without any of a group has no match.
    """

    expression: str
    action: Action
    needs: tuple[frozenset[str], ...] = ()

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled at first use: all rules together take a tenth of a second, and few texts need
        many of them."""
        return re.compile(self.expression)

    def may_match(self, present: frozenset[str]) -> bool:
        """Whether a text has what the rule needs. present: its `features`."""
        return not any(map(present.isdisjoint, self.needs))


Row = tuple[str, Action | Mapping[str, str], *tuple[Iterable[str], ...]]


def rules(*table: Row) -> list[Rule]:
    """Make rules of a table of expressions and actions. An action is a function, a template as of
    `re.sub`, or a table in which the group that matched is looked up.

    A row may name what a match has in any case: groups of signs with spaces between them, in which
    0 is any digit ("0 -–": a digit, and one of two dashes), and words of which it has one: those of
    its table unless it has its own.
    """
    return [_rule(*row) for row in table]


def _rule(expression: str, action: Action | Mapping[str, str], *wanted: Iterable[str]) -> Rule:
    needs: list[frozenset[str]] = []
    for some in wanted or ([action] if isinstance(action, Mapping) else []):
        needs += (
            map(frozenset, some.split()) if isinstance(some, str) else [frozenset(map(_key, some))]
        )
    if isinstance(action, Mapping):
        action = _lookup(action)
    return Rule(expression, action, tuple(needs))


def _lookup(table: Mapping[str, str]) -> Action:
    return lambda m: table[m[m.lastindex or 0]]


def _key(word: str) -> str:
    """The feature by which a word is known: a sign or a digit in it, else the longest run of its
    letters."""
    sign = next((c for c in word if c in _SIGNS or c.isdigit()), None)
    if sign is not None:
        if sign.isdigit():
            return "0"
        return sign
    runs: list[str] = _WORD.findall(word.lower())
    return max(runs, key=lambda run: (run not in _SHORT_WORDS, len(run)))


def features(text: str) -> frozenset[str]:
    """The signs of a text, with 0 for all digits, and its words in small letters."""
    signs = set(text).difference(ascii_letters)
    if not signs.isdisjoint(_DIGITS):
        signs.add("0")
    return frozenset(signs.union(_WORD.findall(text.lower())))


def any_of(words: Iterable[str]) -> str:
    """A pattern for one of several words, the longest first."""
    return "|".join(re.escape(w) for w in sorted(words, key=lambda w: (-len(w), w)))


def describes(m: re.Match[str]) -> bool:
    """Whether an amount describes a noun: "a $20 bill" and "9V batteries" have no plural."""
    before = m.string[max(0, m.start() - 4) : m.start()]
    after = m.string[m.end() : m.end() + 11]
    if _MEASURED.match(after):
        return True
    return bool(
        re.search(r"\b[Aa]n?\s$", before) and re.match(r"\s(?!of\b|or\b|and\b)[a-zA-Z]", after)
    )
