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


def _with_seconds(hour: str, minute: str, second: str) -> str:
    """ "10:00:00" -> "ten o'clock", "10:30:05" -> "ten thirty oh five"."""
    if second == "00" and int(hour) < 24:
        return _clock(hour, minute, None)
    return f"{say(int(hour))} {_sixtieth(minute)} {_sixtieth(second)}"


def _sixtieth(digits: str) -> str:
    return "zero" if digits == "00" else two_digits(int(digits))


def _iso(m: re.Match[str]) -> str:
    """ "T07:00:00Z" -> " at seven o'clock U T C"."""
    time, zone = _with_seconds(m[1], m[2], m[3] or "00"), m[4] or ""
    if not zone:
        return f" at {time}"
    offset = f" {'plus' if zone[0] == '+' else 'minus'} {say(int(zone[1:3]))}" if zone != "Z" else ""
    return f" at {time} U T C{offset}"


BASIC = rules(
    (
        r"\b(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)?(Z?)\b",
        lambda m: f"{m[1]}-{m[2]}-{m[3]}T{m[4]}:{m[5]}:{m[6] or '00'}{m[7]}",
        "0",
    )
)
""" "20240501T070000Z": before a rule takes it for a code."""

RULES = rules(
    (
        rf"(?<=\d-\d\d)[T ]([01]\d|2[0-4]):({_MINUTE})(?::({_MINUTE})(?:[.,]\d+)?)?(Z|[+-]\d\d(?::?\d\d)?)?(?![\w:])",
        _iso,
        ": 0 -",
    ),
    (r"\b([012]?\d)h([0-5]\d)(?!\w)", lambda m: _clock(m[1], m[2], None), "0", ("h",)),
    (rf"(?<=:{_MINUTE})Z\b", " U T C", ": 0"),
    (
        rf"\b({_HOUR})(?::({_MINUTE}))?\s?({_HALF})?\s?(?:-|–|to)\s?(?={_HOUR}(?::{_MINUTE})?\s?(?:{_HALF})|noon\b|midnight\b)",
        _to,
        "0",
    ),
    (rf"\b({_HOUR})(?::({_MINUTE}))()\s?[-–]\s?(?={_HOUR}:{_MINUTE})", _to, ": 0 -–"),
    (r"\b([Nn]oon|[Mm]idnight)\s?[-—]\s?(?=\d)", lambda m: f"{m[1]} to ", "0 -—"),
    (
        r"\b(\d{1,2}):(\d{2}):(\d{2})\b(?!\s?[apAP]\.?\s?[mM])",
        lambda m: _with_seconds(*m.groups()),
        ": 0",
    ),
    (rf"\b({_HOUR}):({_MINUTE})(:{_MINUTE})?(?!\d)(?:\s*({_HALF}))?", _time, ": 0"),
    (rf"\b({_HOUR})\.({_MINUTE})()\s?({_HALF})(?!\w)", _time, "0"),
    (rf"\b(\d{{1,2}})\s?({_HALF})(?![\w])", lambda m: say(m[1]) + _half(m[2]) + _end(m, m[2]), "0"),
    (r"\b([012]\d)([0-5]\d)\s?(?:hours|hrs|h)\b", _military, "0"),
    (
        rf"\b(A M|P M|o'clock|hours|oh \w+|{_NUMBER_WORD})\s+({'|'.join(ZONES)})\b(?!\.\w)",
        lambda m: f"{m[1]} {ZONES[m[2]]}",
        "",
        ZONES,
    ),
    (
        r"\b(\d+)\s?h(?:r|rs)?\s?(\d+)\s?m(?:in|ins)?\b",
        lambda m: f"{say(m[1])} hour{'' if m[1] == '1' else 's'} {say(m[2])} minute{'' if m[2] == '1' else 's'}",
        "0",
    ),
)
