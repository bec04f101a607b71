"""Ends of lines: words that they cut, lines that end something, and lines of prose that is
wrapped."""

from __future__ import annotations

import itertools
import re
import unicodedata

from stentor.text.draft import COMMA, HEADING, LINE, SCENE, STOP, Draft, Writer
from stentor.text.patterns import lazy
from stentor.text.punctuation import CLAUSE, END_MARKS

NARROWEST = 40
"""Columns of a line of prose that is wrapped. What is narrower is a list, an address or a
poem."""
HEADING_COLUMNS = 70
_LOOK = 400  # characters of a block by which its language is known
_CUT_WORD = lazy(r"([^\W\d_]{2,40})[-‐¬][ \t]*\n[ \t]*([^\W\d_]{2,40})(?=[\s.,;:!?'’\"”)\]—–]|$)")
_WORDS = lazy(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_CUT_RANGE = lazy(r"(?<=[^\W_])[-‐][ \t]*\n[ \t]*(?=[^\W_])")
_SCENE = lazy(r"^[ \t]*(?:(?:[*#~•·⁂❦◆◇§=_-][ \t]*){3,}|⁂|❦|#|\*)[ \t]*$", re.MULTILINE)
_BLOCK = lazy(r"\S[^\n]*(?:\n[ \t]*\S[^\n]*)*")
_BULLET = lazy(r"(?<![ \t])[ \t]*+(?:[•◦▪‣·–—*+-][ \t]+(?=\S))")
_ITEM = lazy(
    r"(?<![ \t])[ \t]*+(?:[•◦▪‣·*+–-]|\d{1,3}[.)]|\(?[a-zA-Z\d]{1,2}\)|[IVX]{1,5}\.)[ \t]++\S"
)
_OPEN_END = lazy(
    r"(?:[,;:—–-]|\b(?:a|an|the|and|or|but|nor|of|to|in|on|at|by|for|from|with|as|than|that|which|who|is|are|was|were|"
    r"be|been|his|her|its|their|my|your|our|this|these|those|into|not|no|if|when|while|because|said|mr|mrs|ms|dr|st)\.?)$",
    re.IGNORECASE,
)
_STREET = lazy(r"^\D*+\d.* (?:St|Ave|Rd|Blvd|Dr|Ln|Hwy|Sq|Ct|Pl)\.$")  # of an address
_END = lazy(rf"[.!?…{CLAUSE}{END_MARKS}][\"'”’»)\]」』*_]*$")
_SENTENCE_END = lazy(rf"[.!?…{END_MARKS}][\"'”’»)\]」』*_]*$")
_LAST_WORD = lazy(r"(?<![^\W\d_])([^\W\d_]++)$")


def whole_lines(draft: Draft) -> Draft:
    """With cut words whole, and marks behind lines that end without one where they end
    something."""
    if "\n" not in draft.text.strip():
        return draft
    if _CUT_WORD.search(draft.text):
        written = frozenset(_WORDS.findall(draft.text))
        draft = draft.sub(_CUT_WORD, lambda m: _joined(m[1], m[2], written))
    return _with_ends(draft.sub(_CUT_RANGE, "-"))


def _joined(first: str, second: str, written: frozenset[str]) -> str:
    """ "nega", "tive" -> "negative", "well", "known" -> "well-known". written: words elsewhere in
    the text."""
    from stentor.text.english.dictionary import is_word

    word = first + second
    hyphened = f"{first}-{second}"
    if second[0].isupper() or hyphened in written:
        return hyphened
    if word in written or is_word(word):
        return word
    if is_word(first) and is_word(second):
        return hyphened
    return word


def _with_ends(draft: Draft) -> Draft:
    text = draft.text
    out = Writer(draft)
    blocks = [m.span() for m in _BLOCK.finditer(text)]
    for at, (start, end) in enumerate(blocks):
        if _SCENE.fullmatch(text, start, end):
            out.keep_to(start)
            out.close("", SCENE)
            out.skip_to(end)
            out.close("", SCENE)
            out.skip_to(blocks[at + 1][0] if at + 1 < len(blocks) else len(text))
            continue
        _block(out, text, start, end)
        if at + 1 < len(blocks) and _is_heading(text[start:end]):
            following = text[end : blocks[at + 1][0]]
            out.close(STOP, HEADING)
            out.skip_to(end + len(following))
    return out.done()


def _is_heading(block: str) -> bool:
    """Whether a paragraph is a title: one short line without a stop."""
    line = block.strip()
    plain = (
        "\n" not in line
        and _columns(line) <= HEADING_COLUMNS
        and not _END.search(line)
        and not _OPEN_END.search(line)
    )
    return plain and line[:1] not in '"“‘«「[<(' and any(c.isalnum() for c in line)


def _block(out: Writer[Draft], text: str, start: int, end: int) -> None:
    """Lines without an empty one between them."""
    if "\n" not in text[start:end]:
        out.keep_to(end)
        return
    places = [(start + m.start(), start + m.end()) for m in re.finditer(r"[^\n]+", text[start:end])]
    lines = [text[a:b].rstrip() for a, b in places]
    is_end = _line_ends(lines)
    loose = not any(re.search(r"[.,;!?]$", line) for line in lines[:-1])
    for i, (a, b) in enumerate(places):
        if bullet := _BULLET.match(text, a, b):
            out.keep_to(bullet.start())
            out.skip_to(bullet.end())
        stop = a + len(lines[i])
        out.keep_to(max(stop, out.at))
        if is_end[i]:
            if _STREET.search(lines[i]):
                out.write(",", out.at)
            item = loose or _ITEM.match(lines[i]) or _ITEM.match(lines[i + 1])
            out.close(STOP if item else COMMA, LINE)
            out.skip_to(places[i + 1][0])
    if _ITEM.match(lines[-1]) and end < len(text.rstrip()):
        out.close(STOP, LINE)
    out.keep_to(end)


def _line_ends(lines: list[str]) -> list[bool]:
    from stentor.text.endings import ENGLISH, language_of

    width = max(map(_columns, lines))
    language = language_of(" ".join(lines)[:_LOOK])
    foreign = language is not ENGLISH
    prose = foreign and _SENTENCE_END.search(lines[-1]) is not None
    ends = []
    for line, following in itertools.pairwise(lines):
        last = _LAST_WORD.search(line)
        wrapped = prose or _is_wide(line[-1:]) or _is_wide(following.lstrip()[:1])
        wrapped = wrapped or (foreign and last is not None and last[1].lower() in language.words)
        if wrapped:
            ends.append(_is_before_item(line, following))
        else:
            ends.append(_ends(line, following, width))
    return [*ends, False]


def _columns(line: str) -> int:
    """The width of a line, in which a wide character has two columns."""
    return len(line) + sum(map(_is_wide, line))


def _is_wide(sign: str) -> bool:
    return bool(sign) and unicodedata.east_asian_width(sign) in "WF"


def _is_before_item(line: str, following: str) -> bool:
    has_end = _END.search(line) is not None or not any(c.isalnum() for c in line)
    return not has_end and _ITEM.match(following) is not None


def _ends(line: str, following: str, width: int) -> bool:
    line = line.strip()
    after = following.strip()
    if _STREET.search(line) and after[:1].isupper():
        return True
    if not line or _END.search(line) or not any(c.isalnum() for c in line):
        return False
    if _ITEM.match(following):
        return True
    if _OPEN_END.search(line) or not (
        after[0].isupper() or after[0].isdigit() or after[0] in '"“‘«¿¡('
    ):
        return False
    room = width - _columns(line) > _columns(after.split(None, 1)[0]) + 1
    return width < NARROWEST or room
