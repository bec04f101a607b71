"""Text of papers and scans: characters that nobody hears, LaTeX, marks of notes, and ends of
lines."""

from __future__ import annotations

import re
import unicodedata

from stentor.text.cleanup.draft import COMMA, HEADING, LINE, SCENE, STOP, Draft, Writer

_JOINERS = "\u200c\u200d"  # say how letters of some scripts are joined
_INVISIBLE = (  # all others of category Cf, as tests/text/test_cleanup.py counts them
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U00013438\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001"
    "\U000e0020-\U000e007f"
)
_DROPPED = re.compile(
    rf"[\x00\x7f-\x84\x86-\x9f{_INVISIBLE}]|(?<=[ -\u024f])[{_JOINERS}]+(?=[ -\u024f]|$)|^[{_JOINERS}]+"
)
_CUT_BY_SOFT_HYPHEN = re.compile(r"(?<=\w)\u00ad[ \t]*\r?\n[ \t]*(?=\w)")
_LINE_ENDS = re.compile(r"\r\n?|[\x85\u2028]")
_PARAGRAPH_ENDS = re.compile("\u2029")
_LIGATURES = re.compile(r"[\ufb00-\ufb06\ufb13-\ufb17]")
_LETTER = r"[^\W\d_]"
_APOSTROPHES = re.compile(
    rf"(?<={_LETTER})[\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`](?={_LETTER})"
)
_ELISIONS = re.compile(
    r"(?<![\w'’])[\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`‘](?=(?:twas|tis|twere|twill|twould|twixt|til|till|em|bout|cause|"
    r"cuz|neath|gainst|nuff|tude|round|ere|kay)\b)",
    re.IGNORECASE,
)
_ANY = re.compile(
    rf"[\r\x00\x7f-\x9f\u2028\u2029\ufb00-\ufb17\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`‘{_JOINERS}{_INVISIBLE}]"
)


def plain_characters(draft: Draft) -> Draft:
    """Without characters of category Cf and NULs, with plain letters for ligatures and ’ inside
    words."""
    if not _ANY.search(draft.text):
        return draft
    draft = (
        draft.sub(_CUT_BY_SOFT_HYPHEN, "")
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
    re.compile(r"(?<=[\w.,;:!?”\"’)])[†‡]+|[†‡]+(?=\w)"),
    re.compile(
        r"[ \t]?\[(?:citation needed|clarification needed|better source needed|note \d{1,3})\]",
        re.IGNORECASE,
    ),
)


_PLAIN = rf"[^\W\d_{_RAISED}]"
_RAISED_NUMBER = re.compile(
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


NARROWEST = 40
"""Characters of a line of prose that is wrapped. What is narrower is a list, an address or a
poem."""
HEADING_CHARS = 70
_CUT_WORD = re.compile(
    r"([^\W\d_]{2,40})[-‐¬][ \t]*\n[ \t]*([^\W\d_]{2,40})(?=[\s.,;:!?'’\"”)\]—–]|$)"
)
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_CUT_RANGE = re.compile(r"(?<=[^\W_])[-‐][ \t]*\n[ \t]*(?=[^\W_])")
_SCENE = re.compile(r"^[ \t]*(?:(?:[*#~•·⁂❦◆◇§=_-][ \t]*){3,}|⁂|❦|#|\*)[ \t]*$", re.MULTILINE)
_BLOCK = re.compile(r"\S[^\n]*(?:\n[ \t]*\S[^\n]*)*")
_BULLET = re.compile(r"(?<![ \t])[ \t]*+(?:[•◦▪‣·–—*+-][ \t]+(?=\S))")
_ITEM = re.compile(
    r"(?<![ \t])[ \t]*+(?:[•◦▪‣·*+–-]|\d{1,3}[.)]|\(?[a-zA-Z\d]{1,2}\)|[IVX]{1,5}\.)[ \t]++\S"
)
_OPEN_END = re.compile(
    r"(?:[,;:—–-]|\b(?:a|an|the|and|or|but|nor|of|to|in|on|at|by|for|from|with|as|than|that|which|who|is|are|was|were|"
    r"be|been|his|her|its|their|my|your|our|this|these|those|into|not|no|if|when|while|because|said|mr|mrs|ms|dr|st)\.?)$",
    re.IGNORECASE,
)
_STREET = re.compile(r"^\D*+\d.* (?:St|Ave|Rd|Blvd|Dr|Ln|Hwy|Sq|Ct|Pl)\.$")  # of an address
_END = re.compile(r"[.!?:;,…。！？、，；：।؟][\"'”’»)\]」』*_]*$")


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

    whole = first + second
    hyphened = f"{first}-{second}"
    if second[0].isupper() or hyphened in written:
        return hyphened
    if whole in written or is_word(whole):
        return whole
    if is_word(first) and is_word(second):
        return hyphened
    return whole


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
        and len(line) <= HEADING_CHARS
        and not _END.search(line)
        and not _OPEN_END.search(line)
    )
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
    room = width - len(line) > len(after.split(None, 1)[0]) + 1
    return width < NARROWEST or room
