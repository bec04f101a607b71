"""Written English to spoken words: numbers, money, dates, times, units, abbreviations, addresses and code.

`notations` has the rules, American style. Some rules backtrack over a whole run of characters. They run on windows of
bounded length, so the work is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stentor.text.notations import RULES
from stentor.text.notations.abbreviations import DAYS, MONTHS, SHORT_DAYS, SHORT_MONTHS
from stentor.text.notations.rule import any_of
from stentor.text.scripts import latin, names_of_signs
from stentor.text.trace import NO_WORD, Trace

WINDOW = 480
"""Characters that the rules see at once. The server cuts long text into shorter pieces than this."""
MAX_WORD = 80
"""Characters of a word. A longer run without a space is read as several words."""
MAX_PARTS = 8
"""Parts of a word between hyphens and other signs. The dictionary looks at every range of a word's parts."""
_LINE_END = re.compile(r"(?<=[^\s.,;:!?…])[ \t]*\n\s*")
_HEADING = re.compile(r"#{1,6}[ \t]")
_ITEM = re.compile(r"(?:[-*+•–]|\d{1,3}[.)]|\(\d{1,3}\)|\(?[a-hA-H]\))[ \t]")
_LONG_WORD = re.compile(rf"(\S{{{MAX_WORD}}})(?=\S)")
_MANY_PARTS = re.compile(rf"((?:[^\W_]+[^\w\s]+){{{MAX_PARTS}}})(?=\w)")
_TIMES = any_of({*DAYS, *SHORT_DAYS, *MONTHS, *SHORT_MONTHS})
_HALF = r"(?<=\d[AaPp][Mm])|(?<=\d [AaPp][Mm])|(?<=[ap]\.m\.)"
_RANGE = re.compile(
    rf"(?:(?<=\d)|{_HALF})\s?–\s?(?=[$£€]?\d|noon\b|midnight\b)|(?<=[a-z.])–(?=(?:{_TIMES})\b)|(?<=\bA)–(?=Z\b)"
)
_DASHES = re.compile(r"--(?![a-z])|(?<=\S)--")
_SENTENCE_END = re.compile(r"[a-z]{4}[.!?][\"')\]]?(?= )")  # four letters: "Dr. Smith" stays together
_QUOTES = str.maketrans({"‘": "'", "’": "'", "`": "'", "–": " — ", "\u00a0": " ", "\u200b": ""})


def windows(text: Trace) -> Iterator[Trace]:
    """`text` in parts of at most WINDOW characters and words of at most MAX_WORD, ending with a sentence if possible.

    A heading, and a line in front of a list's item, end with a full stop. White space becomes single spaces. Empty
    parts are left out.
    """
    lines = text.sub(_LINE_END, _line_end).spaced()
    whole = lines.sub(_LONG_WORD, r"\1 ").sub(_MANY_PARTS, r"\1 ")
    start, length = 0, len(whole.text)
    while length - start > WINDOW:
        ends = [m.end() for m in _SENTENCE_END.finditer(whole.text, start, start + WINDOW)]
        end = ends[-1] if ends else whole.text.rindex(" ", start, start + WINDOW)
        yield whole[start:end]
        start = end + 1
    if start < length:
        yield whole[start:]


def _line_end(m: re.Match[str]) -> str:
    line = m.string.rfind("\n", 0, m.start()) + 1
    return ". " if _HEADING.match(m.string, line) or _ITEM.match(m.string, m.end()) else m[0]


def spoken(text: str) -> str:
    """`text` with everything that is not words written out in words. Without words, the names of its signs."""
    words = " ".join(spoken_window(part).text for part in windows(Trace.of(text)))
    return words if any(c.isalnum() for c in words) else names_of_signs(text)


def spoken_window(text: Trace) -> Trace:
    """The same for one of `windows`. Empty or punctuation if it has no words."""
    text = text.each(latin).sub(_RANGE, "-").translate(_QUOTES)
    text = text.sub(_DASHES, " — ").strip()
    sentence = text.text.endswith(".")
    for pattern, action in RULES:
        text = text.sub(pattern, action)
    text = text.spaced()
    ended = not sentence or text.text.endswith((".", "…"))
    return text if ended else Trace(text.text + ".", [*text.words, NO_WORD])  # an abbreviation may take it along
