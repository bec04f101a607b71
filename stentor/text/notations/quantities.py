"""Numbers with units, fractions, ratios, ordinals, ranges, and plain numbers."""

from __future__ import annotations

import re

from stentor.text.notations.rule import any_of, describes, rules
from stentor.text.numbers import NUMBER, cardinal, house, ordinal, plural, say, spell, version

UNITS = {
    "nm": "nanometer",
    "µm": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
    "km": "kilometer",
    "in": "inch",
    "ft": "foot",
    "yd": "yard",
    "yds": "yard",
    "mi": "mile",
    "µg": "microgram",
    "mcg": "microgram",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram",
    "lb": "pound",
    "lbs": "pound",
    "oz": "ounce",
    "fl oz": "fluid ounce",
    "ml": "milliliter",
    "mL": "milliliter",
    "cl": "centiliter",
    "dl": "deciliter",
    "l": "liter",
    "L": "liter",
    "gal": "gallon",
    "pt": "pint",
    "qt": "quart",
    "tsp": "teaspoon",
    "tbsp": "tablespoon",
    "Tbsp": "tablespoon",
    "µs": "microsecond",
    "ns": "nanosecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "min": "minute",
    "mins": "minute",
    "hr": "hour",
    "hrs": "hour",
    "h": "hour",
    "Hz": "hertz",
    "kHz": "kilohertz",
    "MHz": "megahertz",
    "GHz": "gigahertz",
    "KB": "kilobyte",
    "kB": "kilobyte",
    "MB": "megabyte",
    "GB": "gigabyte",
    "TB": "terabyte",
    "PB": "petabyte",
    "KiB": "kibibyte",
    "MiB": "mebibyte",
    "GiB": "gibibyte",
    "TiB": "tebibyte",
    "kbps": "kilobit per second",
    "Kbps": "kilobit per second",
    "Mbps": "megabit per second",
    "Gbps": "gigabit per second",
    "MB/s": "megabyte per second",
    "GB/s": "gigabyte per second",
    "mW": "milliwatt",
    "W": "watt",
    "kW": "kilowatt",
    "MW": "megawatt",
    "GW": "gigawatt",
    "Wh": "watt hour",
    "kWh": "kilowatt hour",
    "mAh": "milliamp hour",
    "V": "volt",
    "mV": "millivolt",
    "kV": "kilovolt",
    "mA": "milliamp",
    "Ω": "ohm",
    "ohm": "ohm",
    "J": "joule",
    "kJ": "kilojoule",
    "cal": "calorie",
    "kcal": "kilocalorie",
    "Pa": "pascal",
    "kPa": "kilopascal",
    "hPa": "hectopascal",
    "psi": "psi",
    "dB": "decibel",
    "ha": "hectare",
    "mpg": "mile per gallon",
    "hp": "horsepower",
    "mph": "mile per hour",
    "km/h": "kilometer per hour",
    "kph": "kilometer per hour",
    "kmh": "kilometer per hour",
    "m/s": "meter per second",
    "ft/s": "foot per second",
    "fps": "frame per second",
    "m/s²": "meter per second squared",
    "rpm": "revolution per minute",
    "bpm": "beat per minute",
    "ppm": "part per million",
    "mg/L": "milligram per liter",
    "g/L": "gram per liter",
    "mg/dL": "milligram per deciliter",
    "m²": "square meter",
    "km²": "square kilometer",
    "cm²": "square centimeter",
    "mm²": "square millimeter",
    "ft²": "square foot",
    "m³": "cubic meter",
    "km³": "cubic kilometer",
    "cm³": "cubic centimeter",
    "mm³": "cubic millimeter",
    "ft³": "cubic foot",
    "sq ft": "square foot",
    "sq. ft": "square foot",
    "sqft": "square foot",
    "sq m": "square meter",
    "sq mi": "square mile",
    "cu ft": "cubic foot",
    "°C": "degree Celsius",
    "°F": "degree Fahrenheit",
    "ºC": "degree Celsius",
    "ºF": "degree Fahrenheit",
    "°": "degree",
    "%": "percent",
    "‰": "per mille",
    "yrs": "year",
    "yr": "year",
    "wk": "week",
    "wks": "week",
    "mo": "month",
    "mos": "month",
    "kVA": "kilovolt amp",
    "px": "pixel",
    "pts": "point",
    "dpi": "dot per inch",
    "°K": "degree Kelvin",
    "deg": "degree",
}
SCALES = {"M": "million", "m": "million", "B": "billion", "bn": "billion", "T": "trillion"}
_HALVES = {2: "half", 4: "quarter"}
_MANY = r"(?=\s+(?:users|people|views|followers|downloads|parameters|subscribers|players|customers|copies|tokens|rows))"
_FRACTION = r"\b(\d+(?:,\d{3})*\s+)?(\d{1,3})[/⁄](\d{1,4})\b(?!/)"
_SHARED = "tsp|tbsp|Tbsp|fl oz|oz|lbs|lb|kg|km|mi|hr|gal|pt|qt|ml|cm|mm|ft|yd"
"""Units of which there are fractions, and that are no words."""
_SIGNED = any_of(u for u in UNITS if re.search(r"\w/\w|[°º]\w|²|³", u))
"""Units that are nothing else, also without a number."""
_COUNTED = any_of(u for u in UNITS if re.search("[²³]$|^(?:sq|cu|kWh|[GMT]B$)", u) and "/" not in u)
"""Units behind a slash or "per"."""
_MEASURES = "°C|°F|kg|g|lb|oz|ml|l|cm|mm|m|ft|km|mi"
_OF_K = re.compile(r"\s(?:runs?|races?|walk|screens?|videos?|TVs?|monitors?|resolution)\b")
_NUMBERED = (
    "chapter|part|section|episode|lesson|unit|module|step|volume|book|page|week|day|track|number|season|level|exercise|"
    "question|scene|act"
)
_AFTER_IN = (
    r"(?=\s*(?:$|[.,;:!?)]|x\b|by\b|wide|long|tall|high|deep|thick|of (?:rain|snow)|in diameter|screen|display))"
)


def _fraction(m: re.Match[str]) -> str:
    top, bottom = int(m[2]), int(m[3])
    if not bottom:
        return f"{m[1] or ''}{say(top)} over {say(0)}"
    if top == bottom or (bottom in (10, 100) and top not in (1, 3, 7, 9) and not m[1]):
        return f"{say(top)} out of {say(bottom)}"
    if bottom > 100 or (top > bottom and not m[1]):
        return f"{m[1] or ''}{say(top)} over {say(bottom)}"
    name = _HALVES.get(bottom) or ordinal(m[3])
    words = name if top == 1 else plural(name, False)
    if m[1]:
        return f"{cardinal(m[1].strip())} and {'a' if top == 1 else say(top)} {words}"
    return f"{say(top)} {words}"


def _fraction_of(m: re.Match[str]) -> str:
    """ "3/4 lb" -> "three quarters of a pound", "1 1/2 tsp" -> "one and a half teaspoons"."""
    if m[4] == '"' and _quoted(m):
        return f'{_fraction(m)}"'
    unit, words = UNITS.get(m[4], "inch"), _fraction(m)
    if m[1] or m[2] == "1":
        return f"{words} {plural(unit, not m[1])}"
    return f"{words} of {'an' if unit[0] in 'aeio' or unit == 'hour' else 'a'} {unit}"


def _unit(m: re.Match[str]) -> str:
    return f"{cardinal(m[1])} {plural(UNITS[_micro(m[2])], m[1] == '1' or describes(m))}"


def _hyphened(m: re.Match[str]) -> str:
    """ "a 5-km run" -> "a five kilometer run"."""
    return f"{cardinal(m[1])} {UNITS[m[2]]}"


def _micro(unit: str) -> str:
    return unit.replace("μ", "µ")


def _height(m: re.Match[str]) -> str:
    return f"{say(m[1])} foot {say(m[2] or m[3])}"


def _inches(m: re.Match[str]) -> str:
    """ "24\"" -> "twenty-four inches", unless the sign ends a quotation."""
    return m[0] if _quoted(m) else f"{cardinal(m[1])} {plural('inch', m[1] == '1' or describes(m))}"


def _quoted(m: re.Match[str]) -> bool:
    """Whether a quotation begins in front of a match. A sign behind a number ends one, or is inches."""
    quoted = False
    for sign in re.finditer('(\\d?)"', m.string[: m.start()]):
        quoted = not quoted and not sign[1]
    return quoted


def _thousand(m: re.Match[str]) -> str:
    number, letter = m[1], m[2]
    if (letter == "K" and number in ("1", "2", "4", "5", "8", "10")) or _OF_K.match(m.string, m.end()):
        return f"{say(number)} K"  # screens and races
    return f"{cardinal(number)} thousand"


def _to(m: re.Match[str]) -> str:
    return f"{cardinal(m[1])} to "


RULES = rules(
    (
        rf"({NUMBER})\s?({any_of(SCALES)})\b(?:{_MANY}|(?<=\.\d[MB])(?![a-z])|(?<=[MB])(?=\sto\s{NUMBER}[MB]\b))",
        lambda m: f"{cardinal(m[1])} {SCALES[m[2]]}",
        "0",
        SCALES,
    ),
    (rf"(?<![\w.])({NUMBER})\s?bn\b", lambda m: f"{cardinal(m[1])} billion", "0", ("bn",)),
    (rf"(?<![\w.])(?!\d{{4}})({NUMBER})([kK])\b(?!-)", _thousand, "0", ("k",)),
    (r"\b(\d)['′](?:\s?(\d{1,2})(?:[\"″]|'')|(1[01]|\d)(?![\w'’]))", _height, "0"),
    (r"\b(\d+)['′]\s?[x×]\s?(\d+)['′](?!\w)", lambda m: f"{say(m[1])} by {say(m[2])} feet", "0"),
    (r"(?<=\dft )(\d+)\s?in\b|(?<=\d ft )(\d+)\s?in\b", lambda m: f"{say(m[1] or m[2])} inches", "0"),
    (rf"(?<![/⁄])\b({NUMBER})[\"″](?!\w)", _inches, '0 "″'),
    (r"\b(480|720|1080|1440|2160)([pi])\b", lambda m: f"{house(m[1])} {m[2].upper()}", "0"),
    (rf"\b({NUMBER})\s?x\s?(?={NUMBER})", lambda m: f"{cardinal(m[1])} by ", "0", ("x",)),
    (
        rf"\b(?:({NUMBER})\s?[-–]\s?)?({NUMBER})x\b(?=\s(?:faster|slower|more|less|fewer|better|worse|bigger|larger|smaller|higher|lower|"
        r"cheaper|longer|as|the|daily|weekly|a day|a week|speed|growth|return|zoom)\b)",
        lambda m: (f"{cardinal(m[1])} to " if m[1] else "") + f"{cardinal(m[2])} times",
        "0",
        ("x",),
    ),
    (r"\b(\d{1,2}):(\d{1,3})\b", lambda m: f"{say(m[1])} to {say(m[2])}", ": 0"),
    (rf"{_FRACTION}\s?((?:{_SHARED})\b|[\"″])(?![/\w])(?:\.(?=\s+[a-z,]))?", _fraction_of, "0 /⁄"),
    (_FRACTION, _fraction, "0 /⁄"),
    (r"\b(\d[\d,]*)(?:st|nd|rd|th)s?\b", lambda m: ordinal(m[1]), "0"),
    (r"\b(\d+(?:\.\d+){2,})\b", lambda m: version(m[1]), "0"),
    (rf"({NUMBER})\s+[-−]\s+(?=[^.;]*=)", lambda m: f"{cardinal(m[1])} minus ", "= 0 -−"),
    (r"(?:(?<=\s)|(?<=\()|^)[-−](?=\.?\d)", "minus ", "0 -−"),
    (r"(?<=to )[-−](?=\d)", "minus ", "0 -−"),
    (rf"\b({NUMBER})\s*[-–]\s*(?=[-−]?{NUMBER})", _to, "0 -–"),
    (r"(?<![A-Za-z])L/(?=100\s?km\b)", "L per ", "/ 0"),
    (
        rf"({NUMBER}\s?(?:{_MEASURES}))\s?/\s?(?=(?:{NUMBER}\s?(?:{_MEASURES})\b|Gas \d))",
        lambda m: f"{m[1]} or ",
        "/ 0",
    ),
    (rf"(?:(?<=\w)\s?/\s?|\bper )({_COUNTED})(?!\w)", lambda m: f" per {UNITS[m[1]]}", "", ("/", "per")),
    (rf"\b({NUMBER})\s?-\s?({any_of(u for u in UNITS if u.isalpha())})\b(?:\.(?=\s+[a-z]))?", _hyphened, "0 -"),
    (rf"\b({NUMBER})\s?(in){_AFTER_IN}\.?(?=\s+[a-z,]|\s*[a-z,;:!?)]|$|\.)", _unit, "0", ("in",)),
    (rf"\b({NUMBER})({any_of(u for u in UNITS if u != 'in')}|[μ][mgs])(?![\w/])(?:\.(?=\s+[a-z]|,))?", _unit, "0"),
    (rf"\b({NUMBER})\s({any_of(u for u in UNITS if u != 'in')}|[μ][mgs])(?![\w/'’])(?:\.(?=\s+[a-z]|,))?", _unit, "0"),
    (rf"(?<![\w/.])({_SIGNED})(?![\w/])", lambda m: plural(UNITS[m[1]], False), "/°²³º"),
    (
        r"(?<![Ss]eat )(?<![Rr]ow )\b(\d+)([FC])\b(?=\s*(?:$|[.,;!?]|today|tonight|outside|inside|and|or|to|in|at|"
        "degrees))",
        lambda m: f"{say(m[1])} degrees {'Fahrenheit' if m[2] == 'F' else 'Celsius'}",
        "0",
        ("f", "c"),
    ),
)

PLAIN = rules(
    (rf"(?i)\b({_NUMBERED}) 0+(?=[1-9]\d?\b)", lambda m: f"{m[1]} ", "0", _NUMBERED.split("|")),
    (r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])", " ", "0 -"),
    (rf"(?<=[A-Za-z])(?={NUMBER})|(?<=\d)(?=[A-Za-z])", " ", "0"),
    (r"(?<![\d,])\.(?=\d)", " point ", "0"),
    (r"(?<=point )(\d+)", lambda m: spell(m[1]), "0"),
    (NUMBER, lambda m: spell(m[0]) if re.fullmatch(r"0\d+", m[0]) else cardinal(m[0]), "0"),
)
