"""How a language writes numbers: what `languages.toml` has, and parts of patterns."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LANGUAGES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
_USUAL, UNITS, MONEY = (_LANGUAGES.pop(name) for name in ("usual", "units", "money"))
CODES: dict[str, str] = {facts["name"]: code for code, facts in _LANGUAGES.items()}
"""Languages of requests, and their codes."""
_WIDE = ("zh", "ja", "ko")


@dataclass(frozen=True)
class Rule:
    """A notation and its words."""

    pattern: re.Pattern[str]
    words: Callable[[re.Match[str]], str]


def rule(pattern: str, words: Callable[[re.Match[str]], str]) -> Rule:
    """Return the rule of a pattern."""
    return Rule(re.compile(pattern), words)


def any_of(written: Iterable[str]) -> str:
    """Return a pattern of any of these texts, the longest first."""
    return "|".join(re.escape(text) for text in sorted(written, key=len, reverse=True))


def before(m: re.Match[str]) -> str:
    """Return the end of the text in front of a match: enough for the word there."""
    return m.string[max(0, m.start() - 14) : m.start()]


@dataclass(frozen=True)
class Language:
    """A language's facts. `number`, `start`, `end`: patterns of a number, and of what may stand
    around one. `letter`: a class of what is part of a word."""

    code: str
    facts: dict[str, Any]
    number: str
    start: str
    end: str
    letter: str

    @classmethod
    def of(cls, code: str) -> Language:
        """The language of a code."""
        facts = {**_USUAL, **_LANGUAGES[code]}
        letter = r"\w"
        if code in _WIDE:
            letter = "A-Za-z\\d"
        number = (
            rf"(?:\d{{1,3}}(?:[{facts['group']}]\d{{3}}){{1,8}}(?!\d)|\d{{1,40}})"
            rf"(?:{facts['decimal']}\d{{1,20}})?"
        )
        start = rf"(?<![{letter}.,:/-])"
        end = rf"(?![{letter}/-]|[.,:]\d)"
        return cls(code, facts, number, start, end, letter)

    @property
    def wide(self) -> bool:
        """Whether its words stand without spaces."""
        return self.code in _WIDE

    @property
    def space(self) -> str:
        """The text between two words."""
        return "" if self.wide else " "

    def units(self) -> dict[str, str]:
        """Units as they are written, with their names in UNITS."""
        names = {unit: unit for unit in UNITS}
        return {**names, **self.facts["units"]}

    def months(self) -> dict[int, str]:
        """Names of months, in the case behind a day."""
        from babel.dates import get_month_names

        return dict(get_month_names("wide", locale=self.code))
