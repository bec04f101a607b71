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

_ARTICLE = re.compile(r"\b[Aa]n?\s$")
_NOUN = re.compile(r"\s(?!of\b|or\b|and\b)[a-zA-Z]")


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


def _rule(
    expression: str, action: Action | Mapping[str, str], *requirements: Iterable[str]
) -> Rule:
    if isinstance(action, Mapping):
        requirements = requirements or (action,)
        action = _lookup(action)

    needs: list[frozenset[str]] = []
    for signs_or_words in requirements:
        if isinstance(signs_or_words, str):
            needs += map(frozenset, signs_or_words.split())
        else:
            needs.append(frozenset(map(_key, signs_or_words)))
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
    has_digits = not signs.isdisjoint(_DIGITS)
    if has_digits:
        signs.add("0")
    words = _WORD.findall(text.lower())
    return frozenset(signs.union(words))


def any_of(words: Iterable[str]) -> str:
    """A pattern for one of several words, the longest first."""
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return "|".join(map(re.escape, longest_first))


def describes(m: re.Match[str]) -> bool:
    """Whether an amount describes a noun: "a $20 bill" and "9V batteries" have no plural."""
    start, end = m.span()
    before = m.string[max(0, start - 4) : start]
    after = m.string[end : end + 11]
    if _MEASURED.match(after):
        return True
    if not _ARTICLE.search(before):
        return False
    return _NOUN.match(after) is not None
