"""How a number agrees with the noun that it counts: gender by the noun's ending, case by the word
in front."""

from __future__ import annotations

import re

from stentor.text.cleanup.languages.facts import Language
from stentor.text.endings import LANGUAGES

_SPACE = "[ \u00a0\u202f]"
_OTHER_NUMBER = rf"(?:(?:und|oder|bis|et|ou|à|y|o|u|a|e|и|или|до) \d{{1,6}}{_SPACE})"  # "ou 3"
_HUNDREDS = re.compile(r"(?<=nt)os\b")  # "doscientos", "duzentos"
_LAST_WORD = re.compile(r"(?<!\w)(\w{1,12})\s$")


class Nouns:
    """Nouns of one language, and the forms of one and of two in front of them."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self.facts = language.facts
        between = rf"(?:–\d{{1,6}})?{_SPACE}{_OTHER_NUMBER}?{self.facts['adjective']}"
        self._noun = re.compile(rf"{between}([^\W\d_]{{2,40}})")
        self._cases: dict[str, dict[str, str]] = self.facts.get("cases", {})
        self._articles: dict[str, dict[str, str]] = self.facts.get("articles", {})
        self._patterns = {
            gender: re.compile(pattern) for gender, pattern in self.facts["nouns"].items()
        }

    def behind(self, text: str, end: int) -> str:
        """The noun that follows a number which ends there, or nothing."""
        m = self._noun.match(text, end)
        if m is None:
            return ""
        noun = m[1]
        function_words = LANGUAGES[self.language.code].words
        if noun.lower() in function_words:
            return ""
        return noun

    def gender(self, noun: str, count: str) -> str:
        """The gender of a noun behind a number, by its ending."""
        is_one = _ends_with_one(count)
        if "feminine_plural" in self._patterns and not is_one:
            is_feminine = self._matches("feminine_plural", noun)
        else:
            is_feminine = self._matches("feminine", noun)
        if is_feminine:
            return "feminine"
        if is_one and self._matches("neuter", noun):
            return "neuter"
        return "masculine"

    def _matches(self, gender: str, noun: str) -> bool:
        pattern = self._patterns.get(gender)
        if pattern is None:
            return False
        return pattern.fullmatch(noun.lower()) is not None

    def is_unknown(self, noun: str, count: str) -> bool:
        """Whether a number that ends with one has a gender here which no ending reveals."""
        is_masculine = self.gender(noun, count) == "masculine"
        return is_masculine and _ends_with_one(count) and self._matches("unknown", noun)

    def case(self, before: str) -> str:
        """The case that the last word of a text governs, or nothing."""
        governing = _LAST_WORD.search(before[-14:])
        if governing is None:
            return ""
        word = governing[1].lower()
        for case, facts in self._cases.items():
            if re.fullmatch(facts["behind"], word):
                return case
        return ""

    def agreed(self, words: str, noun: str, count: str, before: str = "") -> str:
        """A number whose words agree with a noun: "doscientos uno" -> "doscientas una".

        before: the text in front of the number, whose last word may govern its case.
        """
        gender = self.gender(noun, count)
        if count == "1":
            return self._one(words, noun, gender, before)
        return self._inflected(words, gender)

    def _one(self, words: str, noun: str, gender: str, before: str) -> str:
        articles = self._articles.get(gender, {})
        for pattern, article in articles.items():
            if re.match(pattern, noun.lower()):
                return article

        case = self.case(before)
        forms = self._cases.get(case, {})
        if gender not in forms:
            return self._inflected(words, gender)
        if gender == "masculine" and not self._matches("masculine", noun):
            return forms["unknown"]
        return forms[gender]

    def _inflected(self, words: str, gender: str) -> str:
        """Words of a number with the forms of a gender."""
        forms: dict[str, str] = self.facts.get(gender, {})
        start, last = _last_word(words)
        if gender == "feminine" and self.facts["inflected_hundreds"]:
            start = _HUNDREDS.sub("as", start)
            last = _HUNDREDS.sub("as", last)
        if gender == "feminine" and last == "mil":
            rest, thousands = _last_word(start.removesuffix(" "))
            inflected = self.facts["thousands"].get(thousands, thousands)
            start = rest + inflected + start[-1:]
        return start + forms.get(last, last)


def _ends_with_one(count: str) -> bool:
    return count.endswith("1") and not count.endswith("11")


def _last_word(words: str) -> tuple[str, str]:
    """Text in front of the last word, and that word."""
    last = re.split("[ -]", words)[-1]
    rest = words[: len(words) - len(last)]
    return rest, last
