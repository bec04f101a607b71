"""Signs of mathematics and code, and what remains when every other rule has run."""

from __future__ import annotations

import re

from stentor.text.english.notations.rule import any_of, rules
from stentor.text.english.tables import TABLES

SYMBOLS = TABLES["symbols"]
_OPERATORS = TABLES["operators"]
_POWERS = {"2": "squared", "3": "cubed"}
_OPERAND = r"[\w)\]|]"


def _power(m: re.Match[str]) -> str:
    exponent = m[1] or m[2]
    return f" {_POWERS.get(exponent) or f'to the power of {exponent}'} ".replace("-", "minus ")


COMPARISONS = rules(  # before a rule takes their signs for something else
    (
        r"(?<=[-+−=(] )(?!my|by)([a-ce-z])([xyz])(?=\s?[-+−=²³^)]|[.,;]?$)",
        r"\1 \2",
        "-+−=(",
    ),  # "+ bx"
    (r"(?<![\w'’])(?!my|by)([a-ce-z])([xyz])(?= [-+−=] )", r"\1 \2", "-+−="),
    # "10%-20%", "$5K–$10K": the same unit on either side
    (r"(?<=\d)([A-Za-z%°]{1,4})\s?[-—]\s?(?=[$£€]?\d[\d.,]*\1(?!\w))", r"\1 to ", "0 -—"),
    (r"(?<=\d)(\s?(?:cm|mm|m|km|in|ft))\.?\s?[x×]\s?(?=\d)", r"\1 by ", "0"),
    (
        r"(?<=\d)(\s?(?:km|m|cm|mm|ft))\^?([23])\b",
        lambda m: m[1] + ("²" if m[2] == "2" else "³"),
        "0",
    ),
    (rf"(?<={_OPERAND})\s?\^\s?(?:\((-?\w+)\)|(-?\w+))", _power, "^"),
    (
        rf"(?<=\s)({any_of(o for o in _OPERATORS if o not in ('...', '++'))})(?=\s)",
        _OPERATORS,
        "!&*+-:<=>|",
    ),
    (r"(?<=\w)([!=<>]=)(?=\w)", lambda m: f" {_OPERATORS.get(m[1], 'equals')} ", "="),
    (
        rf"(?<={_OPERAND})\s{{1,2}}<\s{{1,2}}(?=[\w(-])|(?<=[\w)])<(?=-?\d)"
        r"|(?<=\b[A-Za-z])<(?=[A-Za-z]\b(?!>|, ?[A-Z]))",
        " is less than ",
        "<",
    ),
    (r"(?<=[a-z]{2})\s>\s(?=[A-Z][a-z])", ", ", ">"),  # "Settings > Privacy"
    (
        rf"(?<={_OPERAND})\s{{1,2}}>\s{{1,2}}(?=[\w(-])|(?<=[\w)])>(?=-?\d)"
        r"|(?<=[\s(][A-Za-z])>(?=[A-Za-z]\b)",
        " is greater than ",
        ">",
    ),
    (r"(?:^|(?<=[a-z]{2} )|(?<=[!?.,] )|(?<=I ))<3(?=[!.]*$|\s+(?:you|u)\b)", "heart", "0 <"),
    (r"(?:(?<=\s)|^)<(?=\$?\d)", "less than ", "0 <"),
    (r"(?:(?<=\s)|^)>(?=\$?\d)", "more than ", "> 0"),
    (r"(?<=[\d)])\s\*\s(?=[\d(])|(?<=\d)\*(?=\d)", " times ", "*0"),
    (r"(?<=[a-z)])\s\*\s(?=[a-z(])", " times ", "*"),
    (r"(?<=\d)\s/\s(?=\d)", " divided by ", "/ 0"),
    (r"(?:(?<=\b[a-z])|(?<=\d[a-z]))\s[-−]\s(?=[a-z\d]\b)", " minus ", "-−"),
    (r"(?<=\d)\s[-−]\s(?=[a-z]\b)", " minus ", "0 -−"),
    (r"(?<=\d)!(?=\s?[-+*/=]|\s+is\b)", " factorial ", "! 0"),
    (r"√\s?(?=[\w(])", "the square root of ", "√"),
    (r"(?<=\d)±(?=\d)", " plus or minus ", "0 ±"),
)

RULES = rules(
    (r"(?<![\w])([a-zA-Z])([a-z])(?=[²³])", r"\1 \2", "²³"),  # "mc²"
    (rf"[{re.escape(''.join(SYMBOLS))}]", lambda m: f" {SYMBOLS[m[0]]} ", "".join(SYMBOLS)),
    (r"(?:(?<!\s)\s++)?[*_#^|<>\[\]{}\\]++\s*+", " ", "#*<>[\\]^_{|}"),
    (r"(?<=\w)/(?=\w)", " slash ", "/"),
    (r"(?<!\s)\s++([,.;:!?])(?=\s|$)", r"\1"),
    (r"(?<=[a-z])\((e?s)\)", r"\1", ") ("),  # "item(s)"
    # The dictionary has no pause inside of what stands without a space.
    (r"(?<=\w)(\.{3}|[,;:!?…]+)(?=[\"'“(]?[A-Za-z])", r"\1 "),
    (r"(?<=\w)(?=\([\"'“]?\w)|(?<=\w[\"”])(?=[A-Za-z])", " ", '"(”'),
)
