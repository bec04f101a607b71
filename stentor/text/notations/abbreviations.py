"""Titles, streets, months, days and other abbreviations, and groups of letters that are read one by one."""

from __future__ import annotations

import re

from stentor.text.notations.rule import any_of, rules
from stentor.text.numbers import house

MONTHS = ("January February March April May June July August September October November December").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SHORT_MONTHS = {name[:3]: name for name in MONTHS if name != "May"} | {"Sept": "September"}
SHORT_DAYS = {d[:3]: d for d in DAYS} | {"Tues": "Tuesday", "Thur": "Thursday", "Thurs": "Thursday"}
_ANY_MONTH = any_of({*MONTHS, *SHORT_MONTHS})
_CLEAR_DAYS = SHORT_DAYS.keys() - {"Sun", "Sat", "Wed"}
TITLES = {
    "Dr": "Doctor",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Prof": "Professor",
    "Sen": "Senator",
    "Rep": "Representative",
    "Gov": "Governor",
    "Gen": "General",
    "Col": "Colonel",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Pres": "President",
    "St": "Saint",
    "Mt": "Mount",
    "Ft": "Fort",
    "Cpl": "Corporal",
    "Maj": "Major",
    "Cmdr": "Commander",
    "Adm": "Admiral",
    "Supt": "Superintendent",
    "Fr": "Father",
}
WORDS = {
    "vs": "versus",
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
    "approx": "approximately",
    "dept": "department",
    "Dept": "Department",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Co": "Company",
    "Corp": "Corporation",
    "Jr": "Junior",
    "Sr": "Senior",
    "Bros": "Brothers",
    "est": "estimated",
    "Est": "Established",
    "vol": "volume",
    "Vol": "Volume",
    "fig": "figure",
    "Fig": "Figure",
    "figs": "figures",
    "Figs": "Figures",
    "pp": "pages",
    "p.s": "P S",
    "P.S": "P S",
    "a.k.a": "A K A",
    "Ph.D": "P H D",
    "M.Sc": "M S C",
    "B.Sc": "B S C",
    "Assn": "Association",
    "Intl": "International",
    "Univ": "University",
    "Govt": "Government",
    "govt": "government",
    "misc": "miscellaneous",
    "Misc": "Miscellaneous",
    "max": "maximum",
    "Max": "Maximum",
    "temp": "temperature",
    "cf": "compare",
    "ca": "circa",
    "eds": "editors",
    "al": "al",
    "viz": "namely",
    "ext": "extension",
    "Ext": "Extension",
    "tel": "telephone",
    "Tel": "Telephone",
    "Sec": "Section",
    "Ch": "Chapter",
    "ch": "chapter",
    "Apt": "Apartment",
    "Rm": "Room",
    "Bldg": "Building",
    "Ste": "Suite",
    "chap": "chapter",
    "Eq": "Equation",
    "eq": "equation",
    "min": "minimum",
    "avg": "average",
    "Avg": "Average",
    "incl": "including",
    "excl": "excluding",
    "yrs": "years",
    "wk": "week",
    "wks": "weeks",
    "mos": "months",
    "doz": "dozen",
    "Esq": "Esquire",
}
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
}
STREETS = {
    "St": "Street",
    "Ave": "Avenue",
    "Rd": "Road",
    "Blvd": "Boulevard",
    "Ln": "Lane",
    "Hwy": "Highway",
    "Sq": "Square",
    "Pkwy": "Parkway",
    "Ct": "Court",
    "Pl": "Place",
    "Ter": "Terrace",
    "Dr": "Drive",
}
_CLEAR_STREETS = STREETS.keys() - {"St", "Dr", "Ct", "Pl", "Ter"}
SPELLED = frozenset(  # letters whose lower case is another word
    "AWS US WHO SAT LED ID AI HR LA ER ET PR IRA PA EU UI UX QA VP TA AC DC DIY LAX".split()
)
_SAID = "|".join(sorted(SPELLED))
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
_STARTERS = "The|He|She|It|They|We|You|This|That|These|In|On|At|But|And|So|If|When|What|There|His|Her|Its|My|Our|A|No"


def _initials(m: re.Match[str]) -> str:
    ends = re.match(rf"\s+(?:{_STARTERS})\b", m.string[m.end() : m.end() + 9])
    return " ".join(m[1].replace(".", " ").split()) + ("." if ends else "")


def _street(m: re.Match[str]) -> str:
    number, letter, side, name, street = m.groups()
    words = [house(number), letter, _NORTH.get((side or "").strip(" ."), ""), name.strip(), STREETS.get(street, street)]
    return " ".join(word for word in words if word)


def _letters(m: re.Match[str]) -> str:
    return m[0] if m.string.isupper() and " " in m.string else " ".join(m[1]) + m[2]


def _word(m: re.Match[str]) -> str:
    ends = m[0].endswith(".") and re.match(rf"\s+(?:{_STARTERS})\b", m.string[m.end() : m.end() + 9])
    return WORDS[m[1]] + ("." if ends else "")


RULES = rules(
    (r"\b((?:[A-Z]\.){2,})", _initials),
    (r"(?<![A-Z] )\b([A-Z])\.\s?(?=[A-Z](?:\.|[a-z]))(?!Sc\b)", lambda m: f"{m[1]} "),
    (
        rf"\b({any_of(SHORT_MONTHS)})\b\.?(?=\s+\d)|\b({any_of(SHORT_MONTHS)})\.(?!\w)",
        lambda m: SHORT_MONTHS[m[1] or m[2]],
    ),
    (
        rf"\b({any_of(_CLEAR_DAYS)})\.(?=\s|,|$)|\b({any_of(SHORT_DAYS)})\b\.?"
        rf"(?=,?\s+(?:{any_of(MONTHS)}|\d)|\s?[-/]\s?[MTWFS])|(?<=[-/])({any_of(SHORT_DAYS)})\b",
        lambda m: SHORT_DAYS[m[1] or m[2] or m[3]],
    ),
    (
        rf"\b({_ANY_MONTH})\.?\s?-\s?({_ANY_MONTH})\b",
        lambda m: f"{SHORT_MONTHS.get(m[1], m[1])} to {SHORT_MONTHS.get(m[2], m[2])}",
    ),
    (rf"(?<=day)\s?[-–]\s?(?=(?:{any_of(DAYS)})\b)", " to "),
    (
        rf"\b(\d{{1,5}})([A-D])?\s+((?:[NS][EW]?|[EW])\.?\s+)?((?:[A-Z][a-z]+\s+){{1,3}}|\d+(?:st|nd|rd|th)\s+)({_STREET})\b\.?",
        _street,
    ),
    (
        rf"\b((?:[A-Z][a-z]+\.?|\d+(?:st|nd|rd|th))\s+)({any_of(_CLEAR_STREETS)})\b\.?",
        lambda m: f"{m[1]}{STREETS[m[2]]}",
    ),
    (
        rf"(?<=[a-z])(,? )({'|'.join(n for n in _NORTH if len(n) == 2)})(?=,| \d{{5}}|$)",
        lambda m: m[1] + _NORTH[m[2]],
    ),
    (r"\bHwy\b\.?(?= \d)", "Highway"),
    (r"\b((?:I|US|Route|Highway)[- ]\d+) ([NSEW])\b(?!['’\w])", lambda m: f"{m[1]} {_NORTH[m[2]]}"),
    (r"\bApt\b(?= [#\d])", "Apartment"),
    (r"(?<=\d[snrt][tdh] )Fl\b\.?(?!\w)", "Floor"),
    (r"\b(\d+(?:st|nd|rd|th)\s+)St\b\.?", lambda m: f"{m[1]}Street"),
    (rf"\b({'|'.join(TITLES)})\.(?=\s+[A-Z])", lambda m: TITLES[m[1]]),
    (r"\b(Dr|Mr|Mrs|Ms|Prof)(?=\s+[A-Z][a-z])", lambda m: TITLES[m[1]]),
    (r"\b([A-Z][a-z]+(?:'s)?\s+)(St)\b\.?", lambda m: f"{m[1]}Street"),
    (r"\bNos?\.\s*(?=\d)|(?<=[,(] )no\.\s*(?=\d)|(?<!#)#\s*(?=\d)|№\s*", "number "),
    (r"\bp\.\s?(?=\d)", "page "),
    (r"\bvs\.(?!\w)", "versus"),
    (r"\betc\.(?=\s*$)", "et cetera."),
    (rf"(?<!\d )(?<!\d)\b({any_of(WORDS)})\.(?!\w)", _word),
    (rf"(?<![\w.\d/-])(?<!\d )(?<!\bsq )(?<!\bsq\. )(?<!\bfl )({any_of(BARE)})(?![\w/]|-\w)", lambda m: BARE[m[1]]),
    (rf"\b({_SAID})(s?)\b(?!\.\w|\$)", _letters),
    (r"\bIT(?=\s+(?:department|team|support|staff|manager|services?|industry|security|specialist|guy|desk)\b)", "I T"),
)
