"""Dates, years and decades."""

from __future__ import annotations

import re

from stentor.text.abbreviations import MONTHS
from stentor.text.notations.rule import rules
from stentor.text.numbers import ordinal, say, two_digits, year

_MONTH = "|".join(MONTHS)
_YEAR = r"(?:1\d|20)\d{2}"
_LIKELY_YEAR = r"(?:1[4-9]|20)\d{2}"
_BEFORE = (
    r"in|of|since|by|until|till|before|after|during|from|year|years|circa|around|summer|winter|spring|fall|autumn|early|"
    r"late|mid|class|and|between|born|died|reigned|flourished|established|c\.|©"
)
_NOT_COUNTED = (  # behind a year, words with an s at the end that are no plural
    r"was|is|has|as|this|its|his|does|plus|versus|across|always|perhaps|thus|us|less|unless|towards|besides"
)
_COUNTED = rf"\s+(?:[a-z]+\s)?(?:people|men|women|children|feet|(?!(?:{_NOT_COUNTED})\b)[a-z]+s)\b"
_NOT_A_YEAR = rf"(?![,.:]?\d|[-–/]\d|\s?[%°$€£]|[A-Za-z]|{_COUNTED})"
_FRACTIONS = {2, 3, 4, 5, 6, 8, 10, 16, 32, 64, 100}
_DUE = r"on|by|until|till|from|since|before|after|due|dated|date|for|between|and|through"


def date(month: int, day: int) -> str:
    """ "March fourth"."""
    return f"{MONTHS[month - 1]} {ordinal(str(day))}"


def _full(month: int, day: int, of: str, written: str) -> str:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return written
    return f"{date(month, day)}, {year(of) if len(of) == 4 else two_digits(int(of))}"


def _slash_date(m: re.Match[str]) -> str:
    first, second = int(m[1]), int(m[2])
    if first > 12 >= second:  # the day first
        first, second = second, first
    return _full(first, second, m[3], " ".join(say(int(g)) for g in m.groups()))


def _iso_date(m: re.Match[str]) -> str:
    return _full(int(m[2]), int(m[3]), m[1], f"{year(m[1])} {say(int(m[2]))} {say(int(m[3]))}")


def _short_date(m: re.Match[str]) -> str:
    """12/25 is a day, 3/4 a fraction unless a word before it says that it is a day."""
    month, day = int(m[2]), int(m[3])
    valid = 1 <= month <= 12 and 1 <= day <= 31
    if not valid or (not m[1] and (day in _FRACTIONS or month == 1)):
        return m[0]
    return f"{m[1] or ''}{date(month, day)}"


def _decade(m: re.Match[str]) -> str:
    digits = next(g for g in m.groups() if g)
    words = year(digits) if len(digits) == 4 else say(digits)
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _era(m: re.Match[str]) -> str:
    digits = m[1]
    words = year(digits) if len(digits) == 4 else say(digits)
    return f"{words} {' '.join(m[2].replace('.', ''))}"


def _to_year(first: str, last: str) -> str:
    return f"{year(first)} to {year(last) if len(last) == 4 else two_digits(int(last))}"


def _season(m: re.Match[str]) -> str:
    return _to_year(m[1], m[2]) if int(m[2]) > int(m[1]) % 100 else m[0]


RULES = rules(
    (r"\b(\d{4})-(\d{2})-(\d{2})\b", _iso_date, "0 -"),
    (r"\b((?:19|20)\d{2})/(\d{1,2})/(\d{1,2})\b", _iso_date, "/ 0"),
    (r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b", _slash_date, "/ 0"),
    (r"\b(\d{1,2})[.-](\d{1,2})[.-]((?:19|20)\d{2})\b", _slash_date, "0"),
    (
        rf"\b({_MONTH})\s+(\d{{1,2}})\s?[-–]\s?(\d{{1,2}})\b(?:,?\s+(\d{{4}})\b)?",
        lambda m: f"{m[1]} {ordinal(m[2])} to {ordinal(m[3])}" + (f", {year(m[4])}" if m[4] else ""),
        "0 -–",
    ),
    (
        rf"\b({_MONTH})\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?![:.]\d)(?:,?\s+(\d{{4}})\b)?",
        lambda m: f"{m[1]} {ordinal(m[2])}" + (f", {year(m[3])}" if m[3] else ""),
        "0",
    ),
    (
        rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+({_MONTH})\b(?:,?\s+(\d{{4}})\b)?",
        lambda m: f"{ordinal(m[1])} {m[2]}" + (f" {year(m[3])}" if m[3] else ""),
        "0",
    ),
    (r"\bc\.\s?(?=\d{3,4}\b)", "circa ", "0"),
    (rf"\b((?i:pre|post|mid|early|late))-({_LIKELY_YEAR})\b(?!-)", lambda m: f"{m[1]} {year(m[2])}", "- 0"),
    (rf"\b({_MONTH}(?:\s+of)?),?\s+(\d{{4}})\b", lambda m: f"{m[1]} {year(m[2])}", "0"),
    (r"(?<!\w)['’](\d0)s\b", _decade, "0"),
    (r"\b100s(?= of\b)", "hundreds", "0"),
    (r"\b1,?000s(?= of\b)", "thousands", "0"),
    (r"(?<![$£€\d,.])\b(\d{2,3}0)s\b(?!\s?\d)", _decade, "0"),
    (
        r"\b(?=\d0s\b)(?:(?<=ies to )(\d0)s\b"
        r"|(?<=\b[Tt]he )(\d0)s\b|(?<=\b[Hh]is )(\d0)s\b|(?<=\b[Hh]er )(\d0)s\b|(?<=\b[Mm]y )(\d0)s\b"
        r"|(?<=\btheir )(\d0)s\b|(?<=early )(\d0)s\b|(?<=mid-)(\d0)s\b|(?<=late )(\d0)s\b"
        r"|(?<=high )(\d0)s\b|(?<=low )(\d0)s\b|(?<=mid )(\d0)s\b|(?<=upper )(\d0)s\b|(?<=\byour )(\d0)s\b"
        r"|(?<=\bour )(\d0)s\b|\b([2-9]0)s\b(?=\s(?:music|songs?|hits|pop|rock|disco|kids?|movies?|films?|shows?|"
        r"fashion|styles?|bands?|themed|nostalgia|era|party)\b))",
        _decade,
        "0",
    ),
    (r"(?<!\w)['’](\d\d)\b(?!['’])", lambda m: two_digits(int(m[1])), "0"),
    (r"\b(\d{1,4})\s(BCE|BC|CE|AD|B\.C\.E?\.?|A\.D\.)(?!\w)", _era, "0"),
    (r"\b(AD|CE|A D)\s(\d{3,4})\b", lambda m: f"A D {year(m[2]) if len(m[2]) == 4 else say(m[2])}", "0"),
    (rf"\b((?i:{_BEFORE}))\s+({_YEAR})\s*[-–]\s*({_YEAR}|\d\d)\b", lambda m: f"{m[1]} {_to_year(m[2], m[3])}", "0 -–"),
    (rf"\b({_LIKELY_YEAR})\s*[-–]\s*({_LIKELY_YEAR})\b(?!-)", lambda m: _to_year(m[1], m[2]), "0 -–"),
    (rf"\b({_LIKELY_YEAR})\s*[-–]\s*(\d\d)\b(?!-)", _season, "0 -–"),
    (rf"\b({_LIKELY_YEAR})/(\d\d)\b(?!/)", lambda m: f"{year(m[1])} {two_digits(int(m[2]))}", "/ 0"),
    (
        rf"\b(FY|Q[1-4])\s?['’]?({_YEAR}|\d\d)\b",
        lambda m: f"{' '.join(m[1])} {year(m[2]) if len(m[2]) == 4 else two_digits(int(m[2]))}",
        "0",
    ),
    (
        rf"\b((?i:{_BEFORE})),?\s+({_YEAR})\b(?![,.:]?\d|[-–/]\d|\s?[%°$€£]|[A-Za-z]"
        r"|\s+(?:km|m|cm|mm|kg|g|mg|lbs?|ft|feet|meters|miles|people|dollars|points)\b)",
        lambda m: f"{m[1]} {year(m[2])}",
        "0",
    ),
    (rf"(?<![\d.,$£€¥#+])(?<![-–/]\b)\b({_LIKELY_YEAR})\b{_NOT_A_YEAR}", lambda m: year(m[1]), "0"),
    (
        rf"(?<!\S)((?:{_DUE}|[A-Z][a-z]+day,?)\s+)?(\d{{1,2}})/(\d{{1,2}})\b(?![/\d]|[\"″]\s[a-z]|\s(?:of|cups?|inch|teaspoons?|tablespoons?)\b)",
        _short_date,
        "/ 0",
    ),
)
