"""Amounts of money."""

from __future__ import annotations

import re

from stentor.text.notations.rule import any_of, describes, rules
from stentor.text.numbers import NUMBER, cardinal, plural, say

MONEY = {
    "$": ("dollar", "cent"),
    "£": ("pound", "penny"),
    "€": ("euro", "cent"),
    "¥": ("yen", "sen"),
    "₹": ("rupee", "paisa"),
    "₩": ("won", "jeon"),
    "₽": ("ruble", "kopeck"),
    "₿": ("bitcoin", "satoshi"),
    "₺": ("lira", "kurush"),
    "₫": ("dong", "hao"),
    "₦": ("naira", "kobo"),
    "₱": ("peso", "centavo"),
    "฿": ("baht", "satang"),
    "₴": ("hryvnia", "kopeck"),
    "₪": ("shekel", "agora"),
    "US$": ("U S dollar", "cent"),
    "A$": ("Australian dollar", "cent"),
    "C$": ("Canadian dollar", "cent"),
    "NZ$": ("New Zealand dollar", "cent"),
    "HK$": ("Hong Kong dollar", "cent"),
    "R$": ("Brazilian real", "centavo"),
}
CODES = {
    "USD": "U S dollar",
    "EUR": "euro",
    "GBP": "pound",
    "JPY": "yen",
    "CAD": "Canadian dollar",
    "AUD": "Australian dollar",
    "CHF": "Swiss franc",
    "INR": "rupee",
    "CNY": "yuan",
    "RMB": "yuan",
}
SCALES = {
    "k": "thousand",
    "K": "thousand",
    "m": "million",
    "M": "million",
    "mm": "million",
    "MM": "million",
    "mn": "million",
    "b": "billion",
    "B": "billion",
    "bn": "billion",
    "Bn": "billion",
    "t": "trillion",
    "T": "trillion",
    "tn": "trillion",
}
_SIGN = any_of(MONEY)
_ANY = "".join(sign for sign in MONEY if len(sign) == 1)
_SCALE = rf"(?:\s+(thousand|million|billion|trillion|hundred)\b|\s?({any_of(SCALES)})\b(?!['’]))"
_PERIOD = r"(?=(?:month|mo|year|yr|week|wk|day|hour|hr|h|person|night|unit|user|seat|kg|lb|gallon|token|minute)\b)"
_PERIODS = {"mo": "month", "yr": "year", "wk": "week", "hr": "hour", "h": "hour", "lb": "pound", "kg": "kilogram"}


def _amount(sign: str, amount: str, scale: str | None, described: bool) -> str:
    big, small = _units(sign)
    if described:
        big, small = (big[1], big[1]), (small[1], small[1])
    whole, _, part = amount.replace(",", "").partition(".")
    whole = whole or "0"
    if scale:
        return f"{cardinal(amount)} {scale} {big[0]}"
    words = [f"{say(whole)} {big[0] if whole != '1' else big[1]}"] if int(whole) or not int(part or "0") else []
    if len(part) == 2 and int(part):
        words.append(f"{say(int(part))} {small[0] if int(part) != 1 else small[1]}")
    elif part and len(part) != 2:
        return f"{cardinal(amount)} {big[0]}"
    return " and ".join(words)


def _units(sign: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Plural and singular of the unit and of its hundredth."""
    big, small = MONEY[sign]
    return (plural(big, False), big), (plural(small, False), small)


def _money(m: re.Match[str]) -> str:
    return _amount(m[1], m[2], m[3] or SCALES.get(m[4] or ""), describes(m))


def _range(m: re.Match[str]) -> str:
    """ "$5-10" has its unit behind the second number only, "$5-$10" and "$5M to 10M" too."""
    return f"{cardinal(m[2])} to {m[1]}"


def _european(m: re.Match[str]) -> str:
    """ "1.234,56" -> "1234.56"."""
    return m[0].replace(".", "").replace(",", ".")


def _code(m: re.Match[str]) -> str:
    code, amount = (m[1], m[2]) if m[1] else (m[4], m[3])
    whole, _, part = amount.replace(",", "").partition(".")
    shown = amount if int(part or "0") else amount.partition(".")[0]
    return f"{cardinal(shown)} {plural(CODES[code], whole == '1' and shown == whole)}"


_AMOUNTS = "km|m|cm|mm|kg|g|l|L|ml|kWh|kW|million|billion"
_COUNTED = (
    "degrees?|percent|per cent|points?|times|million|billion|thousand|hours?|minutes?|seconds?|years?|months?|weeks?|"
    "days?|met(?:er|re)s?|kilomet(?:er|re)s?|centimet(?:er|re)s?|kilos?|kilograms?|grams?|tons?|tonnes?|lit(?:er|re)s?|miles?|"
    "euros?|dollars?|pounds?|watts?|volts?|inch(?:es)?|feet|hectares?"
)
EUROPEAN = rules(  # before a rule takes their commas and points for something else
    (r"(?<![\w.,])[1-9]\d{0,2}(?:\.\d{3})+,\d\d?(?![\w,])", _european, "0"),
    (r"(?<![\w.,])[1-9]\d{0,2}\.\d{3}\.\d{3}(?!\w|[.,]\d)", _european, "0"),
    (rf"(?:{_SIGN})\s?\d+,\d\d(?![\d,])", _european, "0 " + _ANY),
    (rf"(?<![\w.,])\d+,\d\d(?=\s?(?:[€£]|(?:{'|'.join(CODES)})\b))", _european, "0"),
    (rf"(?<![\w.,])(?:\d+,\d|0,\d\d)(?=(?:\s?[-–]\s?\d+,\d\d?)?\s?(?:%|°C|(?:{_AMOUNTS})\b))", _european, "0"),
    (r"(?<![\w.,])0,\d{1,3}(?![\d,]|\.\d)", _european, "0"),
    (rf"(?<![\w.,])\d+,\d{{1,2}}(?=(?:\s?[-–]\s?\d+,\d\d?)?[\s-]?(?:{_COUNTED})\b)", _european, "0"),
    (r"€\s?[1-9]\d{0,2}\.\d{3}(?![.,]?\d|\s?(?:/|per|a)\s?l)", _european, "€ 0"),  # no price of a liter
)
"""Amounts with a point between thousands or a comma in front of decimals, where they can be nothing else."""

RULES = rules(
    (rf"(?:(?<=\s)|(?<=\()|^)[-−–](?=(?:{_SIGN})\s?\d)", "minus ", "0 -–− " + _ANY),
    (rf"(?<=\d)/(?=(?:{_SIGN})\d)", " for ", "/ 0 " + _ANY),
    (rf"({_SIGN})\s?({NUMBER})\s?[-–]\s?(?:{_SIGN})?(?={NUMBER})", _range, "0 -– " + _ANY),
    (rf"({_SIGN})\s?({NUMBER})([A-Za-z]{{1,2}})\sto\s(?={NUMBER}\s?\3\b)", _range, "0 " + _ANY),
    (rf"({_SIGN})\s?({NUMBER}){_SCALE}", _money, "0 " + _ANY),
    (rf"({_SIGN})\s?({NUMBER}|\.\d+)()()", _money, "0 " + _ANY),
    (rf"\b(?:({'|'.join(CODES)})\s?({NUMBER})|({NUMBER})\s?({'|'.join(CODES)}))\b", _code, "0", CODES),
    (r"(?<![\w.,])(\d\d?)p\b(?!\.)", lambda m: f"{say(m[1])} {plural('penny', m[1] == '1')}", "0"),
    (rf"({NUMBER})\s?¢", lambda m: f"{cardinal(m[1])} {plural('cent', m[1] == '1')}", "0 ¢"),
    (rf"({NUMBER})\s?([£€])", lambda m: _amount(m[2], m[1], None, describes(m)), "0 £€"),
    (rf"(?<=[a-z])\s?/\s?{_PERIOD}(mo|yr|wk|hr|h|lb|kg)?\b", lambda m: f" per {_PERIODS.get(m[1] or '', '')}", "/"),
    (r"\bper (?=[a-z])", "per ", "", ("per",)),
    (rf"[{_ANY}](?=[A-Za-z])", " dollar ", "$£¥₩€₹₽₿"),
)
