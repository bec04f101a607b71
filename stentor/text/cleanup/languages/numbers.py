"""Numbers of a language as words, by Unicode's rules for spelling them."""

from __future__ import annotations

import re
from functools import lru_cache

from stentor.text.cleanup.languages.facts import Language

LONGEST = 15
"""Digits of a number that is read as one. A longer one, and one that begins with 0, is read digit
by digit."""


class Numbers:
    """Reads the numbers of one language."""

    def __init__(self, language: Language) -> None:
        from unicode_rbnf import RbnfEngine

        self.language = language
        self.facts = language.facts
        self._engine = RbnfEngine.for_language(language.code)
        self._silent_one = re.compile(rf"^(?:{self.facts['silent_one']})")
        self._group = re.compile(rf"[{self.facts['group']}]")
        self._point = re.compile(self.facts["decimal"])
        self._grouped = re.compile(
            rf"\d{{1,3}}(?:[{self.facts['group']}]\d{{3}})+(?:{self.facts['decimal']}\d+)?"
        )
        self.cardinal = lru_cache(4096)(self._cardinal)

    def parts(self, written: str) -> tuple[str, str]:
        """Digits in front of the decimal point and behind it."""
        if self._grouped.fullmatch(written):
            plain = self._group.sub("", written)
        else:
            plain = written
        integer, *decimals = self._point.split(plain, maxsplit=1)
        return integer, decimals[0] if decimals else ""

    def sign(self, sign: str) -> str:
        """The word for a sign in front of a number, or nothing."""
        if not sign:
            return ""
        name = "plus" if sign == "+" else "minus"
        return str(self.facts[name]) + self.language.space

    def number(self, written: str) -> str:
        """ "1.234,5" -> "eintausendzweihundertvierunddreißig Komma fünf"."""
        integer, decimals = self.parts(written)
        is_spelled = len(integer) > LONGEST or (integer[0] == "0" and len(integer) > 1)
        if is_spelled:
            words = self.digits(integer)
        else:
            words = self.cardinal(int(integer))

        if not decimals:
            return words
        if len(decimals) <= len(self.facts.get("parts", ())):
            return self._with_parts(int(integer), decimals)
        behind = self.digits(decimals)
        is_number = self.facts["decimals_as_number"] and len(decimals) == 2 and decimals[0] != "0"
        if is_number:
            behind = self.cardinal(int(decimals))
        return self.language.space.join([words, self.facts["point"], behind])

    def _with_parts(self, whole: int, decimals: str) -> str:
        """ "1,5" -> "одна целая пять десятых"."""
        counts = (
            (whole, self.facts["whole"]),
            (int(decimals), self.facts["parts"][len(decimals) - 1]),
        )
        words = []
        for count, names in counts:
            is_one = count % 10 == 1 and count % 100 != 11
            words.append(self.ruled(count, "spellout-cardinal-feminine"))
            words.append(names[0] if is_one else names[1])
        return " ".join(words)

    def digits(self, digits: str) -> str:
        """Digits one by one."""
        return self.language.space.join(self.cardinal(int(d)) for d in digits)

    def _cardinal(self, value: int) -> str:
        return self.ruled(value, self.facts["number_rule"])

    def ruled(self, value: int, rule: str) -> str:
        """A number by one of the rules of its language."""
        names = [rule] if rule else None
        words = str(self._engine.format_number(value, ruleset_names=names).text)
        words = words.replace("〇", "零")  # how a zero is said
        return self._silent_one.sub("", words, count=1)

    def year(self, digits: str) -> str:
        """A year: of Chinese digit by digit."""
        if self.language.code == "zh":
            return "".join(self.cardinal(int(d)) for d in digits)
        if self.facts["year_rule"]:
            return self.ruled(int(digits), self.facts["year_rule"])
        return self.cardinal(int(digits))

    def genitive(self, integer: str, gender: str) -> str:
        """A number in the genitive."""
        if len(integer) > LONGEST:
            return self.digits(integer)
        return self.ruled(int(integer), f"spellout-cardinal-{gender}-genitive")

    def native(self, value: int) -> str:
        """A Korean number in front of a counter."""
        if value < 100:
            return self.ruled(value, self.facts["counter_rule"])
        return self.cardinal(value)

    def plural(self, written: str) -> str:
        """The plural that CLDR has for a number: "one", "few", "many" or "other"."""
        from babel import Locale

        integer, decimals = self.parts(written)
        if decimals:
            return "other"
        return str(Locale(self.language.code).plural_form(int(integer[:LONGEST])))
