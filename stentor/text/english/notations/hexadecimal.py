"""Hashes, keys and hardware addresses, letter by letter in groups, and numbers in scientific
notation."""

from __future__ import annotations

import re

from stentor.text.english.notations.rule import rules
from stentor.text.english.numbers import letters

GROUP = 4
"""Characters between two pauses."""
_HEX = r"[\da-fA-F]"
_ROW = re.compile(r"\b[A-Z](?: [A-Z]){3,}\b")
_MIXED = rf"(?={_HEX}*\d)(?={_HEX}*[a-fA-F])"
HASH = rf"{_MIXED}{_HEX}{{7,}}"
"""Pattern of a run of hexadecimal digits that is no word and no number."""
KEY = r"(?=[A-Za-z\d]*\d[A-Za-z]+\d)(?=[A-Za-z\d]*[A-Za-z]\d+[A-Za-z])[A-Za-z\d]{14,}"
"""Pattern of a run of letters and digits that is no word."""

_CAPITALS = r"(?=[A-Z]{1,40}\d)[A-Z\d]{16,}"


def spell_groups(code: str) -> str:
    """ "9fceb02d" -> "nine F, C, E, B zero two D". More than 8 characters have a pause behind
    four."""
    if len(code) <= 2 * GROUP:
        return _spell(code)
    return ", ".join(_spell(code[at : at + GROUP]) for at in range(0, len(code), GROUP))


def _spell(code: str) -> str:
    return _ROW.sub(lambda m: m[0].replace(" ", ", "), letters(code))


def _spell_parts(m: re.Match[str]) -> str:
    """ "00:1A:2B" -> "zero zero, one A, two B"."""
    return ", ".join(_spell(part) for part in re.split(r"[:.-]", m[0]))


def _internet_address(m: re.Match[str]) -> str:
    """ "fe80::1" -> "F E eight zero, colon colon, one"."""
    parts = re.findall(r"::|[^:]+", m[0])
    return ", ".join("colon colon" if part == "::" else _spell(part) for part in parts)


def _power(m: re.Match[str]) -> str:
    """ "1.5E-9" -> "1.5 times 10 to the power of minus 9"."""
    if m[2] in ("-", "−"):
        sign = "minus "
    else:
        sign = ""
    return f"{m[1]} times 10 to the power of {sign}{int(m[3])}"


COLORS = rules(
    (
        rf"(?<!\S)#({_MIXED}{_HEX}{{6}}|{_MIXED}{_HEX}{{8}})(?!\w)",
        lambda m: f"hash {spell_groups(m[1])}",
        "#",
    ),
)
"""Before a rule takes their sign for that of a hashtag."""

RULES = rules(
    (r"(?<![\w.-])0[xX]([\da-fA-F]+)(?!\w)", lambda m: f"zero X {spell_groups(m[1])}", "0"),
    (r"(?<![\w.-])0[bB]([01]+)(?!\w)", lambda m: f"zero B {spell_groups(m[1])}", "0"),
    (rf"(?<![\w-]){_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?![\w-])", _spell_parts, "- 0"),
    (
        rf"(?<![\w:-])(?=\S*[a-fA-F:]){_HEX}{{2}}([:-])(?:{_HEX}{{2}}\1){{4,6}}{_HEX}{{2}}(?![\w:-])",
        _spell_parts,
        ":-",
    ),
    (rf"(?<![\w:])(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}(?![\w:])", _internet_address, ":"),
    (
        rf"(?<![\w:])(?=\S*\d)(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,5}})?::(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,5}})?(?![\w:])",
        _internet_address,
        ": 0",
    ),
    (
        r"(?<![\w-])(?=[\dA-Z-]*\d)(?=[\dA-Z-]*[A-Z])[A-Z\d]{4,6}(?:-[A-Z\d]{4,6}){2,}(?![\w-])",
        _spell_parts,
        "- 0",
    ),
    (r"(?<![\w.,@/-])(\d+\.\d+|\d{1,2})[eE]([-−+]?)(\d{1,3})(?![\w@/-])", _power, "0"),
    (r"(?<![\w.,@/-])(\d{3,})[eE]([-−+])(\d{1,3})(?![\w@/-])", _power, "0"),
    (
        rf"(?<![\w-])((?:[a-z]{{2,5}}[-_]){{1,3}})({HASH}|{KEY})(?![\w-])",
        lambda m: re.sub("[-_]", " ", m[1]) + spell_groups(m[2]),
        "0 -_",
    ),
    (rf"(?<![\w-])(?:{HASH}|{KEY}|{_CAPITALS})(?![\w-])", lambda m: spell_groups(m[0]), "0"),
)
