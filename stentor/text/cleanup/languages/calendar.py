"""Dates and years."""

from __future__ import annotations

import re

from stentor.text.cleanup.languages.facts import Language, Rule, before, rule
from stentor.text.cleanup.languages.german import ordinal_rule
from stentor.text.cleanup.languages.numbers import Numbers
from stentor.text.cleanup.languages.russian import Years, year_rules

_START = r"(?<![\w.,:/-])"


def rules(language: Language, numbers: Numbers) -> list[Rule]:
    """Rules of dates."""
    dates = _Dates(language, numbers)
    start = language.start
    end = language.end
    part = r"(\d{1,2})"
    numeric = [
        rule(rf"{start}(\d{{4}})[-/.]{part}[-/.]{part}{end}", dates.year_first),
        rule(rf"{start}{part}[-./]{part}[-./](\d{{4}}){end}", dates.day_first),
    ]
    if language.wide:
        return numeric + _east_asian(language, dates)
    return numeric + _european(language, numbers, dates)


def _east_asian(language: Language, dates: _Dates) -> list[Rule]:
    years = language.facts["year_digits"]
    months = "|".join(language.facts["months"]) or "(?!)"
    return [
        rule(rf"(?<!\d)({years})(?=[年년后])", dates.year),
        rule(rf"(?<!\d)({months})(?=월)", dates.month),
    ]


def _european(language: Language, numbers: Numbers, dates: _Dates) -> list[Rule]:
    names = "|".join(map(re.escape, language.months().values()))
    month = rf"(?=\s(?:de )?(?:{names})\b)"
    day = rf"{_START}([1-9]|[12]\d|3[01])"
    if language.code == "de":
        numeric = rf"{_START}(\d{{1,2}})\.\s?(\d{{1,2}})\.(?!\d)"
        return [
            rule(numeric, dates.without_year),
            rule(rf"{day}\.{month}", dates.in_front_of_month),
        ]
    if language.code == "ru":
        return [
            *year_rules(language, numbers),
            rule(day + month, dates.in_front_of_month),
        ]
    if "first" in language.facts:
        return [rule(rf"{_START}(1){month}", dates.in_front_of_month)]
    return []


def _is_date(day: str, month: str) -> bool:
    is_month = 1 <= int(month) <= 12
    is_day = 1 <= int(day) <= 31
    return is_month and is_day


class _Dates:
    def __init__(self, language: Language, numbers: Numbers) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers
        self.russian = Years(numbers)

    def year_first(self, m: re.Match[str]) -> str:
        return self._date(m, m[1], m[2], m[3])

    def day_first(self, m: re.Match[str]) -> str:
        return self._date(m, m[3], m[2], m[1])

    def _date(self, m: re.Match[str], year: str, month: str, day: str) -> str:
        if not _is_date(day, month):
            return m[0]
        if self.language.code == "ru":
            year_words = self.russian.year(year, "genitive")
        else:
            year_words = self.numbers.year(year)
        date: str = self.facts["date"]
        return date.format(
            day=self.day(m, int(day)),
            month=self._month(int(month)),
            year=year_words,
        )

    def _month(self, month: int) -> str:
        if not self.language.wide:
            return self.language.months()[month]
        name: str | None = self.facts["months"].get(str(month))
        return name or self.numbers.cardinal(month)

    def without_year(self, m: re.Match[str]) -> str:
        """ "24.12." -> "vierundzwanzigsten Dezember"."""
        if not _is_date(m[1], m[2]):
            return m[0]
        day = self.day(m, int(m[1]))
        month = self._month(int(m[2]))
        return f"{day} {month}"

    def day(self, m: re.Match[str], day: int) -> str:
        """A day of a month."""
        if self.language.code == "ru":
            return self.russian.day(before(m), day, self.facts["day_cases"])
        if self.language.code == "de":
            return self.numbers.ruled(day, ordinal_rule(m))
        if day == 1 and "first" in self.facts:
            return str(self.facts["first"])
        return self.numbers.cardinal(day)

    def year(self, m: re.Match[str]) -> str:
        """A year in front of its noun."""
        return self.numbers.year(m[1])

    def month(self, m: re.Match[str]) -> str:
        """A month whose name is not its number."""
        return self._month(int(m[1]))

    def in_front_of_month(self, m: re.Match[str]) -> str:
        """A day in front of the name of its month."""
        return self.day(m, int(m[1]))
