"""Titles, streets, months, days and other abbreviations, and groups of letters that are read one by one."""

from __future__ import annotations

import re

from stentor.text.abbreviations import (
    DATED,
    DAYS,
    MONTHS,
    NUMBERED,
    SHORT_DAYS,
    SHORT_MONTHS,
    STARTERS,
    STREETS,
    TITLES,
    WORDS,
)
from stentor.text.notations.rule import any_of, rules
from stentor.text.numbers import house, roman, say

_ANY_MONTH = any_of({*MONTHS, *SHORT_MONTHS})
_CLEAR_DAYS = SHORT_DAYS.keys() - {"Sun", "Sat", "Wed"}
_CONTRACTED = (
    "don't doesn't didn't isn't aren't wasn't weren't haven't hasn't hadn't couldn't wouldn't shouldn't mustn't "
    "can't won't that's what's there's here's who's where's how's ain't y'all could've should've would've "
    "might've must've you're they're we've they've you've i've you'll they'll he's she's i'm"
).split()
"""Words that people write without their apostrophe. Those that are other words without it are missing."""
BARE = {  # without a full stop too
    "vs": "versus",
    "lbs": "pounds",
    "hrs": "hours",
    "yrs": "years",
    "mins": "minutes",
    "secs": "seconds",
    "approx": "approximately",
    "aka": "A K A",
    "dept": "department",
    "govt": "government",
    "tbsp": "tablespoon",
    "tsp": "teaspoon",
    "mph": "miles per hour",
    "kph": "kilometers per hour",
    "km/h": "kilometers per hour",
    "rpm": "R P M",
    "km": "kilometers",
    "cm": "centimeters",
    "kg": "kilograms",
    "oz": "ounces",
    "ft": "feet",
    "asap": "A S A P",
    "btw": "by the way",
    "omg": "O M G",
    "idk": "I D K",
    "imo": "I M O",
    "imho": "I M H O",
    "fyi": "F Y I",
    "tv": "T V",
    "etc": "et cetera",
    "mtg": "meeting",
    "msg": "message",
    "pls": "please",
    "plz": "please",
    "thx": "thanks",
    "Thx": "Thanks",
    "ur": "your",
    **{whole.replace("'", ""): whole for whole in _CONTRACTED},
    **{whole.replace("'", "").capitalize(): whole.capitalize() for whole in _CONTRACTED},
}
_CLEAR_STREETS = STREETS.keys() - {"St", "Dr", "Ct", "Pl", "Ter"}
SPELLED = frozenset(  # letters whose lower case is another word
    "AWS US WHO SAT LED ID AI HR LA ER ET PR IRA PA EU UI UX QA VP TA AC DC DIY LAX".split()
)
_SAID = "|".join(sorted(SPELLED))
_NUMERAL = r"(?=[IVXL]{2}|[VX]\b|[ivxl]{2})([IVXLC]{1,7}|[ivxlc]{2,7})"  # "He said no. I left."
_NORTH = {
    "N": "North",
    "S": "South",
    "E": "East",
    "W": "West",
    "NE": "Northeast",
    "NW": "Northwest",
    "SE": "Southeast",
    "SW": "Southwest",
}
_STREET = any_of({*STREETS, *STREETS.values()})
_STARTS = re.compile(rf"\s+(?:{any_of(word.capitalize() for word in STARTERS)})\b")


def _initials(m: re.Match[str]) -> str:
    ends = _STARTS.match(m.string, m.end())
    return " ".join(m[1].replace(".", " ").split()) + ("." if ends else "")


def _street(m: re.Match[str]) -> str:
    number, letter, side, name, street = m.groups()
    words = [house(number), letter, _NORTH.get((side or "").strip(" ."), ""), name.strip(), STREETS.get(street, street)]
    return " ".join(word for word in words if word)


def _letters(m: re.Match[str]) -> str:
    return m[0] if m.string.isupper() and " " in m.string else " ".join(m[1]) + m[2]


def _numbered(m: re.Match[str]) -> str:
    """ "Art. 5" -> "Article 5", "no. IV" -> "number four"."""
    word = NUMBERED[m[1].lower()]
    return f"{word.capitalize() if m[1][0].isupper() else word} {say(roman(m[2].upper())) if m[2] else ''}"


def _word(m: re.Match[str]) -> str:
    ends = m[0].endswith(".") and _STARTS.match(m.string, m.end())
    return WORDS[m[1]] + ("." if ends else "")


RULES = rules(
    (r"\b((?:[A-Z]\.){2,})", _initials),
    (r"(?<![A-Z] )\b([A-Z])\.\s?(?=[A-Z](?:\.|[a-z]))(?!Sc\b)", lambda m: f"{m[1]} "),
    (
        rf"\b({any_of(SHORT_MONTHS)})\b\.?(?=\s+\d)|\b({any_of(SHORT_MONTHS)})\.(?!\w)",
        lambda m: SHORT_MONTHS[m[1] or m[2]],
        "",
        SHORT_MONTHS,
    ),
    (
        rf"\b({any_of(_CLEAR_DAYS)})\.(?=\s|,|$)|\b({any_of(SHORT_DAYS)})\b\.?"
        rf"(?=,?\s+(?:{any_of(MONTHS)}|\d)|\s?[-/]\s?[MTWFS])|(?<=[-/])({any_of(SHORT_DAYS)})\b",
        lambda m: SHORT_DAYS[m[1] or m[2] or m[3]],
        "",
        SHORT_DAYS,
    ),
    (
        rf"\b({_ANY_MONTH})\.?\s?-\s?({_ANY_MONTH})\b",
        lambda m: f"{SHORT_MONTHS.get(m[1], m[1])} to {SHORT_MONTHS.get(m[2], m[2])}",
        "-",
    ),
    (rf"(?<=day)\s?[-–]\s?(?=(?:{any_of(DAYS)})\b)", " to ", "-–"),
    (
        rf"\b(\d{{1,5}})([A-D])?\s+((?:[NS][EW]?|[EW])\.?\s+)?((?:[A-Z][a-z]+\s+){{1,3}}|\d+(?:st|nd|rd|th)\s+)({_STREET})\b\.?",
        _street,
        "0",
    ),
    (
        rf"\b((?:[A-Z][a-z]+\.?|\d+(?:st|nd|rd|th))\s+)({any_of(_CLEAR_STREETS)})\b\.?",
        lambda m: f"{m[1]}{STREETS[m[2]]}",
        "",
        STREETS,
    ),
    (
        rf"(?<=[a-z])(,? )({'|'.join(n for n in _NORTH if len(n) == 2)})(?=,| \d{{5}}|$)",
        lambda m: m[1] + _NORTH[m[2]],
        "",
        [name for name in _NORTH if len(name) == 2],
    ),
    (r"\bHwy\b\.?(?= \d)", "Highway", "0"),
    (r"\b((?:I|US|Route|Highway)[- ]\d+) ([NSEW])\b(?!['’\w])", lambda m: f"{m[1]} {_NORTH[m[2]]}", "0"),
    (r"\bApt\b(?= [#\d])", "Apartment", "#0"),
    (r"(?<=\d[snrt][tdh] )Fl\b\.?(?!\w)", "Floor", "0"),
    (r"\b(\d+(?:st|nd|rd|th)\s+)St\b\.?", lambda m: f"{m[1]}Street", "0"),
    (
        r"\b((?:[Oo]n|[Aa]t|[Aa]long|[Dd]own|[Uu]p|[Oo]ff|[Nn]ear|of|into|from) (?:[A-Z][a-z]+ ){1,2})"
        r"Dr\b\.?(?! [A-Z])",
        lambda m: f"{m[1]}Drive",
        "",
        ("dr",),
    ),
    (r"\b([A-Z][a-z]+ )Dr\.(?= [a-z]|[,;!?]|$)", lambda m: f"{m[1]}Drive", "", ("dr",)),
    (rf"\b({'|'.join(TITLES)})\.(?=\s+(?:and|or|&)\s+(?:{'|'.join(TITLES)})\.)", lambda m: TITLES[m[1]], "", TITLES),
    (rf"\b({'|'.join(TITLES)})\.(?=\s+[A-Z])", lambda m: TITLES[m[1]], "", TITLES),
    (r"\b(Dr|Mr|Mrs|Ms|Prof)(?=\s+[A-Z][a-z])", lambda m: TITLES[m[1]], "", TITLES),
    (r"\b([A-Z][a-z]+(?:'s)?\s+)(St)\b\.?", lambda m: f"{m[1]}Street", "", ("st",)),
    (r"(?<!#)#\s*(?=\d)|№\s*", "number ", "#№"),
    (
        rf"\b(?<!\d )(?<!\d)((?i:{any_of(NUMBERED)}))\.\s?(?:(?=\d)|{_NUMERAL}(?![\w'’-]))",
        _numbered,
        "",
        NUMBERED,
    ),
    (rf"\b({any_of(DATED)})\.\s?(?=1\d{{3}}\b|20\d\d\b|[3-9]\d\d\b)", lambda m: f"{DATED[m[1]]} ", "0", DATED),
    (r"(?<=\d)\s?ff\.?(?!\w)", " and following", "0", ("ff",)),
    (r"(?<=[snrt][tdh] )ed\b\.?|(?<=\brev\. )ed\.", "edition", "", ("ed",)),
    (r"\b[Ee]ds?\.(?= by\b)", "edited", "", ("ed", "eds")),
    (
        rf"\b({any_of(SHORT_DAYS)})\b\.?(?=\s?(?:and|or|to|through|&|,)\s(?:{any_of([*SHORT_DAYS, *DAYS])})\b)",
        lambda m: SHORT_DAYS[m[1]],
        "",
        SHORT_DAYS,
    ),
    (
        rf"(?:(?<=day and )|(?<=day to )|(?<=day or ))({any_of(SHORT_DAYS)})\b\.?",
        lambda m: SHORT_DAYS[m[1]],
        "",
        SHORT_DAYS,
    ),
    (r"\bvs\.(?!\w)", "versus", "", ("vs",)),
    (r"\betc\.(?=\s*$)", "et cetera.", "", ("etc",)),
    (rf"(?<!\d )(?<!\d)\b({any_of(WORDS)})\.(?!\w)", _word, "", WORDS),
    (
        rf"(?<![\w.\d/-])(?<!\d )(?<!\bsq )(?<!\bsq\. )(?<!\bfl )({any_of(BARE)})(?![\w/]|-\w)",
        lambda m: BARE[m[1]],
        "",
        BARE,
    ),
    (rf"\b({_SAID})(s?)\b(?!\.\w|\$)", _letters, "", (*SPELLED, *(f"{name}s" for name in SPELLED))),
    (
        r"\bIT(?=\s+(?:department|team|support|staff|manager|services?|industry|security|specialist|guy|desk)\b)",
        "I T",
        "",
        ("it",),
    ),
)
