"""Ordinals, numbers in front of counters, and all other numbers."""

from __future__ import annotations

import re
from functools import partial

from stentor.text.cleanup.languages.facts import Language, Rule, before, rule
from stentor.text.cleanup.languages.german import ordinal_rule
from stentor.text.cleanup.languages.nouns import Nouns
from stentor.text.cleanup.languages.numbers import Numbers

_GERMAN_ORDINAL = re.compile(
    r"\b((?:(?:in|mit|von|zu|bei|auf|an|nach|aus|seit|unter|vor)\s)?"
    r"(?:am|im|vom|zum|zur|beim|dem|den|einem|einer|des|der|die|das|eine|ab|bis|seit|jeder|jeden|jedes))\s"
    r"(\d{1,4})\.(?=\s(?:[A-ZÄÖÜ]|(?:und|oder|bis)\s))",
    re.IGNORECASE,
)
_NOMINATIVE = ("der", "die", "das", "eine", "jeder")
_GERMAN_YEAR = re.compile(r"1[1-9]\d\d")


def ordinal_rules(language: Language, numbers: Numbers) -> list[Rule]:
    """Rules of digits that are ordinals: "am 3. Oktober", "1er mai", "2ª"."""
    rules = []
    if language.code == "de":
        rules.append(Rule(_GERMAN_ORDINAL, partial(_german_ordinal, numbers)))
        for ending, nouns in language.facts["ordinal_nouns"].items():
            pattern = rf"{language.start}(\d{{1,2}})\.(?=\s(?:{nouns})\b)"
            rules.append(rule(pattern, partial(_in_front_of_noun, numbers, ending)))
    for ending, ordinal in language.facts["ordinals"].items():
        pattern = rf"(?<![\w.,:/-])(\d{{1,4}})\.?(?:{ending})(?!\w)"
        rules.append(rule(pattern, partial(_ruled, numbers, ordinal)))
    for pattern, frame in language.facts["joined"].items():
        words = partial(_framed, numbers, frame)
        rules.append(rule(rf"{language.start}{pattern}", words))
    return rules


def rules(language: Language, numbers: Numbers, nouns: Nouns) -> list[Rule]:
    """Rules of numbers that count something, and of all that are left."""
    counted = _Counted(language, numbers, nouns)
    start = language.start
    counters = language.facts["counters"]
    return [
        rule(rf"{start}(?<![第제])(\d{{1,4}})(?={counters})", counted.with_counter),
        rule(
            rf"{start}([-−+]?)({language.number}){language.end}([ \u00a0](?=\w))?",
            counted.with_noun,
        ),
    ]


def _in_front_of_noun(numbers: Numbers, alone: str, m: re.Match[str]) -> str:
    return numbers.ruled(int(m[1]), ordinal_rule(m, alone))


def _ruled(numbers: Numbers, rule: str, m: re.Match[str]) -> str:
    return numbers.ruled(int(m[1]), rule)


def _framed(numbers: Numbers, frame: str, m: re.Match[str]) -> str:
    if "{}" not in frame:
        return frame
    if len(m[1]) == 4:
        return frame.format(numbers.year(m[1]))
    return frame.format(numbers.number(m[1]))


def _german_ordinal(numbers: Numbers, m: re.Match[str]) -> str:
    """ "am", 3 -> "am dritten", "die", 3 -> "die dritte"."""
    ordinal = "spellout-ordinal-n"
    if m[1].lower() in _NOMINATIVE:  # no preposition stands in front
        ordinal = "spellout-ordinal"
    return f"{m[1]} {numbers.ruled(int(m[2]), ordinal)}"


class _Counted:
    def __init__(self, language: Language, numbers: Numbers, nouns: Nouns) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers
        self.nouns = nouns

    def with_counter(self, m: re.Match[str]) -> str:
        """A number in front of a counter, by the rule for counters."""
        value = int(m[1])
        if self.language.code == "ko":
            return self.numbers.native(value)
        words = self.numbers.cardinal(value)
        return str(self.facts["masculine"].get(words, words))

    def with_noun(self, m: re.Match[str]) -> str:
        """A number, in the gender and the case of the noun that follows it."""
        space = m[3] or ""
        words = self.numbers.sign(m[1]) + self._agreed(m, m[2])
        if words.endswith("’"):
            return words
        return words + space

    def _agreed(self, m: re.Match[str], written: str) -> str:
        integer, decimals = self.numbers.parts(written)
        if self.language.code == "de" and _GERMAN_YEAR.fullmatch(written):
            return self.numbers.year(written)
        if decimals:
            return self.numbers.number(written)

        noun = self.nouns.behind(m.string, m.end(2))
        text = before(m)
        if self.nouns.case(text) == "genitive":
            gender = self.nouns.gender(noun, integer)
            return self.numbers.genitive(integer, gender)
        if self.nouns.is_unknown(noun, integer):
            return written
        words = self.numbers.number(written)
        if not noun:
            return words
        return self.nouns.agreed(words, noun, integer, text)
