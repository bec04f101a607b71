"""Abbreviations, and Roman numerals of rulers, centuries and chapters."""

from __future__ import annotations

import re
from functools import partial

from stentor.text.cleanup.languages.facts import Language, Rule, rule
from stentor.text.cleanup.languages.numbers import Numbers

_NUMERAL = r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})"
_SEVERAL = rf"(?=[IVX]{{2}}){_NUMERAL}"
_VALUES = {"I": 1, "V": 5, "X": 10}


def rules(language: Language, numbers: Numbers) -> list[Rule]:
    """Rules of abbreviations and Roman numerals."""
    facts = language.facts
    rules = []
    for written, words in facts["abbreviations"].items():
        pattern = rf"(?<![\w.]){written}"
        rules.append(rule(pattern, partial(_expanded, words, language.space)))
    for written, words in facts["closing"].items():
        pattern = rf"(?<![\w.]){written}"
        rules.append(rule(pattern, partial(_closing, words)))
    if not language.wide:
        rules += _Numerals(language, numbers).rules()
    return rules


def _expanded(words: str, space: str, m: re.Match[str]) -> str:
    """The words, with a capital where the abbreviation has one and begins a sentence."""
    text = m.string[max(0, m.start() - 2) : m.start()].strip()
    begins = not text or text[-1] in ".!?…"
    if begins and m[0][0].isupper():
        words = words[0].upper() + words[1:]
    following = m.string[m.end() : m.end() + 1]
    if words.endswith(" "):
        return words
    if following.isdigit():
        return words + space
    return words


def _closing(words: str, m: re.Match[str]) -> str:
    """The words, with a full stop where the abbreviation ends a sentence."""
    behind = m.string[m.end() : m.end() + 8]
    first = behind.lstrip(" \u00a0")[:1]
    ends = not first or first == "\n" or first.isupper()
    if ends:
        return f"{words}."
    return words


class _Numerals:
    def __init__(self, language: Language, numbers: Numbers) -> None:
        self.facts = language.facts
        self.numbers = numbers

    def rules(self) -> list[Rule]:
        rules = []
        for ruler in self.facts["rulers"]:
            pattern = rf"\b({ruler['names']})\s({_NUMERAL})(?:er|ère)?(?!\w)\.?"
            rules.append(rule(pattern, partial(self._ruler, ruler)))

        for written, ordinal in self.facts["centuries"].items():
            pattern = written.replace("NUMERAL", f"({_NUMERAL})")
            rules.append(rule(rf"\b{pattern}", partial(self._century, ordinal)))

        parts = self.facts["parts_of_books"]
        in_book = rule(rf"\b({parts} )({_NUMERAL})(?!\w)", self._counted)
        behind_word = rule(
            rf"(?<=[^\W\d_])( )({_SEVERAL})(?![\w'’-])",
            self._counted,
        )
        return [*rules, in_book, behind_word]

    def _ruler(self, ruler: dict[str, str], m: re.Match[str]) -> str:
        """ "Ludwig XIV." -> "Ludwig der Vierzehnte", "Louis XIV" -> "Louis quatorze"."""
        value = _value(m[2])
        if value > self.facts["last_ordinal_ruler"]:
            words = self.numbers.cardinal(value)
        else:
            words = self.numbers.ruled(value, ruler["rule"])
        if self.facts["capital_ordinals"]:
            words = words.capitalize()
        frame = ruler.get("frame", "{}")
        return f"{m[1]} {frame.format(words)}"

    def _counted(self, m: re.Match[str]) -> str:
        """ "Kapitel IV" -> "Kapitel vier"."""
        value = _value(m[2])
        return m[1] + self.numbers.cardinal(value)

    def _century(self, ordinal: str, m: re.Match[str]) -> str:
        """ "XIXe" -> "dix-neuvième", in front of "siècle"."""
        value = _value(m[1])
        return self.numbers.ruled(value, ordinal)


def _value(numeral: str) -> int:
    """ "XIV" -> 14."""
    values = [_VALUES[sign] for sign in numeral]
    total = 0
    for value, following in zip(values, [*values[1:], 0], strict=True):
        if value < following:
            total -= value
        else:
            total += value
    return total
