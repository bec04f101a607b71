"""Meaning of a line's end: a word or a sentence that goes on, or the end of a heading or an item.

Prose is wrapped where its next word has no room. A line that ends before, and is followed by a capital or a number,
ends something. Chinese and Japanese have no capitals, so their lines go on, but for headings.
"""

from __future__ import annotations

import re

from stentor.text.cleanup.draft import COMMA, HEADING, LINE, SCENE, STOP, Draft, Writer

NARROWEST = 40
"""Characters of a line of prose that is wrapped. What is narrower is a list, an address or a poem."""
HEADING_CHARS = 70
_CUT_WORD = re.compile(r"([^\W\d_]{2,40})[-‐¬][ \t]*\n[ \t]*([^\W\d_]{2,40})(?=[\s.,;:!?'’\"”)\]—–]|$)")
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_CUT_RANGE = re.compile(r"(?<=[^\W_])[-‐][ \t]*\n[ \t]*(?=[^\W_])")
_SCENE = re.compile(r"^[ \t]*(?:(?:[*#~•·⁂❦◆◇§=_-][ \t]*){3,}|⁂|❦|#|\*)[ \t]*$", re.MULTILINE)
_BLOCK = re.compile(r"\S[^\n]*(?:\n[ \t]*\S[^\n]*)*")
_BULLET = re.compile(r"[ \t]*(?:[•◦▪‣·–—*+-][ \t]+(?=\S))")
_ITEM = re.compile(r"[ \t]*(?:[•◦▪‣·*+–-]|\d{1,3}[.)]|\(?[a-zA-Z\d]{1,2}\)|[IVX]{1,5}\.)[ \t]+\S")
_OPEN_END = re.compile(
    r"(?:[,;:—–-]|\b(?:a|an|the|and|or|but|nor|of|to|in|on|at|by|for|from|with|as|than|that|which|who|is|are|was|were|"
    r"be|been|his|her|its|their|my|your|our|this|these|those|into|not|no|if|when|while|because|said|mr|mrs|ms|dr|st)\.?)$",
    re.IGNORECASE,
)
_STREET = re.compile(r"\d.* (?:St|Ave|Rd|Blvd|Dr|Ln|Hwy|Sq|Ct|Pl)\.$")  # of an address
_END = re.compile(r"[.!?:;,…。！？、，；：।؟][\"'”’»)\]」』*_]*$")


def cleaned(draft: Draft) -> Draft:
    """With cut words whole, and marks behind lines that end without one where they end something."""
    if "\n" not in draft.text.strip():
        return draft
    if _CUT_WORD.search(draft.text):
        written = frozenset(_WORDS.findall(draft.text))
        draft = draft.sub(_CUT_WORD, lambda m: _joined(m[1], m[2], written))
    return _with_ends(draft.sub(_CUT_RANGE, "-"))


def _joined(first: str, second: str, written: frozenset[str]) -> str:
    """ "nega", "tive" -> "negative", "well", "known" -> "well-known". written: words elsewhere in the text."""
    from stentor.text.words import is_word

    whole, hyphened = first + second, f"{first}-{second}"
    if second[0].isupper() or hyphened in written:
        return hyphened
    if whole in written or is_word(whole):
        return whole
    return hyphened if is_word(first) and is_word(second) else whole


def _with_ends(draft: Draft) -> Draft:
    text, out = draft.text, Writer(draft)
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
    plain = "\n" not in line and len(line) <= HEADING_CHARS and not _END.search(line) and not _OPEN_END.search(line)
    return plain and line[:1] not in '"“‘«「[<(' and any(c.isalnum() for c in line)


def _block(out: Writer, text: str, start: int, end: int) -> None:
    """Lines without an empty one between them."""
    if "\n" not in text[start:end]:
        out.keep_to(end)
        return
    lines = [(start + m.start(), start + m.end()) for m in re.finditer(r"[^\n]+", text[start:end])]
    shown = [text[a:b].rstrip() for a, b in lines]
    width = max(map(len, shown))
    loose = not any(re.search(r"[.,;!?]$", line) for line in shown[:-1])
    for i, (a, b) in enumerate(lines):
        if bullet := _BULLET.match(text, a, b):
            out.keep_to(bullet.start())
            out.skip_to(bullet.end())
        stop = a + len(shown[i])
        out.keep_to(max(stop, out.at))
        if i + 1 < len(lines) and _ends(shown[i], shown[i + 1], width):
            if _STREET.search(shown[i]):
                out.say(",", out.at)
            item = loose or _ITEM.match(shown[i]) or _ITEM.match(shown[i + 1])
            out.close(STOP if item else COMMA, LINE)
            out.skip_to(lines[i + 1][0])
    if _ITEM.match(shown[-1]) and end < len(text.rstrip()):
        out.close(STOP, LINE)
    out.keep_to(end)


def _ends(line: str, following: str, width: int) -> bool:
    """Whether a line without a stop ends something, and is not wrapped."""
    line, after = line.strip(), following.strip()
    if _STREET.search(line) and after[:1].isupper():
        return True
    if not line or _END.search(line) or not any(c.isalnum() for c in line):
        return False
    if _ITEM.match(following):
        return True
    if _OPEN_END.search(line) or not (after[0].isupper() or after[0].isdigit() or after[0] in '"“‘«¿¡('):
        return False
    room = width - len(line) > len(after.split(None, 1)[0]) + 1
    return width < NARROWEST or room
