"""Money, units, and large numbers whose scale is abbreviated."""

from __future__ import annotations

import re
from typing import Any

from stentor.text.cleanup.languages.facts import (
    MONEY,
    UNITS,
    Language,
    Rule,
    any_of,
    before,
    rule,
)
from stentor.text.cleanup.languages.nouns import Nouns
from stentor.text.cleanup.languages.numbers import LONGEST, Numbers

_MILLIONS = re.compile(r"(?:mill[oó]n|million|milhão|milhões|milliard|milion|miliard)\w{0,20}$")
_SIGN = "[-−+]?"
_MANY = "1000000"
_SPACE = re.compile(r"[\u00a0\u202f]")
_DIGITS = re.compile(r"\d[\d.,\u00a0\u202f]*\d|\d")


def rules(language: Language, numbers: Numbers, nouns: Nouns) -> list[Rule]:
    """Rules of amounts."""
    money = _Money(language, numbers, nouns)
    units = _Units(language, numbers, nouns)
    number = language.number
    start = language.start
    signs = any_of(MONEY)
    letter = language.letter
    scales = "|".join(language.facts["scales"]) or "(?!)"
    return [
        rule(
            rf"{start}({number})\s?({scales})(?:\b\.?(?:\s?({signs}))?|({signs}))(?!\w)",
            money.scaled,
        ),
        rule(
            rf"{start}({signs})\s?({number})[ \u00a0]({language.facts['large']})\b",
            money.large,
        ),
        rule(rf"{start}({signs})\s?({number}){language.end}", money.behind_sign),
        rule(
            rf"{start}({_SIGN})({number})(?:,[-–—]{{1,2}})?\s?({signs})(?![{letter}])",
            money.before_sign,
        ),
        rule(
            rf"{start}({_SIGN})({number})\s?({any_of(language.units())})(?![{letter}/²³])",
            units.words,
        ),
        rule(
            rf"(?<=[万亿億만억])\s?({any_of(language.units())})(?![{letter}/²³])",
            units.behind_words,
        ),
    ]


def _form(names: dict[str, str], plural: str) -> str:
    """The form of a name for a plural of CLDR."""
    return names.get(plural) or names["other"]


def _genitive_value(integer: str) -> int:
    """A number whose noun has the form that it has in the genitive behind `integer`: "двух
    километров" has that of five, "одного километра" that of two."""
    value = int(integer[:LONGEST])
    if value % 10 == 1 and value % 100 != 11:
        return 2
    return 5


class _Money:
    def __init__(self, language: Language, numbers: Numbers, nouns: Nouns) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers
        self.nouns = nouns

    def scaled(self, m: re.Match[str]) -> str:
        """ "1,5", "Mio", "€" -> "eins Komma fünf Millionen Euro"."""
        names = self.facts["scales"][m[2]]
        name = _form(names, self.numbers.plural(m[1]))
        sign = m[3] or m[4]
        return self._large(m[1], name, sign)

    def large(self, m: re.Match[str]) -> str:
        """ "$", "3", "millones" -> "tres millones de dólares"."""
        return self._large(m[2], m[3], m[1])

    def _large(self, written: str, name: str, sign: str | None) -> str:
        integer, _ = self.numbers.parts(written)
        words = self.numbers.number(written)
        words = self.nouns.agreed(words, name, integer)
        if sign is None:
            return f"{words} {name}"
        money = self._of(self._name(sign, _MANY))
        return f"{words} {name} {money}"

    def behind_sign(self, m: re.Match[str]) -> str:
        """ "$5" -> "fünf Dollar"."""
        return self._words(m[1], m[2], before(m))

    def before_sign(self, m: re.Match[str]) -> str:
        """ "12,50 €" -> "zwölf Euro fünfzig"."""
        return self.numbers.sign(m[1]) + self._words(m[3], m[2], before(m))

    def _words(self, sign: str, written: str, text: str) -> str:
        integer, decimals = self.numbers.parts(written)
        if self.language.wide:
            return self._east_asian(sign, written)
        cents = 0
        if decimals:
            cents = int(decimals[:2].ljust(2, "0"))
        if not cents:
            return self._without_cents(sign, integer, text)
        if int(integer) == 0:
            return self._cents(sign, cents)

        behind = self.numbers.cardinal(cents)
        if sign in self.facts["with_cents"]:
            behind = self._cents(sign, cents)
        words = self._without_cents(sign, integer, "")
        return f"{words} {self.facts['between_cents']}{behind}"

    def _east_asian(self, sign: str, written: str) -> str:
        integer, decimals = self.numbers.parts(written)
        words = self.numbers.number(written)
        if not decimals:
            words = self.nouns.agreed(words, sign, integer)
        return words + self._name(sign, written)

    def _without_cents(self, sign: str, integer: str, text: str) -> str:
        if self.nouns.case(text) == "genitive":
            name = self._name(sign, str(_genitive_value(integer)))
            gender = self.nouns.gender(name, integer)
            return f"{self.numbers.genitive(integer, gender)} {name}"
        name = self._name(sign, integer)
        words = self.nouns.agreed(self.numbers.number(integer), name, integer, text)
        if _MILLIONS.search(words):
            name = self._of(name)
        return f"{words} {name}"

    def _of(self, name: str) -> str:
        """A name behind a million."""
        of = str(self.facts["of"])
        if of == "d’" and name[0].lower() not in "aeiouyh":
            return f"de {name}"
        return of + name

    def _cents(self, sign: str, cents: int) -> str:
        """ "fünfzig Cent"."""
        names = self.facts["cents"].get(sign) or self.facts["cents"]["usual"]
        count = str(cents)
        name = _form(names, self.numbers.plural(count))
        words = self.nouns.agreed(self.numbers.cardinal(cents), name, count)
        return f"{words} {name}"

    def _name(self, sign: str, written: str) -> str:
        from babel.numbers import get_currency_name

        names = self.facts["money"].get(sign)
        if names is not None:
            return _form(names, self.numbers.plural(written))
        integer, _ = self.numbers.parts(written)
        value = int(integer[:LONGEST])
        name = get_currency_name(MONEY[sign], value, self.language.code)
        if self.language.code == "pt":  # CLDR writes "Euros"
            return name.lower()
        return name


class _Units:
    def __init__(self, language: Language, numbers: Numbers, nouns: Nouns) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers
        self.nouns = nouns
        self.names = language.units()

    def words(self, m: re.Match[str]) -> str:
        """ "5 km" -> "fünf Kilometer"."""
        sign = self.numbers.sign(m[1])
        unit = self.names[m[3]]
        frame: str | None = self.facts["frames"].get(unit)
        if frame is not None:  # "百分之二" counts nothing
            return sign + frame.format(self.numbers.number(m[2]))

        words, template = self._counted(m[2], unit, before(m))
        words = sign + words
        if words.endswith("’"):
            template = template.replace("{} ", "{}")
        if self.language.wide:
            template = template.replace(" ", "")
        return template.format(words)

    def behind_words(self, m: re.Match[str]) -> str:
        """The name of a unit behind a number that ends in a word: "38万km"."""
        template = self._template(2, self.names[m[1]])
        return template.replace("{}", "").strip()

    def _counted(self, written: str, unit: str, text: str) -> tuple[str, str]:
        """The words of a number, and the name of its unit with {} for them."""
        integer, decimals = self.numbers.parts(written)
        value: Any = int(integer[:LONGEST])
        if decimals:
            template = self._template(float(f"{value}.{decimals}"), unit)
            return self.numbers.number(written), template

        is_genitive = self.nouns.case(text) == "genitive"
        if is_genitive:
            value = _genitive_value(integer)
        template = self._template(value, unit)
        name = template.replace("{}", "").split()[0]
        if is_genitive:
            gender = self.nouns.gender(name, integer)
            return self.numbers.genitive(integer, gender), template
        if self.language.code == "ko" and unit == "h":
            return self.numbers.native(int(integer)), template
        words = self.nouns.agreed(self.numbers.number(written), name, integer, text)
        return words, template

    def _template(self, value: float, unit: str) -> str:
        """ "{} Kilometer"."""
        from babel.units import format_unit

        amount = format_unit(value, UNITS[unit], "long", locale=self.language.code)
        template = _DIGITS.sub("{}", amount, count=1)
        template = _SPACE.sub(" ", template)
        for official, spoken in self.facts["spoken_units"].items():
            template = template.replace(official, spoken)
        return template
