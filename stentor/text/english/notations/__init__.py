"""Written English to spoken words: numbers, money, dates, times, units, abbreviations, addresses
and code.

A rule is a pattern and what reads a match of it, American style. Some rules backtrack over a whole
run of characters. They run on windows of bounded length, so the work is linear in the length of the
text. No pattern may need more than quadratic time in a window.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stentor.text.english.notations import amounts, codes, hexadecimal, names, signs, times
from stentor.text.english.notations.rule import Rule, any_of, features
from stentor.text.english.scripts import latin
from stentor.text.english.tables import DAYS, MONTHS, SHORT_DAYS, SHORT_MONTHS
from stentor.text.trace import Trace

RULES: list[Rule] = [
    *codes.CENSORED_WORDS,
    *codes.SPELLED,
    *times.BASIC,
    *names.ITEMS,
    *hexadecimal.COLORS,
    *codes.IDENTIFIERS,
    *hexadecimal.RULES,
    *amounts.GROUPED,
    *amounts.EUROPEAN,
    *signs.COMPARISONS,
    *names.RULES,
    *times.RULES,
    *codes.RULES,
    *amounts.RULES,
    *names.ROMANS,
    *amounts.PLAIN,
    *signs.RULES,
]
"""The more specific before the more general, so a later rule never sees what an earlier one
read."""
WINDOW = 480
"""Characters that the rules see at once. The server cuts long text into shorter pieces than
this."""
MAX_WORD = 80
"""Characters of a word. A longer run without a space is read as several words."""
MAX_PARTS = 8
"""Parts of a word between hyphens and other signs. The dictionary looks at every range of a word's
parts."""
_LONG_WORD = re.compile(rf"(\S{{{MAX_WORD}}})(?=\S)")
_MANY_PARTS = re.compile(rf"((?<![^\W_])(?:[^\W_]++[^\w\s]++){{{MAX_PARTS}}})(?=\w)")
_TIMES = any_of({*DAYS, *SHORT_DAYS, *MONTHS, *SHORT_MONTHS})
_HALF = r"(?<=\d[AaPp][Mm])|(?<=\d [AaPp][Mm])|(?<=[ap]\.m\.)"
_RANGE = re.compile(
    rf"(?:(?<=\d)|{_HALF})\s?–\s?(?=[$£€]?\d|noon\b|midnight\b)|(?<=[a-z.])–(?=(?:{_TIMES})\b)|(?<=\bA)–(?=Z\b)"
)
_DASHES = re.compile(
    r"--(?![a-z])|(?<=\S)--|(?:(?<=[A-Za-z]{2}|\d[a-z])|(?<=[,.!?\"')]))\s-\s(?=[\"'(]?[A-Za-z]{2}|I\b|[Aa]\s[a-z]{2})|(?<=\d)\s-\s(?=[A-Z][a-z])"
)
# four letters: "Dr. Smith" stays together
_SENTENCE_END = re.compile(r"[a-z]{4}[.!?][\"')\]]?(?= )")
_QUOTES = str.maketrans(
    {"‘": "'", "’": "'", "`": "'", "–": " — ", "—": " — ", "―": " — ", "\u00a0": " ", "\u200b": ""}
)


def windows(text: Trace) -> Iterator[Trace]:
    """`text` in parts of at most WINDOW characters and words of at most MAX_WORD, ending with a
    sentence if possible.

    White space becomes single spaces. Empty parts are left out.
    """
    spaced = text.spaced().sub(_LONG_WORD, r"\1 ").sub(_MANY_PARTS, r"\1 ")
    start = 0
    length = len(spaced.text)
    while length - start > WINDOW:
        ends = [m.end() for m in _SENTENCE_END.finditer(spaced.text, start, start + WINDOW)]
        if ends:
            end = ends[-1]
        else:
            end = spaced.text.rindex(" ", start, start + WINDOW)
        yield spaced[start:end]
        start = end + 1
    if start < length:
        yield spaced[start:]


def spoken(text: str) -> str:
    """`text` with everything that is not words written out in words."""
    return " ".join(spoken_window(part).text for part in windows(Trace.of(text)))


def spoken_window(text: Trace) -> Trace:
    """Phonemes of one of `windows`. Empty or punctuation if it has no words."""
    text = text.each(latin).sub(_RANGE, "-").translate(_QUOTES)
    text = (text.sub(_DASHES, " — ") if "-" in text.text else text).strip()
    sentence = text.text.endswith(".")
    present = features(text.text)
    before = text
    for rule in RULES:
        if rule.may_match(present):
            text = text.sub(rule.pattern, rule.action)
            if text is not before:
                present = features(text.text)
                before = text
    text = text.spaced()
    ended = not sentence or text.text.endswith((".", "…"))
    if ended:
        return text
    return text.ended(".")  # an abbreviation may take it along
