"""Text of papers and scans: characters without sound, LaTeX, marks of notes, and ends of
lines."""

from __future__ import annotations

import re
import unicodedata

from stentor.text.draft import Draft
from stentor.text.patterns import lazy

_JOINERS = "\u200c\u200d"  # say how letters of some scripts are joined
_INVISIBLE = (  # all others of category Cf, as tests/text/test_cleanup.py counts them
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U00013438\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001"
    "\U000e0020-\U000e007f"
)
_CONTROLS = r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufdd0-\ufdef\ufffe\uffff"
"""Control characters that are no space, and code points that are no characters."""
_DROPPED = lazy(
    rf"\x1b\[[0-9;?]*[ -/]*[@-~]|[{_CONTROLS}{_INVISIBLE}]|(?<=[ -\u024f])[{_JOINERS}]+(?=[ -\u024f]|$)|^[{_JOINERS}]+"
)
_CUT_BY_SOFT_HYPHEN = lazy(r"(?<=\w)\u00ad[ \t]*\r?\n[ \t]*(?=\w)")
_CUT_IN_PDF = lazy(r"(?<=\w)[\x02\ufffe](?=\w)")
"""A hyphen at the end of a line, as PDFium has it in place of the line's end: U+FFFE in
`get_text_range` and U+0002 in `get_text_bounded` of pypdfium2 5.15.2."""
_LINE_ENDS = lazy(r"\r\n?|[\x85\u2028]")
_PARAGRAPH_ENDS = lazy("\u2029")
_LIGATURES = lazy(r"[\ufb00-\ufb06\ufb13-\ufb17]")
_LETTER = r"[^\W\d_]"
_APOSTROPHES = lazy(rf"(?<={_LETTER})[\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`](?={_LETTER})")
_ELISIONS = lazy(
    r"(?<![\w'’])[\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`‘](?=(?:twas|tis|twere|twill|twould|twixt|til|till|em|bout|cause|"
    r"cuz|neath|gainst|nuff|tude|round|ere|kay)\b)",
    re.IGNORECASE,
)
_ANY = lazy(
    rf"[\r\x85{_CONTROLS}\u2028\u2029\ufb00-\ufb17\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`‘{_JOINERS}{_INVISIBLE}]"
)


def plain_characters(draft: Draft) -> Draft:
    """Without characters of category Cf and control characters, with plain letters for ligatures
    and ’ inside words."""
    if not _ANY.search(draft.text):
        return draft
    draft = (
        draft.sub(_CUT_BY_SOFT_HYPHEN, "")
        .sub(_CUT_IN_PDF, "-\n")
        .sub(_DROPPED, "")
        .sub(_LINE_ENDS, "\n")
        .sub(_PARAGRAPH_ENDS, "\n\n")
    )
    return (
        draft.sub(_LIGATURES, lambda m: unicodedata.normalize("NFKC", m[0]))
        .sub(_APOSTROPHES, "’")
        .sub(_ELISIONS, "’")
    )


_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SOURCES = r"\[\d{1,3}(?:\s?[,–-]\s?\d{1,3}){0,5}\]"
_MARKS = (
    re.compile(r"^[ \t]*\[\^[^\]\s]{1,40}\]:[ \t]*", re.MULTILINE),  # the note itself
    re.compile(r"[ \t]?\[\^[^\]\s]{1,40}\]"),
    re.compile(
        rf"(?<=[^\W\d_]{{2}})(?:{_SOURCES}){{1,6}}(?!\()|(?<=[.,;:!?”\"’)])(?:{_SOURCES}|\[[a-z]\]){{1,6}}(?=\s|$)"
    ),
    re.compile(
        r"(?:(?<=[a-z]{4}[.!?])|(?<=[a-z]{3}[.!?][”\"’]))\d{1,3}(?=\s+[A-Z“\"]|\s*$)"
    ),  # behind a scanned sentence
    re.compile(r"(?<=[\w.,;:!?”\"’)])[†‡]+|(?<![†‡])[†‡]++(?=\w)"),
    re.compile(
        r"[ \t]?\[(?:citation needed|clarification needed|better source needed|note \d{1,3})\]",
        re.IGNORECASE,
    ),
)


_PLAIN = rf"[^\W\d_{_RAISED}]"
_RAISED_NUMBER = lazy(
    rf"((?<!{_PLAIN})(?:{_PLAIN}++['’])?{_PLAIN}++|(?<!\w)\)|[.,;:!?”\"’»])[{_RAISED}]{{1,3}}(?![\w^])"
)
_POWERED = frozenset("sin cos tan cot sec csc log sinh cosh tanh".split())
"""Words with a raised number that is a power."""
_SHORT_WORDS = frozenset(
    "ad ah am an as at be by do eh go ha he hi ho if is it ma me my no of oh ok on or ox pa so to up us we yo".split()
)
_WIDE_UNITS = ("公里", "千米", "厘米", "毫米", "分米", "米", "キロ", "メートル", "센티", "미터")


def without_notes(draft: Draft) -> Draft:
    """Without marks of notes: [^1], a raised number behind a word, [12] behind a word or a stop,
    and daggers."""
    for pattern in _MARKS:
        draft = draft.sub(pattern, "")
    return draft.sub(_RAISED_NUMBER, lambda m: m[0] if _is_power(m[1]) else m[1])


def _is_power(base: str) -> bool:
    """Whether a raised number behind this is a power: of "mc", "km", "πr", "sin", no word."""
    if not base[-1].isalpha():
        return False
    if len(base) <= 2:
        return base.lower() not in _SHORT_WORDS
    return base in _POWERED or base.endswith(_WIDE_UNITS)
