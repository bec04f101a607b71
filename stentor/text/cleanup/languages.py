"""Numbers, dates, times of day, money, percentages and units of other languages as words.

Number words are from unicode-rbnf (Unicode's rules for spelling numbers), names of months, units
and currencies from Babel (Unicode's CLDR). Both come with the extra `notations`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.text.draft import Draft

if TYPE_CHECKING:
    from unicode_rbnf import RbnfEngine

_LANGUAGES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
_USUAL, _UNITS, _MONEY = (_LANGUAGES.pop(name) for name in ("usual", "units", "money"))
CODES: dict[str, str] = {facts["name"]: code for code, facts in _LANGUAGES.items()}
"""Languages of requests, and their codes."""
LONGEST = 15
"""Digits of a number that is read as one. A longer one, and one that begins with 0, is read digit
by digit."""
_NOUN = re.compile(r"[ \u00a0\u202f]([^\W\d_]{2,40})")
_GERMAN_ORDINAL = re.compile(
    r"\b((?:(?:in|mit|von|zu|bei|auf|an|nach|aus|seit|unter|vor)\s)?"
    r"(?:am|im|vom|zum|zur|beim|dem|den|einem|einer|des|der|die|das|eine|ab|bis|seit|jeder|jeden|jedes))\s"
    r"(\d{1,4})\.(?=\s[A-ZÄÖÜ])",
    re.IGNORECASE,
)
_NOMINATIVE = ("der", "die", "das", "eine", "jeder")
_HUNDREDS = re.compile(r"(?<=nt)os\b")  # "doscientos", "duzentos"
_ARTICLE = re.compile(r"\b(?:[Dd]er|[Dd]ie|[Dd]as) $")
_DATIVE = re.compile(r"\b(?:[Aa]m|[Vv]om|[Zz]um|[Dd]em|[Dd]en|[Bb]eim|[Aa]b|[Bb]is|[Ss]eit) $")
_DIGITS = "零一二三四五六七八九"
_WIDE = ("zh", "ja", "ko")
_MILLIONS = re.compile(r"(?:mill[oó]n|million|milhão|milhões|milliard|milion|miliard)\w{0,20}$")


def check(code: str) -> None:
    """InvalidRequest("cleanup") for a language that has no notations here, or without the
    packages."""
    if code not in CODES.values():
        raise InvalidRequest(
            "cleanup", f"notations has {', '.join(sorted(CODES.values()))}, not {code[:20]!r}"
        )
    try:
        import babel  # noqa: F401
        import unicode_rbnf  # noqa: F401
    except ImportError:
        raise InvalidRequest(
            "cleanup", f"notations needs packages: {pip_install('notations')}"
        ) from None


@cache
def step(code: str) -> Callable[[Draft], Draft]:
    """The step of the clean-up for a language, by its code."""
    return _Reader(code).cleaned


class _Reader:
    def __init__(self, code: str) -> None:
        from unicode_rbnf import RbnfEngine

        self.code = code
        self.wide = code in _WIDE
        if self.wide:
            self.space = ""
        else:
            self.space = " "
        self.engine: RbnfEngine = RbnfEngine.for_language(code)
        self.facts: dict[str, Any] = {**_USUAL, **_LANGUAGES[code]}
        self.names: dict[str, str] = {unit: unit for unit in _UNITS} | self.facts.get("units", {})
        group, point, between, behind = (
            self.facts[name] for name in ("group", "decimal", "between", "behind")
        )
        if self.wide:
            letter = "A-Za-z\\d"
        else:
            letter = r"\w"
        number = rf"(?:\d{{1,3}}(?:[{group}]\d{{3}})+|\d{{1,40}})(?:{point}\d{{1,20}})?"
        start = rf"(?<![{letter}.,:/-])"
        end = rf"(?![{letter}/-]|[.,:]\d)"
        signs = "".join(_MONEY)
        units = "|".join(re.escape(unit) for unit in sorted(self.names, key=len, reverse=True))
        self._say = lru_cache(4096)(self._said)
        self._group = re.compile(rf"[{group}]")
        self._point = re.compile(point)
        self._grouped = re.compile(rf"\d{{1,3}}(?:[{group}]\d{{3}})+(?:{point}\d+)?")
        self._year_first = re.compile(rf"{start}(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){end}")
        self._day_first = re.compile(rf"{start}(\d{{1,2}})[./](\d{{1,2}})[./](\d{{4}}){end}")
        hour = r"([01]?\d|2[0-4])"
        rest = rf"([0-5]\d)(?::([0-5]\d))?(?![{letter}:]|[.,]\d)"
        self._time = re.compile(
            rf"(?<![{letter}.,:/]){hour}(?::{rest}(?:{behind})?|{between}{rest}"
            + ("" if code != "de" else behind)
            + ")"
        )
        self._until = re.compile(rf"(?<=:\d\d)\s?[-–~〜～]\s?(?={hour}:[0-5]\d)")
        self._years = re.compile(r"(?<!\d)(\d{2,4})(?=[年년])")
        self._money = re.compile(
            rf"{start}([{signs}])\s?({number}){end}|{start}({number})\s?([{signs}])(?![{letter}])"
        )
        self._units = re.compile(rf"{start}([-−]?)({number})\s?({units})(?![{letter}/²³])")
        self._numbers = re.compile(rf"{start}([-−]?)({number}){end}")
        scales = self.facts.get("scales")
        self._scaled = None
        if scales:
            names = "|".join(scales)
            self._scaled = re.compile(
                rf"{start}({number})\s?({names})\b\.?(?:\s?([{signs}])(?!\w))?"
            )
        self._counters = None
        if "counters" in self.facts:
            self._counters = re.compile(rf"{start}(?<!第)(\d{{1,4}})(?={self.facts['counters']})")
        self._months = self._month_pattern()

    def _month_pattern(self) -> re.Pattern[str]:
        """The day in front of a month's name; of Korean, the months with names of their own."""
        from babel.dates import get_month_names

        if self.code == "ko":
            return re.compile(r"(?<!\d)(6|10)(?=월)")
        names = "|".join(map(re.escape, get_month_names("wide", locale=self.code).values()))
        stop = r"\." if self.code == "de" else ""
        return re.compile(rf"(?<![\w.,:/-])([1-9]|[12]\d|3[01]){stop}(?=\s(?:{names})\b)")

    def cleaned(self, draft: Draft) -> Draft:
        """With notations as words."""
        if not re.search(r"\d", draft.text):
            return draft
        draft = draft.sub(self._year_first, lambda m: self._date(m, m[1], m[2], m[3]))
        draft = draft.sub(self._day_first, lambda m: self._date(m, m[3], m[2], m[1]))
        draft = draft.sub(self._until, self.facts["until"]).sub(self._time, self._clock)
        if self.wide:
            draft = draft.sub(self._years, lambda m: self._year(m[1]))
        draft = self._ordered(draft)
        if self._scaled is not None:
            draft = draft.sub(self._scaled, lambda m: self._scale(m[1], m[2], m[3]))
        draft = draft.sub(self._money, lambda m: self._amount(m[1] or m[4], m[2] or m[3]))
        draft = draft.sub(self._units, lambda m: self._minus(m[1]) + self._unit(m[2], m[3]))
        if self._counters is not None:
            draft = draft.sub(self._counters, lambda m: self._counted(m[1]))
        return draft.sub(self._numbers, lambda m: self._minus(m[1]) + self._with_noun(m))

    def _ordered(self, draft: Draft) -> Draft:
        """With digits that are ordinals as words: "am 3. Oktober", "1er mai", "2ª"."""
        if self.code == "de":
            draft = draft.sub(_GERMAN_ORDINAL, lambda m: f"{m[1]} {self._german_ordinal(m)}")
            return draft.sub(self._months, lambda m: self._ruled(int(m[1]), "spellout-ordinal-r"))
        if self.code == "ru":
            return draft.sub(self._months, self._russian_day)
        if self.code == "ko":
            return draft.sub(self._months, lambda m: self.facts["months"][m[1]])
        for ending, rule in self.facts.get("ordinals", {}).items():
            pattern = re.compile(rf"(?<![\w.,:/-])(\d{{1,4}})\.?(?:{ending})(?!\w)")
            draft = draft.sub(pattern, partial(self._ordinal, rule))
        return draft

    def _ordinal(self, rule: str, m: re.Match[str]) -> str:
        return self._ruled(int(m[1]), rule)

    def _german_ordinal(self, m: re.Match[str]) -> str:
        """ "am", 3 -> "dritten", "die", 3 -> "dritte"."""
        is_nominative = m[1].lower() in _NOMINATIVE  # no preposition stands in front
        return self._ruled(int(m[2]), "spellout-ordinal" if is_nominative else "spellout-ordinal-n")

    def _russian_day(self, m: re.Match[str]) -> str:
        """A day in front of its month: genitive inside a sentence."""
        inside = m.string[: m.start()].rstrip()[-1:].isalpha()
        rule = "spellout-ordinal-neuter-genitive" if inside else "spellout-ordinal-neuter"
        return self._ruled(int(m[1]), rule)

    def _scale(self, written: str, scale: str, sign: str | None) -> str:
        """ "1,5", "Mio", "€" -> "eins Komma fünf Millionen Euro"."""
        from babel import Locale
        from babel.numbers import get_currency_name

        integer, decimals = self._parts(written)
        plural = "other" if decimals else str(Locale(self.code).plural_form(int(integer)))
        name = self.facts["scales"][scale].get(plural) or self.facts["scales"][scale]["other"]
        words = f"{self._agreed(self._number(written), self._gender_of(name, integer))} {name}"
        if sign is None:
            return words
        money = get_currency_name(_MONEY[sign], 1_000_000, self.code)
        return f"{words} {money.split()[-1] if sign == '₽' else money}"

    def _counted(self, written: str) -> str:
        """A number in front of a counter, by the rule for counters."""
        value = int(written)
        if self.code == "zh":
            return "两" if value == 2 else self._say(value)
        if value < 100:
            return self._ruled(value, "spellout-cardinal-native-attributive")
        return self._say(value)

    def _with_noun(self, m: re.Match[str]) -> str:
        """A number, in the gender of the noun that follows it."""
        from stentor.text.endings import LANGUAGES

        words = self._number(m[2])
        noun = _NOUN.match(m.string, m.end())
        integer, decimals = self._parts(m[2])
        if noun is None or decimals or noun[1].lower() in LANGUAGES[self.code].words:
            return words
        return self._agreed(words, self._gender_of(noun[1], integer))

    def _gender_of(self, noun: str, count: str) -> str:
        """The gender of a noun behind a number, by its ending."""
        kinds = [("feminine_nouns", "feminine"), ("neuter_nouns", "neuter")]
        if "feminine_plurals" in self.facts and not count.endswith("1"):
            kinds = [("feminine_plurals", "feminine")]
        for field, gender in kinds:
            pattern = self.facts.get(field)
            if pattern and re.match(pattern, noun.lower()):
                return gender
        return "masculine"

    def _agreed(self, words: str, gender: str) -> str:
        """A number whose words have a gender: "doscientos uno" -> "doscientas una"."""
        forms: dict[str, str] = self.facts.get(gender, {})
        last = re.split("[ -]", words)[-1]
        start = words[: len(words) - len(last)]
        if gender == "feminine" and self.code in ("es", "pt"):
            start = _HUNDREDS.sub("as", start)
            last = _HUNDREDS.sub("as", last)
        return start + forms.get(last, last)

    def _parts(self, written: str) -> tuple[str, str]:
        """Digits in front of the decimal point and behind it."""
        if self._grouped.fullmatch(written):
            plain = self._group.sub("", written)
        else:
            plain = written
        integer, *decimals = self._point.split(plain, maxsplit=1)
        return integer, decimals[0] if decimals else ""

    def _minus(self, sign: str) -> str:
        return self.facts["minus"] + self.space if sign else ""

    def _number(self, written: str) -> str:
        """ "1.234,5" -> "eintausendzweihundertvierunddreißig Komma fünf"."""
        integer, decimals = self._parts(written)
        by_digit = len(integer) > LONGEST or (integer[0] == "0" and len(integer) > 1)
        if by_digit:
            words = self._digits(integer)
        else:
            words = self._say(int(integer))
        if not decimals:
            return words
        if len(decimals) <= len(self.facts.get("parts", ())):
            return self._with_parts(int(integer), decimals)
        return self.space.join([words, self.facts["point"], self._digits(decimals)])

    def _with_parts(self, whole: int, decimals: str) -> str:
        """ "1,5" -> "одна целая пять десятых"."""
        counts = (
            (whole, self.facts["whole"]),
            (int(decimals), self.facts["parts"][len(decimals) - 1]),
        )
        words = []
        for count, names in counts:
            is_one = count % 10 == 1 and count % 100 != 11
            words.append(self._ruled(count, "spellout-cardinal-feminine"))
            words.append(names[0] if is_one else names[1])
        return " ".join(words)

    def _digits(self, digits: str) -> str:
        return self.space.join(self._say(int(d)) for d in digits)

    def _said(self, value: int) -> str:
        return self._ruled(value, self.facts.get("number_rule"))

    def _ruled(self, value: int, rule: str | None) -> str:
        rules = [rule] if rule else None
        words = str(self.engine.format_number(value, ruleset_names=rules).text)
        return words.replace("〇", "零")  # how a zero is said

    def _year(self, digits: str) -> str:
        """A year: of Chinese digit by digit."""
        from unicode_rbnf import FormatPurpose

        if self.code == "zh":
            return "".join(_DIGITS[int(d)] for d in digits)
        if self.code == "ja":  # its rules have the Chinese way
            return self._say(int(digits))
        return str(self.engine.format_number(int(digits), FormatPurpose.YEAR).text)

    def _date(self, m: re.Match[str], year: str, month: str, day: str) -> str:
        from babel.dates import get_month_names

        if not (1 <= int(month) <= 12 and 1 <= int(day) <= 31):
            return m[0]
        if self.wide:
            name = self._say(int(month))
        else:
            name = get_month_names("wide", locale=self.code)[int(month)]
        date: str = self.facts["date"]
        return date.format(day=self._day(m, int(day)), month=name, year=self._year(year))

    def _day(self, m: re.Match[str], day: int) -> str:
        from unicode_rbnf import FormatPurpose

        if self.code in ("de", "ru"):
            ordinal = str(self.engine.format_number(day, FormatPurpose.ORDINAL).text)
            before = m.string[max(0, m.start() - 8) : m.start()]
            if self.code == "ru" or _ARTICLE.search(before):
                return ordinal
            return ordinal + ("n" if _DATIVE.search(before) else "r")
        return self.facts.get("first", self._say(1)) if day == 1 else self._say(day)

    def _clock(self, m: re.Match[str]) -> str:
        """ "14:30" -> "vierzehn Uhr dreißig"."""
        hour = int(m[1])
        minute = m[2] or m[4]
        second = m[3] or m[5]
        if minute == "00" and not second:
            if "hour" in self.facts:
                return str(self.facts["hour"]).format(self._hour(hour))
            counted = self._agreeing(self._say(hour), "h")
            return self._unit(str(hour), "h").replace(counted, self._hour(hour))
        time: str = self.facts[
            "time_at_one" if hour == 1 and "time_at_one" in self.facts else "time"
        ]
        words = time.format(self._hour(hour), self._sixtieth(minute))
        return words + (self.facts["second"].format(self._sixtieth(second)) if second else "")

    def _hour(self, hour: int) -> str:
        words: str | None = self.facts.get("hours", {}).get(str(hour))
        if words is None and "hour_rule" in self.facts:
            return self._ruled(hour, self.facts["hour_rule"])
        return words or self._say(hour)

    def _sixtieth(self, digits: str) -> str:
        zero: str = self.facts["zero"] if digits[0] == "0" and digits != "00" else ""
        return zero + self._say(int(digits))

    def _amount(self, sign: str, written: str) -> str:
        """ "12,50 €" -> "zwölf Euro fünfzig"."""
        from babel.numbers import get_currency_name

        integer, small = self._parts(written)
        if len(integer) <= LONGEST:
            count = int(integer)
        else:
            count = 2
        name = self.facts.get("money", {}).get(sign) or get_currency_name(
            _MONEY[sign], count, self.code
        )
        if self.code == "pt":  # CLDR writes "Euros"
            name = name.lower()
        if self.wide and small:
            return self._number(written) + name
        if self.wide:
            return self._agreeing(self._number(written), sign) + name
        spoken = self._agreeing(self._number(integer), sign)
        name = name.split()[-1] if sign == "₽" else name
        if "of" in self.facts and _MILLIONS.search(spoken):
            name = self.facts["of"] + name
        words = [spoken, name]
        if small and int(small[:2]):
            words.append(self._say(int(small[:2].ljust(2, "0"))))
        return " ".join(words)

    def _agreeing(self, words: str, counted: str) -> str:
        """A number in the gender of a unit or a currency: "eins" -> "ein" Kilometer."""
        gender = "feminine" if counted in self.facts["feminine_of"] else "masculine"
        return self._agreed(words, gender)

    def _unit(self, written: str, unit: str) -> str:
        """ "5 km" -> "fünf Kilometer"."""
        from babel.units import format_unit

        integer, decimals = self._parts(written)
        words = self._number(written)
        has_frame = unit == "%" and "percent" in self.facts  # "百分之二" counts nothing
        if not decimals and not has_frame:
            words = self._agreeing(words, self.names[unit])
        if self.code == "ko" and unit == "h" and not decimals:
            words = self._counted(integer)
        if unit == "%" and "percent" in self.facts:
            return str(self.facts["percent"]).format(words)
        if decimals:
            value = float(f"{integer[:LONGEST]}.{decimals}")
        else:
            value = int(integer[:LONGEST])
        amount = format_unit(value, _UNITS[self.names[unit]], "long", locale=self.code).replace(
            "\u00a0", " "
        )
        spoken = re.sub(r"\d[\d.,\u202f ]*\d|\d", lambda _: words, amount, count=1)
        return spoken.replace(" ", "") if self.wide else spoken
