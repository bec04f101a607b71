"""A family's marks inside a text (`TextMarks`): where they stand and who speaks. Cutting sees placeholders for them."""

from __future__ import annotations

import re

from stentor.models.base import TextMarks

OTHER, TURN = "\ue000", "\ue001"  # placeholders, which are neither words, white space nor punctuation
PLACEHOLDERS = OTHER + TURN
_SPACE = r"(?!\s*\n\s*\n)\s*"  # belongs to the mark before it, unless a paragraph ends there
_WORD_CHAR = re.compile(r"\w")


def masked(text: str, marks: TextMarks) -> str:
    """The text with every mark replaced by as many placeholders: TURN for speakers, OTHER for the rest."""
    pattern = f"(?:(?P<turn>{marks.speaker})|{marks.other}|{marks.unfinished}){_SPACE}"
    return re.sub(pattern, lambda m: (TURN if m["turn"] else OTHER) * len(m[0]), text)


def speakers(text: str, marks: TextMarks) -> list[str]:
    """The speaker marks of a text, in order."""
    return [m[0] for m in re.finditer(marks.speaker, text)]


def has_words(text: str, marks: TextMarks) -> bool:
    """Whether a text has words besides its marks."""
    return _WORD_CHAR.search(masked(text, marks)) is not None
