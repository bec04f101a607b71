"""A family's marks inside a text (`TextMarks`): where they stand and who speaks. Cutting sees placeholders for them."""

from __future__ import annotations

import re
from dataclasses import dataclass

OTHER = "\ue000"  # placeholders, which are neither words, white space nor punctuation
TURN = "\ue001"
PLACEHOLDERS = OTHER + TURN
_SPACE = r"(?:(?!\s*\n\s*\n)\s*)?"  # belongs to the mark before it, unless a paragraph ends there
_WORD_CHAR = re.compile(r"[^\W_]")
NEVER = r"(?!)"
PHONEMES = r"\[(?P<word>[^\[\]\n]{1,80})\]\(/(?P<phonemes>[^/\n]{1,200})/\)"
"""Pattern of a word with its phonemes, for every family that reads them."""


@dataclass(frozen=True)
class TextMarks:
    """Marks inside a text that the family understands, as regular expressions. By default there are none.

    Who cuts text cuts neither inside a mark nor between a mark and the words behind it. A part that begins inside a
    speaker's turn gets that speaker's mark.
    """

    speaker: str = NEVER  # says who speaks up to the next such mark
    other: str = NEVER  # any other mark
    unfinished: str = (
        NEVER  # the beginning of a mark at the end of a text that is still being written
    )


NO_MARKS = TextMarks()


def masked(text: str, marks: TextMarks) -> str:
    """The text with every mark replaced by as many placeholders: TURN for speakers, OTHER for the rest."""
    pattern = f"(?:(?P<turn>{marks.speaker})|{marks.other}|{marks.unfinished}){_SPACE}"
    return re.sub(pattern, lambda m: (TURN if m["turn"] else OTHER) * len(m[0]), text)


def speakers(text: str, marks: TextMarks) -> list[str]:
    """The speaker marks of a text, in order."""
    return [m[0] for m in re.finditer(marks.speaker, text)]


def is_blank(text: str, marks: TextMarks) -> bool:
    """Whether a text is signs only: something besides speakers' marks, but no word and no other mark."""
    plain = masked(text, marks).replace(TURN, "").strip()
    return bool(plain) and OTHER not in plain and _WORD_CHAR.search(plain) is None


def has_words(text: str, marks: TextMarks = NO_MARKS) -> bool:
    """Whether a text has letters or digits besides its marks."""
    return _WORD_CHAR.search(masked(text, marks)) is not None
