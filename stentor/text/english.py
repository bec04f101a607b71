"""Written English to spoken words: numbers, money, dates, times, units, abbreviations, addresses and code.

`notations` has the rules, American style. Some rules backtrack over a whole run of characters. They run on windows of
bounded length, so the work is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from stentor.text.notations import RULES
from stentor.text.scripts import latin, names_of_signs

WINDOW = 480
"""Characters that the rules see at once. The server cuts long text into shorter pieces than this."""
MAX_WORD = 80
"""Characters of a word. A longer run without a space is read as several words."""
MAX_PARTS = 8
"""Parts of a word between hyphens and other signs. The dictionary looks at every range of a word's parts."""
_LONG_WORD = re.compile(rf"(\S{{{MAX_WORD}}})(?=\S)")
_MANY_PARTS = re.compile(rf"((?:[^\W_]+[^\w\s]+){{{MAX_PARTS}}})(?=\w)")
_SENTENCE_END = re.compile(r"[a-z]{4}[.!?][\"')\]]?(?= )")  # four letters: "Dr. Smith" stays together
_QUOTES = str.maketrans({"‘": "'", "’": "'", "`": "'", "–": " — ", "\u00a0": " ", "\u200b": ""})


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
    """`text` with everything that is not words written out in words. Without words, the names of its signs."""
    words = " ".join(spoken_window(part) for part in windows(text))
    return words if any(c.isalnum() for c in words) else names_of_signs(text)


def spoken_window(text: str) -> str:
    """The same for one of `windows`. Empty or punctuation if it has no words."""
    text = re.sub(r"(?<=\d)\s?–\s?(?=\d)", "-", latin(text)).translate(_QUOTES)
    text = re.sub(r"--(?![a-z])|(?<=\S)--", " — ", text).strip()
    sentence = text.endswith(".")
    for pattern, action in RULES:
        text = pattern.sub(action, text)
    text = " ".join(text.split())
    return text + "." if sentence and not text.endswith((".", "…")) else text  # an abbreviation may take it along
