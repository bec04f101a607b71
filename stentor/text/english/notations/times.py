"""Dates, years and decades, and times of day."""

from __future__ import annotations

import re

from stentor.text.english.notations.rule import rules
from stentor.text.english.numbers import letters, ordinal, say, two_digits, year
from stentor.text.english.tables import MONTHS, TABLES

ZONES = TABLES["zones"]
_HALF = r"[ap]\.?\s?m\b\.?|[AP]\.?\s?M\b\.?"
_HOUR = r"(?:[01]?\d|2[0-4])"
_MINUTE = r"[0-5]\d"
_NUMBER_WORD = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|twenty|thirty|forty|fifty"
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
_IN_DECADE = (
    r"ies to|\b[Tt]he|\b[Hh]is|\b[Hh]er|\b[Mm]y|\btheir|\byour|\bour|early|late|high|low|mid|upper"
)
_BEHIND_IT = "|".join(f"(?<={words} )" for words in _IN_DECADE.split("|"))
_FRACTIONS = {2, 3, 4, 5, 6, 8, 10, 16, 32, 64, 100}
_DUE = r"on|by|until|till|from|since|before|after|due|dated|date|for|between|and|through"


def _half(written: str | None) -> str:
    """ "p.m." -> " P M"."""
    if not written:
        return ""
    return " " + letters(written)


def _time(m: re.Match[str]) -> str:
    return _clock(m[1], m[2], m[4]) + _half(m[4]) + _end(m, m[4])


def _end(m: re.Match[str], half: str | None) -> str:
    """The full stop of "p.m." where it ends the sentence too."""
    if (
        half
        and half.endswith(".")
        and re.match(r"(?<!\s)\s++[A-Z][a-z]", m.string[m.end() : m.end() + 9])
    ):
        return "."
    return ""


def _clock(hour: str, minute: str, half: str | None) -> str:
    words = say(int(hour))
    if minute != "00":
        return f"{words} {two_digits(int(minute))}"
    if half:
        return words
    if 1 <= int(hour) <= 12:
        return f"{words} o'clock"
    return f"{words} hundred hours"


def _to(m: re.Match[str]) -> str:
    first = say(int(m[1])) + (f" {two_digits(int(m[2]))}" if m[2] and m[2] != "00" else "")
    return f"{first}{_half(m[3])} to "


def _military(m: re.Match[str]) -> str:
    hour = m[1]
    minute = m[2]
    if hour[0] == "0":
        words = f"zero {say(int(hour))}"
    else:
        words = say(int(hour))
    return f"{words} {'hundred' if minute == '00' else two_digits(int(minute))} hours"


def _with_seconds(hour: str, minute: str, second: str) -> str:
    """ "10:00:00" -> "ten o'clock", "10:30:05" -> "ten thirty oh five"."""
    if second == "00" and int(hour) < 24:
        return _clock(hour, minute, None)
    return f"{say(int(hour))} {_sixtieth(minute)} {_sixtieth(second)}"


def _sixtieth(digits: str) -> str:
    if digits == "00":
        return "zero"
    return two_digits(int(digits))


def _iso(m: re.Match[str]) -> str:
    """ "T07:00:00Z" -> " at seven o'clock U T C"."""
    time = _with_seconds(m[1], m[2], m[3] or "00")
    zone = m[4] or ""
    if not zone:
        return f" at {time}"
    if zone != "Z":
        offset = f" {'plus' if zone[0] == '+' else 'minus'} {say(int(zone[1:3]))}"
    else:
        offset = ""
    return f" at {time} U T C{offset}"


def date(month: int, day: int) -> str:
    """ "March fourth"."""
    return f"{MONTHS[month - 1]} {ordinal(str(day))}"


def _full(month: int, day: int, of: str, written: str) -> str:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return written
    return f"{date(month, day)}, {_short_year(of)}"


def _slash_date(m: re.Match[str]) -> str:
    first = int(m[1])
    second = int(m[2])
    if first > 12 >= second:  # the day first
        first, second = second, first
    return _full(first, second, m[3], " ".join(say(int(g)) for g in m.groups()))


def _iso_date(m: re.Match[str]) -> str:
    return _full(int(m[2]), int(m[3]), m[1], f"{year(m[1])} {say(int(m[2]))} {say(int(m[3]))}")


def _short_date(m: re.Match[str]) -> str:
    """12/25 is a day, 3/4 a fraction unless a word before it makes it a day."""
    month = int(m[2])
    day = int(m[3])
    valid = 1 <= month <= 12 and 1 <= day <= 31
    if not valid or (not m[1] and (day in _FRACTIONS or month == 1)):
        return m[0]
    return f"{m[1] or ''}{date(month, day)}"


def _decade(m: re.Match[str]) -> str:
    words = _in_era(next(g for g in m.groups() if g))
    if words.endswith("y"):
        return words[:-1] + "ies"
    return words + "s"


def _era(m: re.Match[str]) -> str:
    return f"{_in_era(m[1])} {' '.join(m[2].replace('.', ''))}"


def _in_era(digits: str) -> str:
    """ "1066" -> "ten sixty-six", "476" -> "four hundred seventy-six"."""
    if len(digits) == 4:
        return year(digits)
    return say(digits)


def _to_year(first: str, last: str) -> str:
    return f"{year(first)} to {_short_year(last)}"


def _short_year(digits: str) -> str:
    """ "1999" -> "nineteen ninety-nine", "05" -> "oh five"."""
    if len(digits) == 4:
        return year(digits)
    return two_digits(int(digits))


def _season(m: re.Match[str]) -> str:
    if int(m[2]) > int(m[1]) % 100:
        return _to_year(m[1], m[2])
    return m[0]


BASIC = rules(
    (
        r"\b(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)?(Z?)\b",
        lambda m: f"{m[1]}-{m[2]}-{m[3]}T{m[4]}:{m[5]}:{m[6] or '00'}{m[7]}",
        "0",
    )
)
""" "20240501T070000Z": before a rule takes it for a code."""

RULES = rules(
    (
        rf"(?<=\d-\d\d)[T ]([01]\d|2[0-4]):({_MINUTE})(?::({_MINUTE})(?:[.,]\d+)?)?(Z|[+-]\d\d(?::?\d\d)?)?(?![\w:])",
        _iso,
        ": 0 -",
    ),
    (r"\b([012]?\d)h([0-5]\d)(?!\w)", lambda m: _clock(m[1], m[2], None), "0", ("h",)),
    (rf"(?<=:{_MINUTE})Z\b", " U T C", ": 0"),
    (
        rf"\b({_HOUR})(?::({_MINUTE}))?\s?({_HALF})?\s?(?:-|–|to)\s?(?={_HOUR}(?::{_MINUTE})?\s?(?:{_HALF})|noon\b|midnight\b)",
        _to,
        "0",
    ),
    (rf"\b({_HOUR})(?::({_MINUTE}))()\s?[-–]\s?(?={_HOUR}:{_MINUTE})", _to, ": 0 -–"),
    (r"\b([Nn]oon|[Mm]idnight)\s?[-—]\s?(?=\d)", r"\1 to ", "0 -—"),
    (
        r"\b(\d{1,2}):(\d{2}):(\d{2})\b(?!\s?[apAP]\.?\s?[mM])",
        lambda m: _with_seconds(*m.groups()),
        ": 0",
    ),
    (rf"\b({_HOUR}):({_MINUTE})(:{_MINUTE})?(?!\d)(?:\s*({_HALF}))?", _time, ": 0"),
    (rf"\b({_HOUR})\.({_MINUTE})()\s?({_HALF})(?!\w)", _time, "0"),
    (rf"\b(\d{{1,2}})\s?({_HALF})(?![\w])", lambda m: say(m[1]) + _half(m[2]) + _end(m, m[2]), "0"),
    (r"\b([012]\d)([0-5]\d)\s?(?:hours|hrs|h)\b", _military, "0"),
    (
        rf"\b(A M|P M|o'clock|hours|oh \w+|{_NUMBER_WORD})\s+({'|'.join(ZONES)})\b(?!\.\w)",
        lambda m: f"{m[1]} {ZONES[m[2]]}",
        ZONES,
    ),
    (
        r"\b(\d+)\s?h(?:r|rs)?\s?(\d+)\s?m(?:in|ins)?\b",
        lambda m: (
            f"{say(m[1])} hour{'' if m[1] == '1' else 's'} {say(m[2])} minute{'' if m[2] == '1' else 's'}"
        ),
        "0",
    ),
    (r"\b(\d{4})-(\d{2})-(\d{2})\b", _iso_date, "0 -"),
    (r"\b((?:19|20)\d{2})/(\d{1,2})/(\d{1,2})\b", _iso_date, "/ 0"),
    (r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b", _slash_date, "/ 0"),
    (r"\b(\d{1,2})[.-](\d{1,2})[.-]((?:19|20)\d{2})\b", _slash_date, "0"),
    (
        rf"\b({_MONTH})\s+(\d{{1,2}})\s?[-–]\s?(\d{{1,2}})\b(?:,?\s+(\d{{4}})\b)?",
        lambda m: (
            f"{m[1]} {ordinal(m[2])} to {ordinal(m[3])}" + (f", {year(m[4])}" if m[4] else "")
        ),
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
    (
        rf"\b((?i:pre|post|mid|early|late))-({_LIKELY_YEAR})\b(?!-)",
        lambda m: f"{m[1]} {year(m[2])}",
        "- 0",
    ),
    (rf"\b({_MONTH}(?:\s+of)?),?\s+(\d{{4}})\b", lambda m: f"{m[1]} {year(m[2])}", "0"),
    (r"(?<!\w)['’](\d0)['’]?s\b", _decade, "0"),
    (r"(?<=\bthe )([2-9]0|\d{3}0)['’]s\b", _decade, "0 '’"),
    (r"\b100s(?= of\b)", "hundreds", "0"),
    (r"\b1,?000s(?= of\b)", "thousands", "0"),
    (r"(?<![$£€\d,.])\b(\d{2,3}0)s\b(?!\s?\d)", _decade, "0"),
    (
        rf"\b(?=\d0s\b)(?:(?:{_BEHIND_IT}|(?<=mid-))(\d0)s|([2-9]0)s(?=\s(?:music|songs?|hits|pop|rock|disco|kids?|movies?|films?|"
        r"shows?|fashion|styles?|bands?|themed|nostalgia|era|party)\b))",
        _decade,
        "0",
    ),
    (r"(?<!\w)['’](\d\d)\b(?!['’])", lambda m: two_digits(int(m[1])), "0"),
    (r"\b(\d{1,4})\s(BCE|BC|CE|AD|B\.C\.E?\.?|A\.D\.)(?!\w)", _era, "0"),
    (r"\b(AD|CE|A D)\s(\d{3,4})\b", lambda m: f"A D {_in_era(m[2])}", "0"),
    (
        rf"\b((?i:{_BEFORE}))\s+({_YEAR})\s*[-–]\s*({_YEAR}|\d\d)\b",
        lambda m: f"{m[1]} {_to_year(m[2], m[3])}",
        "0 -–",
    ),
    (
        rf"\b({_LIKELY_YEAR})\s*[-–]\s*({_LIKELY_YEAR})\b(?!-)",
        lambda m: _to_year(m[1], m[2]),
        "0 -–",
    ),
    (rf"\b({_LIKELY_YEAR})\s*[-–]\s*(\d\d)\b(?!-)", _season, "0 -–"),
    (
        rf"\b({_LIKELY_YEAR})/(\d\d)\b(?!/)",
        lambda m: f"{year(m[1])} {two_digits(int(m[2]))}",
        "/ 0",
    ),
    (
        rf"\b(FY|Q[1-4])\s?['’]?({_YEAR}|\d\d)\b",
        lambda m: f"{' '.join(m[1])} {_short_year(m[2])}",
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
