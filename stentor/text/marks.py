"""A family's marks inside a text (`TextMarks`): where they stand, who speaks, and what governs all
of the text.

Clean-up and markup see private characters instead of the marks (`Held`), cutting sees placeholders
(`masked`).
"""

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
ADDRESS = r"(?:[A-Za-z][A-Za-z0-9+.-]{1,19}://|mailto:|tel:|www\.|\.{0,2}/|#(?=\w))[^\s<>]*"
"""Pattern of the target of a link. Words are none."""
_TARGET = rf"(?:{ADDRESS.replace('<>', '()<>')}|[\w/-]{{1,60}}\.[a-z]{{2,5}}(?:[/#?][^\s()<>]*)?)"
_PRIVATE = range(0xF0000, 0x10FFFE)  # code points that stand for marks
_OURS = (
    r"\[(?i:(?:short|medium|long)\s)?(?i:pause|silence|break)\s*[:=]?\s*\d[^\[\]\n]{0,20}\]"
    r"|\[\[[^\[\]\n]{0,20}\]\]"
    r"|\[[^\[\]\n]{1,80}\]\(/[^/\n]{1,200}/\)"
    rf"|!?\[[^\[\]\n]{{1,200}}\]\({_TARGET}(?:\([^\s()]*\))?(?:\s[^()\n]*)?\)"
    rf"|^[ ]{{0,3}}\[[^\[\]\n]{{1,200}}\]:[ \t]*<?{ADDRESS}"
    r"|\[\^[^\[\]\s]{1,40}\]|(?<=[-*+] )\[[xX ]\](?=\s)|\[![A-Z]{1,20}\]|\[[\d\s,–-]{1,40}\]"
    r"|\[(?i:citation needed|clarification needed|better source needed|note \d{1,3})\]"
)
"""Marks that are read the same in every family, and what people paste in brackets: links, notes,
boxes."""


@dataclass(frozen=True)
class TextMarks:
    """Marks inside a text that the family understands, as regular expressions. By default there are
    none.

    Text is cut neither inside a mark nor between a mark and the words behind it. A part that begins
    inside a speaker's turn gets that speaker's mark.

    speaker: names who speaks up to the next such mark. other: any other mark. unfinished: the
    beginning of a mark at the end of a text that is still being written. lead: what stands in front
    of a text and governs all of it, with the white space behind it. lead_begun: a whole text so far
    that may become a lead. lead_continues: a lead also stands in front of a transcript that is
    continued; else the audio that is continued replaces it.
    """

    speaker: str = NEVER
    other: str = NEVER
    unfinished: str = NEVER
    lead: str = NEVER
    lead_begun: str = NEVER
    lead_continues: bool = False


NO_MARKS = TextMarks()


class Held:
    """A text whose marks are held by place: in `text` each is as many copies of a private character
    of its own.

    Steps of the clean-up and markup neither read nor change such a character, and `restored` puts
    the marks back.
    """

    def __init__(self, given: str, marks: TextMarks) -> None:
        self.text = given
        self._names: dict[str, str] = {}
        self._marks: dict[str, str] = {}
        if marks.speaker == NEVER and marks.other == NEVER:
            return

        self._free = (chr(code) for code in _PRIVATE if chr(code) not in given)
        pattern = re.compile(
            rf"(?P<ours>{_OURS})|(?:{marks.speaker})|(?:{marks.other})", re.MULTILINE
        )
        self.text = pattern.sub(self._hold, given)

    def _hold(self, m: re.Match[str]) -> str:
        if m["ours"] is not None or not m[0]:
            return m[0]
        if m[0] not in self._names:
            name = next(self._free, None)
            if name is None:  # more different marks than private characters
                return m[0]
            self._names[m[0]] = name
            self._marks[name] = m[0]
        return self._names[m[0]] * len(m[0])

    def restored(self, text: str) -> str:
        """Part of `self.text`, cleaned or not, with the marks in their places. It keeps its
        length."""
        if not self._marks:
            return text
        runs = re.compile(f"([{chr(_PRIVATE[0])}-{chr(_PRIVATE[-1])}])\\1*")
        return runs.sub(self._put_back, text)

    def _put_back(self, m: re.Match[str]) -> str:
        mark = self._marks.get(m[1])
        if mark is None:
            return m[0]
        copies = len(m[0]) // len(mark) + 1
        return (mark * copies)[: len(m[0])]


def find_lead(text: str, marks: TextMarks, complete: bool = True) -> str | None:
    """Return what leads a text and governs all of it, "" if nothing does. None: more of the text
    decides.

    complete: no more text follows. A lead without words behind it is none.
    """
    if marks.lead == NEVER:
        return ""
    if not complete and re.fullmatch(marks.lead_begun, text):
        return None
    m = re.match(marks.lead, text)
    if m is None:
        return ""
    if text[m.end() :].strip():
        return m[0]
    return "" if complete else None


def as_prefix(lead: str) -> str:
    """A lead as it stands in front of a piece: an empty line behind it does not."""
    body = lead.strip()
    behind = lead.lstrip()[len(body) :]
    if "\n" in behind:
        return body
    return body + behind


def masked(text: str, marks: TextMarks) -> str:
    """The text with every mark replaced by as many placeholders: TURN for speakers, OTHER for the
    rest."""
    pattern = f"(?:(?P<turn>{marks.speaker})|{marks.other}|{marks.unfinished}){_SPACE}"
    return re.sub(pattern, lambda m: (TURN if m["turn"] else OTHER) * len(m[0]), text)


def speakers(text: str, marks: TextMarks) -> list[str]:
    """The speaker marks of a text, in order."""
    return [m[0] for m in re.finditer(marks.speaker, text)]


def is_blank(text: str, marks: TextMarks) -> bool:
    """Whether a text is signs only: something besides speakers' marks, but no word and no other
    mark."""
    plain = masked(text, marks).replace(TURN, "").strip()
    return bool(plain) and OTHER not in plain and _WORD_CHAR.search(plain) is None


def has_words(text: str, marks: TextMarks = NO_MARKS) -> bool:
    """Whether a text has letters or digits besides its marks."""
    return _WORD_CHAR.search(masked(text, marks)) is not None
