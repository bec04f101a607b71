"""What a rule is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Action = Callable[[re.Match[str]], str]
Rule = tuple[re.Pattern[str], Action]
_MEASURED = re.compile(
    r"\s(?:batter(?:y|ies)|bulbs?|chargers?|bills?|notes?|coins?|bottles?|bags?|tickets?|packs?|angles?)\b"
)


def rules(*table: tuple[str, Action | str]) -> list[Rule]:
    """Compile a table. A word in place of an action is what every match becomes."""
    return [
        (re.compile(pattern), _constant(action) if isinstance(action, str) else action) for pattern, action in table
    ]


def _constant(words: str) -> Action:
    return lambda m: words


def any_of(words: Iterable[str]) -> str:
    """A pattern for one of several words, the longest first."""
    return "|".join(re.escape(w) for w in sorted(words, key=len, reverse=True))


def describes(m: re.Match[str]) -> bool:
    """Whether an amount says which of a noun: "a $20 bill" and "9V batteries" have no plural."""
    before, after = m.string[max(0, m.start() - 4) : m.start()], m.string[m.end() : m.end() + 11]
    if _MEASURED.match(after):
        return True
    return bool(re.search(r"\b[Aa]n?\s$", before) and re.match(r"\s(?!of\b|or\b|and\b)[a-zA-Z]", after))
