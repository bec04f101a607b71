"""Telephone numbers, and numbers that name something and are read digit by digit."""

from __future__ import annotations

import re

from stentor.text.notations.rule import any_of, rules
from stentor.text.numbers import groups, house, letters, say, spell

_ROOMS = (
    "Flight flight Bus bus Route route Room room Area Apartment Suite suite Unit Highway Interstate Gate gate".split()
)
_NAMED = (
    "order|confirmation|tracking|account|acct|invoice|ticket|case|reference|ref|serial|code|zip|zip code|postcode|"
    "passcode|password|pin|PIN|id|ID|I D|card|policy|reservation|booking|part number|item number|model number|digits|"
    "phone|fax|extension|ext|area code|routing|member|employee|student|license|badge|room number|badge number|otp"
)
_BETWEEN = r"(?:\s+(?:number|code|no|num|id|ID|is|was|ending in|of|are)\b)*\.?\s*[:#]?\s*(?:number\s+)?"
_COUNTED = r"(?!,\d)(?!\s+(?:more\s+|new\s+)?[a-z]+s\b)(?!\.\d)"
_WORDS = "AN|AS|AT|AX|BE|BY|CO|DO|GO|HE|HI|IF|IS|IT|MA|ME|MY|NO|OF|OH|ON|OR|OX|PA|SO|TO|UP|US|WE"
"""Letters of a code that would be read as a word."""
_SERVICES = {"411", "911", "999", "112", "311", "511", "611", "711", "811", "988"}


def _toll_free(digits: str) -> str:
    """ "800" -> "eight hundred"."""
    return f"{say(digits[0])} hundred" if digits.endswith("00") else spell(digits)


def _phone(m: re.Match[str]) -> str:
    country = f"{spell(m[1])}, " if m[1] and m[1] != "1" else f"{say(1)} " if m[1] else ""
    area = _toll_free(m[2]) if m[1] == "1" else spell(m[2])
    return f"{country}{area}, {spell(m[3])}, {spell(m[4])}"


def _vanity(m: re.Match[str]) -> str:
    return f"{say(1) + ' ' if m[1] else ''}{_toll_free(m[2])} " + m[3].replace("-", " ").lower()


def _international(m: re.Match[str]) -> str:
    return f"plus {groups(m[1])}"


def _code(m: re.Match[str]) -> str:
    between = re.sub(r"[:#]", " ", m[2]).replace(".", " ")
    between = re.sub(r"\b(?:no|num)\b", "number", between)
    word = {"ext": "extension", "acct": "account", "ref": "reference"}.get(m[1].lower(), m[1])
    return f"{word}{between.rstrip() or ''} " + _digits(m[3])


def _room(m: re.Match[str]) -> str:
    place = m[1].replace("Apt.", "Apartment")
    return f"{place} {house(m[2]) if place.lower() in ('room', 'suite') else spell(m[2])}"


def _digits(written: str) -> str:
    parts = re.findall(r"\d+|[A-Z]+", written)
    return ", ".join(spell(p) if p[0].isdecimal() else letters(p) for p in parts)


def _postcode(m: re.Match[str]) -> str:
    return f"{letters(m[1])}, {letters(m[2])}"


def _spelled(m: re.Match[str]) -> str:
    """ "S-W-I-F-T" -> "S, W, I, F, T": a name that is spelled has a pause behind each letter, an acronym has none."""
    return ", ".join(re.findall("[A-Z]", m[0]))


SPELLED = rules((r"(?<![\w.'-])[A-Z](?:[ -]{1,2}[A-Z]){3,}(?![\w'-]|\.\w)", _spelled))
"""Before all other rules, which write acronyms as letters apart."""

RULES = rules(
    (r"(?<![\w-])(?:\+?(1)[-. ]\s?)?\(?(\d{3})\)?[-. ]\s?(\d{3})[-. ](\d{4})\b(?!-\d)", _phone, "0"),
    (r"(?<![\w-])(?:\+?(1)[-. ])?(8\d\d|900)-((?:[A-Z]{2,}-?)+)\b", _vanity, "0 -"),
    (r"\+(\d{1,3}(?:[-. ]?\(?\d{1,5}\)?){2,6})\b", _international, "+ 0"),
    (r"(?<![\d-])(\d{3}-\d{4})\b(?!-\d)", lambda m: groups(m[1]), "0 -"),
    (r"(?<![\d-])(\d{3}-\d{2}-\d{4})\b", lambda m: groups(m[1]), "0 -"),
    (r"(?<![\w.-])(\d(?:-\d){2,})(?![\w-]|\.\d)", lambda m: letters(m[1]), "0 -"),
    (
        r"(?<![\w.-])(\d{2,4}(?:-\d{2,4}){2,}|0\d{1,3}-\d{2,4}|\d{2,4}-0\d{1,3})(?![\w-]|\.\d)",
        lambda m: groups(m[1]),
        "0",
    ),
    (r"(?<![\d.,-])(?<!\d )(555 \d{4}|\d{3} 0\d{3})(?![\d,-]| \d|\.\d)", lambda m: groups(m[1]), "0"),
    (r"(?<![\w.,-])(0\d{2,4}(?: \d{3,6}){1,3})(?![\w,-]| \d|\.\d)", lambda m: groups(m[1]), "0"),
    (r"(?<![\d-])(\d{4}(?:[ -]\d{4}){2,3})\b", lambda m: groups(m[1]), "0"),
    (r"\bISBN(?:-1[03])?:?\s*([\d-]{9,16}\d|[\d-]{9,16}X)\b", lambda m: f"I S B N {_digits(m[1])}", "0", ("ISBN",)),
    (r"\b(\d{5})-(\d{4})\b", lambda m: f"{spell(m[1])}, {spell(m[2])}", "0 -"),
    (r"\b([A-Z] ?[A-Z])\s+(\d{5})\b", lambda m: f"{m[1]} {spell(m[2])}", "0"),
    (
        rf"(?i)\b({_NAMED})({_BETWEEN})(?<=[\s:#.])((?:[A-Z]{{1,4}}-?)?\d{{3,}}(?:-\d+)*)\b{_COUNTED}",
        _code,
        "0",
        _NAMED.split("|"),
    ),
    (
        r"\b(?:(?i:ext|extension)\.?\s?|(?<!\d )(?<!['′])x(?=\d\d)(?!86\b|64\b))(\d{1,6})\b(?!\d|\s?[x×])",
        lambda m: f"extension {spell(m[1])}",
        "0",
    ),
    (r"\b([Ff]light [A-Z]{2})\s?(\d{3,4})\b", lambda m: f"{m[1]} {spell(m[2])}", "0"),
    (r"\b(Box)\s+(\d{3,4})\b", lambda m: f"{m[1]} {house(m[2])}", "0"),
    (rf"\b({any_of(_ROOMS)}|Apt\.)\s+(\d{{3,4}})\b(?!,\d)(?!\s+[a-z]+s\b)", _room, "0"),
    (r"\bnumber\s+(\d{5,})\b(?!,\d)", lambda m: f"number {spell(m[1])}", "0"),
    (
        rf"(?i)\b(call|dial|called|dialed|text|ring)\s+({'|'.join(sorted(_SERVICES))})\b(?!\s+[a-z]+s\b)",
        lambda m: f"{m[1]} {spell(m[2])}",
        "0",
    ),
    (r"\bBoeing (\d{3})(?:-(\d{1,3}))?\b", lambda m: f"Boeing {house(m[1])} {house(m[2]) if m[2] else ''}", "0"),
    (r"\b(911|007)\b(?!,\d)", lambda m: spell(m[1]), "0"),
    (r"(?i)\b(dial|dialed|dialing)\s+(\d{2,3})\b(?!,\d)", lambda m: f"{m[1]} {spell(m[2])}", "0"),
    (r"\b([A-Z]{1,2}\d[A-Z\d]?) (\d[A-Z]{2})\b", _postcode, "0"),
    (r"(?<![\w-])([A-Z]{1,3}\d{1,3}[A-Z]{2,3})(?![\w-])", lambda m: letters(m[1]), "0"),
    (r"(?<![\w-])([A-Z]{2,4}-\d{4,})(?![\w-]|\.\d)", lambda m: _digits(m[1]), "- 0"),
    (rf"\b({_WORDS})-?(?=\d)", lambda m: f"{letters(m[1])} ", "0"),
    (rf"(?<=\d)-?({_WORDS})\b(?=$|[^\w]*$|[.,!?]|-?\d)", lambda m: f" {letters(m[1])}", "0"),
    (
        r"(?<![\d.,])([2-9]\d{2})([2-9]\d{2})(\d{4})(?![\d,]|\.\d)",
        lambda m: ", ".join(spell(g) for g in m.groups()),
        "0",
    ),
    (r"\b(?=\w*\d[A-Z]+\d|\w*[A-Z]\d+[A-Z]+\d)([A-Z\d]{6,})\b", lambda m: letters(m[1]), "0"),
)
