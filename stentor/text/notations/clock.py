"""Times of day."""

from __future__ import annotations

import re

from stentor.text.notations.rule import rules
from stentor.text.numbers import letters, say, two_digits

ZONES = {
    "EST": "Eastern",
    "EDT": "Eastern",
    "CST": "Central",
    "CDT": "Central",
    "MST": "Mountain",
    "MDT": "Mountain",
    "PST": "Pacific",
    "PDT": "Pacific",
    "GMT": "G M T",
    "UTC": "U T C",
    "BST": "B S T",
    "CET": "C E T",
    "CEST": "C E S T",
    "ET": "Eastern",
    "E T": "Eastern",
    "PT": "Pacific",
    "CT": "Central",
    "IST": "I S T",
    "JST": "J S T",
}
_HALF = r"[ap]\.?\s?m\b\.?|[AP]\.?\s?M\b\.?"
_HOUR = r"(?:[01]?\d|2[0-4])"
_MINUTE = r"[0-5]\d"
_NUMBER_WORD = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|twenty|thirty|forty|fifty"


def _half(written: str | None) -> str:
    """ "p.m." -> " P M"."""
    if not written:
        return ""
    return " " + letters(written)


def _time(m: re.Match[str]) -> str:
    return _clock(m[1], m[2], m[4]) + _half(m[4]) + _end(m, m[4])


def _end(m: re.Match[str], half: str | None) -> str:
    """The full stop of "p.m." where it ends the sentence too."""
    return "." if half and half.endswith(".") and re.match(r"\s+[A-Z][a-z]", m.string[m.end() : m.end() + 9]) else ""


def _clock(hour: str, minute: str, half: str | None) -> str:
    words = say(int(hour))
    if minute != "00":
        return f"{words} {two_digits(int(minute))}"
    if half:
        return words
    return f"{words} o'clock" if 1 <= int(hour) <= 12 else f"{words} hundred hours"


def _to(m: re.Match[str]) -> str:
    first = say(int(m[1])) + (f" {two_digits(int(m[2]))}" if m[2] and m[2] != "00" else "")
    return f"{first}{_half(m[3])} to "


def _military(m: re.Match[str]) -> str:
    hour, minute = m[1], m[2]
    words = f"zero {say(int(hour))}" if hour[0] == "0" else say(int(hour))
    return f"{words} {'hundred' if minute == '00' else two_digits(int(minute))} hours"


RULES = rules(
    (
        rf"\b({_HOUR})(?::({_MINUTE}))?\s?({_HALF})?\s?(?:-|–|to)\s?(?={_HOUR}(?::{_MINUTE})?\s?(?:{_HALF})|noon\b|midnight\b)",
        _to,
    ),
    (rf"\b({_HOUR})(?::({_MINUTE}))()\s?[-–]\s?(?={_HOUR}:{_MINUTE})", _to),
    (r"\b([Nn]oon|[Mm]idnight)\s?[-—]\s?(?=\d)", lambda m: f"{m[1]} to "),
    (
        r"\b(\d{1,2}):(\d{2}):(\d{2})\b(?!\s?[apAP]\.?\s?[mM])",
        lambda m: f"{say(int(m[1]))} {two_digits(int(m[2]))} {two_digits(int(m[3]))}",
    ),
    (rf"\b({_HOUR}):({_MINUTE})(:{_MINUTE})?(?!\d)(?:\s*({_HALF}))?", _time),
    (rf"\b({_HOUR})\.({_MINUTE})()\s?({_HALF})(?!\w)", _time),
    (rf"\b(\d{{1,2}})\s?({_HALF})(?![\w])", lambda m: say(m[1]) + _half(m[2]) + _end(m, m[2])),
    (r"\b([012]\d)([0-5]\d)\s?(?:hours|hrs|h)\b", _military),
    (
        rf"\b(A M|P M|o'clock|hours|oh \w+|{_NUMBER_WORD})\s+({'|'.join(ZONES)})\b(?!\.\w)",
        lambda m: f"{m[1]} {ZONES[m[2]]}",
    ),
    (
        r"\b(\d+)\s?h(?:r|rs)?\s?(\d+)\s?m(?:in|ins)?\b",
        lambda m: f"{say(m[1])} hour{'' if m[1] == '1' else 's'} {say(m[2])} minute{'' if m[2] == '1' else 's'}",
    ),
)
