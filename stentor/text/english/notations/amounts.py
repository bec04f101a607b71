"""Amounts of money, numbers with units, fractions, ratios, ordinals, ranges, and plain numbers."""

from __future__ import annotations

import re

from stentor.text.english.notations.rule import any_of, describes, rules
from stentor.text.english.numbers import (
    NUMBER,
    cardinal,
    house,
    ordinal,
    plural,
    say,
    spell,
    version,
)
from stentor.text.english.tables import TABLES

MONEY = {sign: tuple(names.split(", ")) for sign, names in TABLES["money"].items()}
"""Names of one, and of its hundredth."""
CODES = TABLES["currencies"]
SCALES = TABLES["scales"]
_SIGN = any_of(MONEY)
_ANY = "".join(sign for sign in MONEY if len(sign) == 1)
_SCALE = rf"(?:\s+(thousand|million|billion|trillion|hundred)\b|\s?({any_of(SCALES)})\b(?!['’]))"
_PERIOD = r"(?=(?:month|mo|year|yr|week|wk|day|hour|hr|h|person|night|unit|user|seat|kg|lb|gallon|token|minute)\b)"
_PERIODS = {
    "mo": "month",
    "yr": "year",
    "wk": "week",
    "hr": "hour",
    "h": "hour",
    "lb": "pound",
    "kg": "kilogram",
}
_AMOUNTS = "km|m|cm|mm|kg|g|l|L|ml|kWh|kW|million|billion"
_SPOKEN_UNITS = (
    "degrees?|percent|per cent|points?|times|million|billion|thousand|hours?|minutes?|seconds?|years?|months?|weeks?|"
    "days?|met(?:er|re)s?|kilomet(?:er|re)s?|centimet(?:er|re)s?|kilos?|kilograms?|grams?|tons?|tonnes?|lit(?:er|re)s?|miles?|"
    "euros?|dollars?|pounds?|watts?|volts?|inch(?:es)?|feet|hectares?"
)
UNITS = TABLES["units"]
_COUNTS = ("M", "m", "B", "bn", "T")
"""Scales that count other things than money."""
_HALVES = {2: "half", 4: "quarter"}
_MANY = r"(?=\s+(?:users|people|views|followers|downloads|parameters|subscribers|players|customers|copies|tokens|rows))"
_FRACTION = r"\b(\d+(?:,\d{3}){0,20}\s+)?(\d{1,3})[/⁄](\d{1,4})\b(?!/)"
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
_AFTER_IN = r"(?=\s*(?:$|[.,;:!?)]|x\b|by\b|wide|long|tall|high|deep|thick|of (?:rain|snow)|in diameter|screen|display))"


def _amount(sign: str, amount: str, scale: str | None, described: bool) -> str:
    one, cent = MONEY[sign]
    many, cents = (one, cent) if described else (plural(one, False), plural(cent, False))
    integer, _, part = amount.replace(",", "").partition(".")
    integer = integer or "0"
    if scale:
        return f"{cardinal(amount)} {scale} {many}"
    if int(integer) or not int(part or "0"):
        words = [f"{say(integer)} {one if integer == '1' else many}"]
    else:
        words = []
    if len(part) == 2 and int(part):
        words.append(f"{say(int(part))} {cent if int(part) == 1 else cents}")
    elif part and len(part) != 2:
        return f"{cardinal(amount)} {many}"
    return " and ".join(words)


def _money(m: re.Match[str]) -> str:
    return _amount(m[1], m[2], m[3] or SCALES.get(m[4] or ""), describes(m))


def _range(m: re.Match[str]) -> str:
    """ "$5-10" has its unit behind the second number only, "$5-$10" and "$5M to 10M" too."""
    return f"{cardinal(m[2])} to {m[1]}"


def _falling(m: re.Match[str]) -> str:
    """ "747-" of "747-400", which is no range."""
    if int(m[1]) > int(m[2]):
        return f"{house(m[1])} "
    return m[0]


def _european(m: re.Match[str]) -> str:
    """ "1.234,56" -> "1234.56"."""
    return m[0].replace(".", "").replace(",", ".")


def _code(m: re.Match[str]) -> str:
    code, amount = (m[1], m[2]) if m[1] else (m[4], m[3])
    integer, _, part = amount.replace(",", "").partition(".")
    if int(part or "0"):
        number = amount
    else:
        number = amount.partition(".")[0]
    return f"{cardinal(number)} {plural(CODES[code], integer == '1' and number == integer)}"


def _fraction(m: re.Match[str]) -> str:
    top = int(m[2])
    bottom = int(m[3])
    if not bottom:
        return f"{m[1] or ''}{say(top)} over {say(0)}"
    if top == bottom or (bottom in (10, 100) and top not in (1, 3, 7, 9) and not m[1]):
        return f"{say(top)} out of {say(bottom)}"
    if bottom > 100 or (top > bottom and not m[1]):
        return f"{m[1] or ''}{say(top)} over {say(bottom)}"
    name = _HALVES.get(bottom) or ordinal(m[3])
    if top == 1:
        words = name
    else:
        words = plural(name, False)
    if m[1]:
        return f"{cardinal(m[1].strip())} and {'a' if top == 1 else say(top)} {words}"
    return f"{say(top)} {words}"


def _fraction_of(m: re.Match[str]) -> str:
    """ "3/4 lb" -> "three quarters of a pound", "1 1/2 tsp" -> "one and a half teaspoons"."""
    if m[4] == '"' and _quoted(m):
        return f'{_fraction(m)}"'
    unit = UNITS.get(m[4], "inch")
    words = _fraction(m)
    if m[1] or m[2] == "1":
        return f"{words} {plural(unit, not m[1])}"
    return f"{words} of {'an' if unit[0] in 'aeio' or unit == 'hour' else 'a'} {unit}"


def _unit(m: re.Match[str]) -> str:
    return f"{cardinal(m[1])} {plural(UNITS[m[2].replace('μ', 'µ')], m[1] == '1' or describes(m))}"


def _hyphened(m: re.Match[str]) -> str:
    """ "a 5-km run" -> "a five kilometer run"."""
    return f"{cardinal(m[1])} {UNITS[m[2]]}"


def _height(m: re.Match[str]) -> str:
    return f"{say(m[1])} foot {say(m[2] or m[3])}"


def _inches(m: re.Match[str]) -> str:
    """ "24\"" -> "twenty-four inches", unless the sign ends a quotation."""
    if _quoted(m):
        return m[0]
    return f"{cardinal(m[1])} {plural('inch', m[1] == '1' or describes(m))}"


def _quoted(m: re.Match[str]) -> bool:
    """Whether a quotation begins in front of a match. A sign behind a number ends one, or is
    inches."""
    quoted = False
    for sign in re.finditer('(\\d?)"', m.string[: m.start()]):
        quoted = not quoted and not sign[1]
    return quoted


def _thousand(m: re.Match[str]) -> str:
    number = m[1]
    letter = m[2]
    if (letter == "K" and number in ("1", "2", "4", "5", "8", "10")) or _OF_K.match(
        m.string, m.end()
    ):
        return f"{say(number)} K"  # screens and races
    return f"{cardinal(number)} thousand"


_NUMBERS_A_NAME = (
    r"(?<![Pp]age )(?<![Pp]ages )(?<![Cc]hapter )(?<![Pp]art )(?<![Rr]oom )(?<![Ss]tep )(?<![Dd]ay )(?<![Ww]eek )"
    r"(?<![Ll]evel )(?<![Tt]able )(?<![Ff]igure )(?<![Ss]ection )(?<![Vv]ersion )(?<![Ii]tem )(?<![Nn]umber )"
)

GROUPED = rules(
    (
        rf"(?<![\d.,:/+-])(?<!\d )(?<!\) ){_NUMBERS_A_NAME}([1-9]\d{{0,2}}(?: \d{{3}})+)(?![\d,/:-]| \d|\.\d{{3}})",
        lambda m: m[1].replace(" ", ","),
        "0",
    ),
    (
        r"(?<![\d.,:/+-])(?<!\d )([1-9]\d{0,2}(?: \d{3})+),(\d\d?)(?![\w,])",
        lambda m: f"{m[1].replace(' ', ',')}.{m[2]}",
        "0",
    ),
    (
        r"(?<![\w.,'’])([1-9]\d{0,2}(?:['’]\d{3})+)(?![\w'’])",
        lambda m: re.sub("['’]", ",", m[1]),
        "0 '’",
    ),
)
"""Numbers with spaces or apostrophes between their thousands."""

EUROPEAN = rules(  # before a rule takes their commas and points for something else
    (r"(?<![\w.,])[1-9]\d{0,2}(?:\.\d{3})+,\d\d?(?![\w,])", _european, "0"),
    (r"(?<![\w.,])[1-9]\d{0,2}\.\d{3}\.\d{3}(?!\w|[.,]\d)", _european, "0"),
    (rf"(?:{_SIGN})\s?\d+,\d\d(?![\d,])", _european, "0 " + _ANY),
    (rf"(?<![\w.,])\d+,\d\d(?=\s?(?:[€£]|(?:{'|'.join(CODES)})\b))", _european, "0"),
    (
        rf"(?<![\w.,])(?:\d+,\d|0,\d\d)(?=(?:\s?[-–]\s?\d+,\d\d?)?\s?(?:%|°C|(?:{_AMOUNTS})\b))",
        _european,
        "0",
    ),
    (r"(?<![\w.,])0,\d{1,3}(?![\d,]|\.\d)", _european, "0"),
    (
        rf"(?<![\w.,])\d+,\d{{1,2}}(?=(?:\s?[-–]\s?\d+,\d\d?)?[\s-]?(?:{_SPOKEN_UNITS})\b)",
        _european,
        "0",
    ),
    (
        r"€\s?[1-9]\d{0,2}\.\d{3}(?![.,]?\d|\s?(?:/|per|a)\s?l)",
        _european,
        "€ 0",
    ),  # no price of a liter
)
"""Amounts with a point between thousands or a comma in front of decimals, where they can be nothing
else."""

RULES = rules(
    (rf"(?:(?<=\s)|(?<=\()|^)[-−–](?=(?:{_SIGN})\s?\d)", "minus ", "0 -–− " + _ANY),
    (rf"(?<=\d)/(?=(?:{_SIGN})\d)", " for ", "/ 0 " + _ANY),
    (rf"({_SIGN})\s?({NUMBER})\s?[-–]\s?(?:{_SIGN})?(?={NUMBER})", _range, "0 -– " + _ANY),
    (rf"({_SIGN})\s?({NUMBER})([A-Za-z]{{1,2}})\sto\s(?={NUMBER}\s?\3\b)", _range, "0 " + _ANY),
    (rf"({_SIGN})\s?({NUMBER}){_SCALE}", _money, "0 " + _ANY),
    (rf"({_SIGN})\s?({NUMBER}|\.\d+)()()", _money, "0 " + _ANY),
    (
        rf"\b(?:({'|'.join(CODES)})\s?({NUMBER})|({NUMBER})\s?({'|'.join(CODES)}))\b",
        _code,
        "0",
        CODES,
    ),
    (r"(?<![\w.,])(\d\d?)p\b(?!\.)", lambda m: f"{say(m[1])} {plural('penny', m[1] == '1')}", "0"),
    (rf"(?<!\d)({NUMBER})\s?¢", lambda m: f"{cardinal(m[1])} {plural('cent', m[1] == '1')}", "0 ¢"),
    (rf"(?<!\d)({NUMBER})\s?([£€])", lambda m: _amount(m[2], m[1], None, describes(m)), "0 £€"),
    (
        rf"(?<=[a-z])\s?/\s?{_PERIOD}(mo|yr|wk|hr|h|lb|kg)?\b",
        lambda m: f" per {_PERIODS.get(m[1] or '', '')}",
        "/",
    ),
    (r"\bper (?=[a-z])", "per ", ("per",)),
    (rf"[{_ANY}](?=[A-Za-z])", " dollar ", "$£¥₩€₹₽₿"),
    (
        rf"(?<!\d)({NUMBER})\s?({any_of(_COUNTS)})\b(?:{_MANY}|(?<=\.\d[MB])(?![a-z])|(?<=[MB])(?=\sto\s{NUMBER}[MB]\b))",
        lambda m: f"{cardinal(m[1])} {SCALES[m[2]]}",
        "0",
        _COUNTS,
    ),
    (rf"(?<![\w.])({NUMBER})\s?bn\b", lambda m: f"{cardinal(m[1])} billion", "0", ("bn",)),
    (rf"(?<![\w.])(?!\d{{4}})({NUMBER})([kK])\b(?!-)", _thousand, "0", ("k",)),
    (r"\b(\d)['′](?:\s?(\d{1,2})(?:[\"″]|'')|(1[01]|\d)(?![\w'’]))", _height, "0"),
    (r"\b(\d+)['′]\s?[x×]\s?(\d+)['′](?!\w)", lambda m: f"{say(m[1])} by {say(m[2])} feet", "0"),
    (
        r"(?<=\dft )(\d+)\s?in\b|(?<=\d ft )(\d+)\s?in\b",
        lambda m: f"{say(m[1] or m[2])} inches",
        "0",
    ),
    (rf"(?<![/⁄])\b({NUMBER})[\"″](?!\w)", _inches, '0 "″'),
    (r"\b(480|720|1080|1440|2160)([pi])\b", lambda m: f"{house(m[1])} {m[2].upper()}", "0"),
    (
        rf"\b({NUMBER})\s?x\s?(?={NUMBER}\s?=)",
        lambda m: f"{cardinal(m[1])} times ",
        "0",
        ("x",),
    ),
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
    (r"\b(?<!\d,)(\d[\d,]*+)(?:st|nd|rd|th)s?\b", lambda m: ordinal(m[1]), "0"),
    (r"\b(\d+(?:\.\d+){2,})\b", lambda m: version(m[1]), "0"),
    (
        rf"(?<!\d)({NUMBER})\s+[-−]\s+(?=[^.;]{{0,80}}=)",
        lambda m: f"{cardinal(m[1])} minus ",
        "= 0 -−",
    ),
    (r"(?:(?<=\s)|(?<=\()|^)[-−](?=\.?\d)", "minus ", "0 -−"),
    (r"(?<=to )[-−](?=\d)", "minus ", "0 -−"),
    (rf"\b({NUMBER})[-–](?={NUMBER}\s?=)", lambda m: f"{cardinal(m[1])} minus ", "= 0 -–"),
    (r"\b(\d{3,4})-(?=(\d{2,4})\b)", _falling, "0 -"),
    (rf"\b({NUMBER})\s*[-–]\s*(?=[-−]?{NUMBER})", lambda m: f"{cardinal(m[1])} to ", "0 -–"),
    (r"(?<![A-Za-z])L/(?=100\s?km\b)", "L per ", "/ 0"),
    (
        rf"(?<!\d)({NUMBER}\s?(?:{_MEASURES}))\s?/\s?(?=(?:{NUMBER}\s?(?:{_MEASURES})\b|Gas \d))",
        r"\1 or ",
        "/ 0",
    ),
    (
        rf"(?:(?<=\w)\s?/\s?|\bper )({_COUNTED})(?!\w)",
        lambda m: f" per {UNITS[m[1]]}",
        ("/", "per"),
    ),
    (
        rf"\b({NUMBER})\s?-\s?({any_of(u for u in UNITS if u.isalpha())})\b(?:\.(?=\s+[a-z]))?",
        _hyphened,
        "0 -",
    ),
    (rf"\b({NUMBER})\s?(in){_AFTER_IN}\.?(?=\s+[a-z,]|\s*[a-z,;:!?)]|$|\.)", _unit, "0", ("in",)),
    (
        rf"\b({NUMBER})({any_of(u for u in UNITS if u != 'in')}|[μ][mgs])(?![\w/])(?:\.(?=\s+[a-z]|,))?",
        _unit,
        "0",
    ),
    (
        rf"\b({NUMBER})\s({any_of(u for u in UNITS if u != 'in')}|[μ][mgs])(?![\w/'’])(?:\.(?=\s+[a-z]|,))?",
        _unit,
        "0",
    ),
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
    (rf"(?i)\b({_NUMBERED}) 0+(?=[1-9]\d?\b)", r"\1 ", "0", _NUMBERED.split("|")),
    (r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])", " ", "0 -"),
    (rf"(?<=[A-Za-z])(?={NUMBER})|(?<=\d)(?=[A-Za-z])", " ", "0"),
    (r"(?<![\d,])\.(?=\d)", " point ", "0"),
    (r"(?<=point )(\d+)", lambda m: spell(m[1]), "0"),
    (NUMBER, lambda m: spell(m[0]) if re.fullmatch(r"0\d+", m[0]) else cardinal(m[0]), "0"),
)
