"""Years and spans of days in Russian, whose ordinals have a case."""

from __future__ import annotations

import re

from stentor.text.cleanup.languages.facts import Language, Rule, before, rule
from stentor.text.cleanup.languages.numbers import Numbers

_CASES = {"год": "", "года": "genitive", "годом": "ablative", "году": "locative"}
_DATIVE = re.compile(r"\b[Кк]о? $")
_IN = re.compile(r"\b[Вв]о? $")
_START = r"(?<![\w.,:/-])"
_YEAR = r"([12]\d{3})"


def year_rules(language: Language, numbers: Numbers) -> list[Rule]:
    """Rules of Russian years and of spans of days."""
    years = Years(numbers)
    months = "|".join(language.months().values())
    return [
        rule(rf"\b([Сс] )(\d{{1,2}}) по (\d{{1,2}})(?=\s(?:{months})\b)", years.days),
        rule(rf"\b([Сс] ){_YEAR} по {_YEAR}(?=\sгод\b)", years.since),
        rule(
            rf"(?<!\w)({months})\s{_YEAR}(?:\s(?:года\b|г\.))?(?![\w.,]\d)",
            years.behind_month,
        ),
        rule(rf"{_START}{_YEAR}\s(год[ау]?|годом)\b", years.with_noun),
        rule(rf"{_START}{_YEAR}\s?г\.", years.abbreviated),
        rule(rf"{_START}{_YEAR}[-–—]{_YEAR}(?=\sгоды\b)", years.span),
    ]


class Years:
    """Reads Russian years as ordinals."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def year(self, digits: str, case: str) -> str:
        """A year in a case: "" is the nominative."""
        gender = "masculine"
        if case:
            gender = f"masculine-{case}"
        return self._ordinal(digits, gender)

    def day(self, before: str, day: int, cases: dict[str, str]) -> str:
        """A day in front of its month: genitive inside a sentence, unless a preposition governs
        it."""
        words = before.split()
        if not words:
            return self._ordinal(str(day), "neuter")
        last = words[-1].lower()
        for prepositions, case in cases.items():
            if re.fullmatch(prepositions, last):
                return self._ordinal(str(day), f"neuter{case}")
        if last[-1].isalpha():
            return self._ordinal(str(day), "neuter-genitive")
        return self._ordinal(str(day), "neuter")

    def days(self, m: re.Match[str]) -> str:
        """ "с 5 по 10", in front of a month."""
        first = self._ordinal(m[2], "neuter-genitive")
        last = self._ordinal(m[3], "neuter")
        return f"{m[1]}{first} по {last}"

    def since(self, m: re.Match[str]) -> str:
        """ "с 1941 по 1945", in front of "год"."""
        first = self.year(m[2], "genitive")
        last = self.year(m[3], "")
        return f"{m[1]}{first} по {last}"

    def span(self, m: re.Match[str]) -> str:
        """ "1941–1945", in front of "годы"."""
        first = self.year(m[1], "")
        last = self.year(m[2], "")
        return f"{first} – {last}"

    def behind_month(self, m: re.Match[str]) -> str:
        """ "мая 1945 г." -> "мая тысяча девятьсот сорок пятого года"."""
        year = self.year(m[2], "genitive")
        return f"{m[1]} {year} года"

    def with_noun(self, m: re.Match[str]) -> str:
        """ "1999 году" -> "тысяча девятьсот девяносто девятом году"."""
        case = _CASES[m[2]]
        if m[2] == "году" and _DATIVE.search(before(m)):
            case = "dative"
        year = self.year(m[1], case)
        return f"{year} {m[2]}"

    def abbreviated(self, m: re.Match[str]) -> str:
        """ "1999 г." -> "тысяча девятьсот девяносто девятый год"."""
        noun = "год"
        if _IN.search(before(m)):
            noun = "году"
        year = self.year(m[1], _CASES[noun])
        following = m.string[m.end() : m.end() + 1]
        stop = "." if following in ("", "\n") else ""
        return f"{year} {noun}{stop}"

    def _ordinal(self, digits: str, gender: str) -> str:
        return self.numbers.ruled(int(digits), f"spellout-ordinal-{gender}")
