"""Numbers, dates, times of day, money, percentages and units of other languages as words.

Number words are from unicode-rbnf (Unicode's rules for spelling numbers), names of months, units
and currencies from Babel (Unicode's CLDR). Both come with the extra `notations`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.text.cleanup.languages.facts import CODES, Language, Rule
from stentor.text.draft import Draft

__all__ = ["CODES", "check", "rules", "step"]


def check(code: str) -> None:
    """InvalidRequest("cleanup") for a language that has no notations here, or without the
    packages."""
    if code not in CODES.values():
        raise InvalidRequest(
            "cleanup", f"notations has {', '.join(sorted(CODES.values()))}, not {code[:20]!r}"
        )
    try:
        import babel  # noqa: F401
        import unicode_rbnf  # noqa: F401
    except ImportError:
        raise InvalidRequest(
            "cleanup", f"notations needs packages: {pip_install('notations')}"
        ) from None


@cache
def step(code: str) -> Callable[[Draft], Draft]:
    """The step of the clean-up for a language, by its code."""
    return partial(_cleaned, rules(code))


@cache
def rules(code: str) -> tuple[Rule, ...]:
    """Return the rules of a language in the order in which they run."""
    from stentor.text.cleanup.languages import (
        amounts,
        calendar,
        counts,
        figures,
        times,
        titles,
    )
    from stentor.text.cleanup.languages.nouns import Nouns
    from stentor.text.cleanup.languages.numbers import Numbers

    language = Language.of(code)
    numbers = Numbers(language)
    nouns = Nouns(language)
    return (
        *titles.rules(language, numbers),
        *figures.phone_rules(language, numbers),
        *calendar.rules(language, numbers),
        *times.rules(language, numbers),
        *figures.rules(language, numbers),
        *counts.ordinal_rules(language, numbers),
        *amounts.rules(language, numbers, nouns),
        *counts.rules(language, numbers, nouns),
    )


def _cleaned(rules: tuple[Rule, ...], draft: Draft) -> Draft:
    for rule in rules:
        draft = draft.sub(rule.pattern, rule.words)
    return draft
