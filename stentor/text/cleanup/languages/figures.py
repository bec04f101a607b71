"""Phone numbers, ranges, ratios and fractions."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from stentor.text.cleanup.languages.facts import Language, Rule
from stentor.text.cleanup.languages.numbers import Numbers

_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_GAP = r"[ \u00a0\u202f.()/-]{1,3}"
_DATE = r"\d{1,2}[-./]\d{1,2}[-./]\d{2,4}(?![-./]?\d)"
_INTERNATIONAL = rf"\+\d{{1,3}}(?:{_GAP}\d{{1,9}}){{1,7}}"
_PLAIN_INTERNATIONAL = r"\+\d{7,15}"
_NATIONAL = rf"(?!{_DATE})\(?0\d{{1,4}}(?:{_GAP}\d{{2,9}}){{1,5}}"
_LEAST_DIGITS = 7
_YEARS = range(1000, 2100)


def phone_rules(language: Language, numbers: Numbers) -> list[Rule]:
    """Rules of phone numbers."""
    facts = language.facts
    letter = language.letter
    usual = "|".join([_INTERNATIONAL, _PLAIN_INTERNATIONAL, _NATIONAL])
    numbered = rf"(?<![{letter}.,:/+-])(?:{usual})(?![{letter}/-]|[.,:]\d)"
    patterns = [numbered, *facts["phones"]]
    phones = _Phones(language, numbers)
    dialled = rf"(?<={facts['dialled']})\d{{3,12}}(?!\d|[.,]\d)"
    return [
        *(Rule(re.compile(pattern), phones.words) for pattern in patterns),
        Rule(re.compile(dialled), phones.digits),
    ]


def rules(language: Language, numbers: Numbers) -> list[Rule]:
    """Rules of ranges, ratios and fractions."""
    facts = language.facts
    ranges = _Ranges(language, numbers)
    fractions = _Fractions(language, numbers)
    number, start, end, letter = language.number, language.start, language.end, language.letter
    unit = "%|℃|°C|°"
    counter = facts["counters"] if language.wide else "(?!)"
    first = rf"{start}({number})(\s?(?:{unit}))?"
    second = rf"(?=({number})(?!\d|[.,:/-]\d|-)({counter})?)"
    integer = r"(?:(\d{1,4})[ \u00a0]?)"
    pairs = [
        (rf"{first}(?:[-~〜～]|[ \u00a0]?[–—][ \u00a0]?){second}", ranges.words),
        (rf"{start}{integer}?([{_VULGAR}])", lambda m: fractions.vulgar(m[1], m[2])),
        (
            rf"{start}(?:(\d{{1,4}}) )?(\d{{1,2}})[/⁄](\d{{1,3}}){end}",
            lambda m: fractions.words(m[1], m[2], m[3]) or m[0],
        ),
    ]
    if facts["against"]:
        pairs.append(
            (
                rf"{start}(\d{{1,3}})(?:| (?=: )):(?:| )(\d{{1,3}})(?![{letter}:/-]|[.,]\d)",
                lambda m: f"{m[1]}{facts['against']}{m[2]}",
            )
        )
    return [Rule(re.compile(pattern), words) for pattern, words in pairs]


class _Phones:
    def __init__(self, language: Language, numbers: Numbers) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers

    def words(self, m: re.Match[str]) -> str:
        """Groups of digits, read one by one, or as numbers where the language does that."""
        groups = re.findall(r"\d+", m[0])
        if len("".join(groups)) < _LEAST_DIGITS:
            return m[0]
        plus = self.facts["plus"] + self.language.space if m[0].startswith("+") else ""
        between: str = self.facts["between_groups"]
        return plus + between.join(self._group(group) for group in groups)

    def digits(self, m: re.Match[str]) -> str:
        """A short number, digit by digit."""
        words = [self._digit(digit) for digit in m[0]]
        return self.language.space.join(words)

    def _digit(self, digit: str) -> str:
        return self.facts["phone_digits"].get(digit) or self.numbers.cardinal(int(digit))

    def _group(self, digits: str) -> str:
        if self.facts["grouped_phones"] and len(digits) <= 3:
            zeros = len(digits) - len(digits.lstrip("0"))
            words = [self.numbers.cardinal(0)] * zeros
            if zeros < len(digits):
                words.append(self.numbers.cardinal(int(digits)))
            return " ".join(words)
        return self.language.space.join(self._digit(digit) for digit in digits)


class _Ranges:
    def __init__(self, language: Language, numbers: Numbers) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers

    def words(self, m: re.Match[str]) -> str:
        """ "10–15" -> "10 bis 15", "3-1" -> "3 a 1"."""
        first = self._value(m[1])
        second = self._value(m[3])
        counter = m[4] or ""
        if first < second and (self._is_year(m[1]) == self._is_year(m[3]) or len(m[1]) != 4):
            return f"{self._counted(m[1], counter)}{m[2] or ''}{self.facts['range']}"
        is_score = max(len(m[1]), len(m[3])) <= 2 and self.facts["against"]
        if is_score:
            return f"{m[1]}{self.facts['against']}"
        return m[0]

    def _counted(self, written: str, counter: str) -> str:
        """The first number of a range, as it is read in front of the counter behind the second."""
        if self.language.code == "ko":
            return written + counter
        if counter and written == "2":
            return str(self.facts["masculine"][self.numbers.cardinal(2)])
        return written

    def _value(self, written: str) -> float:
        integer, decimals = self.numbers.parts(written)
        return float(f"{integer}.{decimals or 0}")

    def _is_year(self, written: str) -> bool:
        return len(written) == 4 and written.isdecimal() and int(written) in _YEARS


class _Fractions:
    def __init__(self, language: Language, numbers: Numbers) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers

    def vulgar(self, whole: str | None, sign: str) -> str:
        """ "2", "½" -> "zweieinhalb"."""
        above, _, below = unicodedata.normalize("NFKD", sign).partition("⁄")
        return self.words(whole, above, below) or sign

    def words(self, whole: str | None, above: str, below: str) -> str:
        """A fraction, or nothing where it has no words."""
        numerator = int(above)
        denominator = int(below)
        if not 0 < numerator < denominator:
            return ""
        if self.language.wide:
            fraction = self._wide(numerator, denominator)
        else:
            fraction = self._named(numerator, denominator)
        if whole is None or not fraction:
            return fraction
        is_half = (numerator, denominator) == (1, 2)
        frame: str = self.facts["and_half"] if is_half else self.facts["and_fraction"]
        return frame.format(self.numbers.cardinal(int(whole)), fraction)

    def _wide(self, numerator: int, denominator: int) -> str:
        frame: str = self.facts["fraction"]
        return frame.format(
            above=self.numbers.cardinal(numerator), below=self.numbers.cardinal(denominator)
        )

    def _named(self, numerator: int, denominator: int) -> str:
        names: list[str] = self.facts["denominators"]
        if denominator - 2 >= len(names):
            return ""
        one, _, several = names[denominator - 2].partition(" ")
        if numerator == 1:
            return f"{self.facts['one_part']} {one}"
        parts: Callable[[int], str] = self.numbers.cardinal
        count = parts(numerator)
        if self.language.code == "ru":
            count = self.numbers.ruled(numerator, "spellout-cardinal-feminine")
        return f"{count} {several or one}"
