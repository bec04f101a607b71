"""Times of day."""

from __future__ import annotations

import re

from stentor.text.cleanup.languages.facts import Language, Rule, rule
from stentor.text.cleanup.languages.numbers import Numbers

_HOUR_GENITIVE = re.compile(r"\b(?:[Сс]|[Дд]о|[Оо]т|[Пп]осле|[Оо]коло) $")
_HOUR = r"([01]?\d|2[0-4])"


def rules(language: Language, numbers: Numbers) -> list[Rule]:
    """Rules of times of day."""
    times = _Times(language, numbers)
    facts = language.facts
    letter = language.letter
    behind = rf"(?:{facts['behind']})"
    rest = rf"([0-5]\d)(?::([0-5]\d)|(?:min|mn)\b)?(?![{letter}:]|[.,]\d)"
    with_stop = ""
    if language.code == "de":
        with_stop = behind
    time = (
        rf"({facts['at_hour']})?(?<![{letter}.,:/]){_HOUR}"
        rf"(?::{rest}{behind}?|{facts['between']}{rest}{with_stop})"
    )
    dashes = rf"(?<=:\d\d)\s?[-–~〜～]\s?(?={_HOUR}:[0-5]\d)"
    rules = [
        rule(dashes, lambda m: str(facts["until"])),
        rule(time, times.clock),
    ]
    if language.code == "ko":
        rules.append(rule(r"(?<!\d)(\d{1,2})(?=시(?!간|속))", times.hour))
    return rules


class _Times:
    def __init__(self, language: Language, numbers: Numbers) -> None:
        self.language = language
        self.facts = language.facts
        self.numbers = numbers

    def clock(self, m: re.Match[str]) -> str:
        """ "14:30" -> "vierzehn Uhr dreißig"."""
        before = m[1] or ""
        hour = int(m[2])
        minute = m[3] or m[5]
        second = m[4] or m[6]
        if minute == "00" and not second:
            is_genitive = _HOUR_GENITIVE.search(m.string[max(0, m.start() - 7) : m.start()])
            if self.language.code == "ru" and is_genitive:
                return self._genitive_hour(hour)
            return before + self._full_hour(hour, bool(before))
        frame: str = self.facts["time"]
        if hour == 1:
            frame = self.facts.get("time_at_one", frame)
        words = before + frame.format(self._hour(hour), self._sixtieth(minute))
        if second:
            words += self.facts["second"].format(self._sixtieth(second))
        return words

    def _genitive_hour(self, hour: int) -> str:
        """An hour behind "с" or "до"."""
        noun = self.facts["hour_names"]["few" if hour % 20 == 1 else "many"]
        return f"{self.numbers.genitive(str(hour), 'masculine')} {noun}"

    def _full_hour(self, hour: int, behind_article: bool) -> str:
        words = self._hour(hour)
        if behind_article:
            return words
        frame: str = self.facts["hour"]
        plural = self.facts["hour_names"].get(self.numbers.plural(str(hour)), "")
        return frame.format(words, plural or self.facts["hour_names"].get("other", ""))

    def hour(self, m: re.Match[str]) -> str:
        """An hour in front of its noun."""
        return self._hour(int(m[1]))

    def _hour(self, hour: int) -> str:
        words: str | None = self.facts.get("hours", {}).get(str(hour))
        if words is None and "hour_rule" in self.facts:
            return self.numbers.ruled(hour, self.facts["hour_rule"])
        return words or self.numbers.cardinal(hour)

    def _sixtieth(self, digits: str) -> str:
        zero: str = self.facts["zero"] if digits[0] == "0" and digits != "00" else ""
        return zero + self.numbers.cardinal(int(digits))
