"""Leave out what stands around a text: numbers and times of subtitles, front matter, page numbers,
running headers."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

from stentor.text.draft import Draft, Writer
from stentor.text.patterns import lazy

_TIME = r"(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}"
_CUE_TIME = r"(?:\d{1,3}:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
_CUE = lazy(
    rf"(?:(?<!\n)\n++)?^(?:\d{{1,6}}[ \t]*+\n)?[ \t]*+{_CUE_TIME}[ \t]*+-->[ \t]*+{_CUE_TIME}[^\n]*+"
    r"(?:\n|\Z)",
    re.MULTILINE,
)
_SHORT_CUE = lazy(
    r"(?:(?<!\n)\n++)?^\d{1,2}:\d{2}:\d{2}[.,]\d{1,3},\d{1,2}:\d{2}:\d{2}[.,]\d{1,3}[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)
"""Times of a subtitle in an SBV file."""
_FRAMES = lazy(r"^\{\d{1,7}\}\{\d{1,7}\}", re.MULTILINE)
"""Frames of a subtitle in a MicroDVD file."""
_SCRIPT_EVENT = lazy(r"^Dialogue:(?:[^,\n]*,){9}", re.MULTILINE)
"""Fields in front of the text of a subtitle in an SSA or ASS file."""
_SCRIPT_FACT = lazy(
    r"^(?:\[[A-Za-z0-9+ ]{1,30}\]|(?:;|!:|Format:|Style:|Comment:|[A-Z][A-Za-z ]{1,30}:)[^\n]*)[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)
_SCRIPT_LINE_END = lazy(r"\\[Nn]")
_CAPTIONS = lazy(r"\A\s*WEBVTT\b[^\n]*(?:\n[^\n]*\S[^\n]*)*")
_CAPTION_BLOCK = lazy(r"^(?:NOTE|STYLE|REGION)\b[^\n]*(?:\n[^\n]*\S[^\n]*)*\n?", re.MULTILINE)
_CAPTION_NAME = lazy(rf"(?:^|\n)[ \t]*\n[^\n]+(?=\n[ \t]*{_TIME}[ \t]*-->)")
_CAPTION_TAG = lazy(
    rf"<{_TIME}>|</?(?:[cv]|lang)(?:\.[\w.]+)?(?:\s[^<>\n]{{0,80}})?>|\{{\\[^{{}}\n]{{1,40}}\}}"
)
_LYRICS_TIME = r"\[(?:\d{1,2}:)?\d{1,3}:\d{2}(?:[.:]\d{1,3})?\]"
_LYRICS = lazy(rf"^[ \t]*(?:{_LYRICS_TIME})+[ \t]*", re.MULTILINE)
_EXACT_TIME = lazy(r"\A\s*\[\d{1,3}:\d{2}:\d{2}\.\d{1,3}\]")
_LYRICS_WORD = lazy(r"(?:(?<![ \t])[ \t]++)?<\d{1,3}:\d{2}[.:]\d{1,3}>[ \t]*+")
_LYRICS_FACT = lazy(
    r"^[ \t]*\[(?:ar|ti|al|au|by|offset|re|ve|length|la|id|lr|tool):[^\]\n]*\][ \t]*(?:\n|$)",
    re.MULTILINE | re.IGNORECASE,
)
_FRONT_MATTER = lazy(r"\A\s*(---|\+\+\+)[ \t]*\n((?:[^\n]*\n){1,200}?)(?:\1|\.\.\.)[ \t]*(?:\n|$)")
_FACT = lazy(r"\A[\w.\"'-]+[ \t]*[:=](?:[ \t]|$)")
_NO_PROSE = lazy(
    r"\A(?:[ \t]*+(?:#.*|-[ \t].*|-|[\]}],?)?$|[ \t]++\S.*$|[\w.\"'-]++[ \t]*+[:=](?:[ \t].*)?$)"
)
_PAGE_NUMBER = lazy(
    r"\A(?:(?:[-–—][ \t]?)(\d{1,4})(?:[ \t]?[-–—])|"
    r"\[?[Pp](?:age|AGE)[ \t]+(\d{1,4})(?:[ \t]*(?:of|/)[ \t]*\d{1,4})?\]?"
    r"|(\d{1,4})(?:[ \t]*+(?:of|/)[ \t]*+\d{1,4})?)"
)
_SIGN = lazy(r"\S")
_LINE = lazy(r"[^\n]*")
_DIGITS = lazy(r"\d+")
_ENDED = lazy(r"[.!?:;…。！？][\"'”’»)\]]*$")
_NUMBER_IN_FRONT = lazy(r"\A\d{1,4}(?:\s*+[|•–—-]\s*+|\s{2,}+)")
_NUMBER_BEHIND = lazy(
    r"(?:(?<!\s)\s++)?(?:[|•–—-]\s*+|(?<=\s)[Pp]age\s++|(?<=\s\s))\d{1,4}(?:\s?(?:of|/)\s?\d{1,4})?\Z"
)
HEADER_CHARS = 70
REPEATS = 3
"""A running header stands in a text so often."""


def without_layout(draft: Draft) -> Draft:
    """Without what a file or a page has around its text."""
    text = draft.text
    if "-->" in text:
        draft = _without_cues(draft)
    if "Dialogue:" in text:
        draft = _without_script_fields(draft)
    draft = draft.sub(_SHORT_CUE, lambda m: "\n" if m.start() else "")
    if "}{" in text and len(_FRAMES.findall(text)) > 1:
        draft = draft.sub(_FRAMES, "")
    if "[" in text:
        draft = _without_lyrics_times(draft)
    if text.lstrip()[:3] in ("---", "+++"):
        draft = _without_front_matter(draft)
    if any(c.isdecimal() for c in text) and "\n" in text:
        draft = _without_page_ends(draft)
    return draft


def _without_cues(draft: Draft) -> Draft:
    """Subtitles as the text that they show, which goes on from one to the next."""
    if not _CUE.search(draft.text):
        return draft
    if _CAPTIONS.match(draft.text):
        draft = draft.sub(_CAPTIONS, "").sub(_CAPTION_BLOCK, "").sub(_CAPTION_NAME, "\n")
    return draft.sub(_CUE, lambda m: "\n" if m.start() else "").sub(_CAPTION_TAG, "")


def _without_script_fields(draft: Draft) -> Draft:
    """Subtitles of SSA and ASS as the text that they show."""
    if not _SCRIPT_EVENT.search(draft.text):
        return draft
    if "[Events]" in draft.text:
        draft = draft.sub(_SCRIPT_FACT, lambda m: m[0] if m[0].startswith("Dialogue:") else "")
    draft = draft.sub(_SCRIPT_EVENT, "").sub(_CAPTION_TAG, "")
    return draft.sub(_SCRIPT_LINE_END, "\n")


def _without_lyrics_times(draft: Draft) -> Draft:
    has_times = len(_LYRICS.findall(draft.text)) > 1 or _EXACT_TIME.match(draft.text)
    if not has_times:
        return draft
    return draft.sub(_LYRICS_FACT, "").sub(_LYRICS, "").sub(_LYRICS_WORD, " ")


def _without_front_matter(draft: Draft) -> Draft:
    block = _FRONT_MATTER.match(draft.text)
    if block is None:
        return draft
    lines = block[2].splitlines()
    if not any(map(_FACT.match, lines)) or not all(map(_NO_PROSE.match, lines)):
        return draft
    return draft.sub(_FRONT_MATTER, "")


def _without_page_ends(draft: Draft) -> Draft:
    """Without page numbers and running headers, where a page ends. A sentence goes on behind
    them."""
    lines = [m.span() for m in _LINE.finditer(draft.text) if m.end() > m.start()]
    rows = [draft.text[start:end].strip() for start, end in lines]
    numbers = _page_numbers(rows)
    ends = numbers | _numbered_headers(rows) | _headers_beside(rows, numbers)
    if not ends or len(ends) == sum(map(bool, rows)):
        return draft
    return _without_lines(draft, [lines[at] for at in sorted(ends)])


def _without_lines(draft: Draft, spans: list[tuple[int, int]]) -> Draft:
    """Without these lines. What stood on either side is one paragraph where a sentence goes on."""
    text = draft.text
    out = Writer(draft)
    for start, end in spans:
        before = text[out.at : start].rstrip()
        behind = _SIGN.search(text, end)
        following = behind.start() if behind else len(text)
        if not before:
            out.skip_to(following)
            continue
        out.keep_to(out.at + len(before))
        goes_on = text[following : following + 1].islower() and not _ENDED.search(before[-9:])
        out.write("\n" if goes_on else "\n\n", following)
    return out.done()


def _page_numbers(lines: list[str]) -> set[int]:
    """Find the lines that hold the number of a page: labelled ones, and bare ones that count
    pages."""
    marked = set()
    bare: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        m = _PAGE_NUMBER.fullmatch(line)
        if m is None:
            continue
        if m[3] is None:
            marked.add(at)
        else:
            bare.append((at, int(m[3])))
    if not _counts_pages(lines, bare):
        return marked
    return marked | {at for at, _ in bare}


def _counts_pages(lines: list[str], bare: list[tuple[int, int]]) -> bool:
    """Whether bare numbers count pages: each is the next, and a sentence goes on across one of
    them."""
    numbers = [number for _, number in bare]
    if len(numbers) < 2 or any(b - a != 1 for a, b in itertools.pairwise(numbers)):
        return False
    return any(_goes_on(lines, at) for at, _ in bare)


def _goes_on(lines: list[str], at: int) -> bool:
    """Whether a sentence goes on from the line with words before to the one behind."""
    before = next((lines[i] for i in reversed(range(at)) if lines[i]), "")
    behind = next((lines[i] for i in range(at + 1, len(lines)) if lines[i]), "")
    return bool(before) and behind[:1].islower() and _ENDED.search(before) is None


def _numbered_headers(lines: list[str]) -> set[int]:
    """Find running headers: the same words again and again, with the numbers of pages."""
    places: dict[str, list[int]] = defaultdict(list)
    for at, line in enumerate(lines):
        if name := _header_name(line):
            places[name].append(at)
    headers = set()
    for lines_of_name in places.values():
        numbers = [int(_DIGITS.findall(lines[at])[-1]) for at in lines_of_name]
        if len(numbers) >= REPEATS and all(a < b for a, b in itertools.pairwise(numbers)):
            headers |= set(lines_of_name)
    return headers


def _headers_beside(lines: list[str], page_numbers: set[int]) -> set[int]:
    """Find running headers: the same short line again and again beside the number of a page."""
    places: dict[str, list[int]] = defaultdict(list)
    written = [at for at, line in enumerate(lines) if line]
    for here, following in itertools.pairwise(written):
        for at, beside in ((here, following), (following, here)):
            short = len(lines[at]) <= HEADER_CHARS and _ENDED.search(lines[at]) is None
            if beside in page_numbers and at not in page_numbers and short:
                places[lines[at].casefold()].append(at)
    return {at for same in places.values() if len(set(same)) > 1 for at in same}


def _header_name(line: str) -> str:
    """The words of a line that may be a header: short, with a number at its beginning or end, and
    no sentence."""
    if not line or len(line) > HEADER_CHARS or _ENDED.search(line):
        return ""
    name = _NUMBER_BEHIND.sub("", _NUMBER_IN_FRONT.sub("", line))
    if name == line or not any(c.isalpha() for c in name):
        return ""
    return name.casefold()
