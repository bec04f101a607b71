"""Cutting text into sentences and clauses, with abbreviations, decimals, initials, quotes, and CJK, Arabic and Indic
punctuation. Segments keep their place in the text, so that times and interruptions can name characters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stentor.text.marks import NO_MARKS, PLACEHOLDERS, TURN, TextMarks, is_blank, masked, speakers

END_WIDE = "。！？｡।॥۔؟…‼⁇⁈⁉"  # end a sentence whatever follows
CLOSERS = "\"'”’»」』】）)]›〉》"
CLAUSE = ",;:，、；：،؛—–"
ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev hon st mt ft sr jr gen col capt lt sgt cpl maj cmdr adm gov sen rep pres supt "
    "vs etc cf al approx dept est fig figs vol vols no nos p pp ed eds inc ltd co corp bros u.s u.k u.n e.g i.e a.m "
    "p.m jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun "
    "ave blvd rd ln hwy sq ph.d m.d b.a m.a b.sc m.sc bzw z.b d.h usw ca nr str hr fr bd sra srta ud uds mme "
    "mlle".split()
)
# these do end a sentence when a capital follows: "at 5 p.m. She left."
MAY_END = frozenset("etc inc ltd co corp jr sr u.s u.k u.n a.m p.m ph.d m.d ave blvd rd st usw".split())
STARTERS = frozenset(
    "the a an he she it they we you i this that these those there in on at but and so then when if what who how why "
    "my his her its our their no yes after before as for".split()
)
MAX_CHARS = 400  # of a segment, by default
GRANULARITIES = ("auto", "none", "sentence", "clause")
NEAR = 60  # characters on either side that are looked at to decide whether a mark ends a sentence
_TERMINATOR = re.compile(rf"[.!?{END_WIDE}]+[{re.escape(CLOSERS)}]*")
_PARAGRAPH = re.compile(r"\n[ \t\r\f\v]*\n\s*")
_WORD_BEFORE = re.compile(r"([^\W\d_](?:[^\W\d_]|\.(?=[^\W\d_]))*)$")
_WORD_CHAR = re.compile(r"\w")
_TURN = re.compile(rf"(?<!{TURN}){TURN}")


class Word(NamedTuple):
    """A word, with the marks beside it, as the text was given: whole[start:end] but for marks around it."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Segment:
    """text == whole[start:end], without white space at its ends. `paragraph`: a blank line follows.

    speaker: the mark of who speaks it, where the text begins inside a turn and so without its mark. before, after:
    seconds of silence that the text asks for there. None: the usual pause between segments. Where the text had marks
    of its own (markup.py), `start` and `end` are places in the text with them. words: those of `spoken`, where
    `Reading` has cut it.
    """

    text: str
    start: int
    end: int
    paragraph: bool = False
    speaker: str = ""
    before: float = 0.0
    after: float | None = None
    words: tuple[Word, ...] = field(default=(), compare=False)

    @property
    def spoken(self) -> str:
        """The text as the model is to get it."""
        return self.speaker + self.text


def sentences(text: str) -> list[Segment]:
    """All sentences of a text, in order. Together they hold every character that is not white space."""
    found: list[Segment] = []
    start = 0
    for cut, paragraph in _cuts(text):
        start = _append(found, text, start, cut, paragraph)
    _append(found, text, start, len(text), True)
    return found


def split(text: str, max_chars: int, granularity: str, marks: TextMarks = NO_MARKS, speaker: str = "") -> list[Segment]:
    """Segments to speak one after another, none longer than `max_chars` characters besides the mark of its speaker.

    granularity: "none" (one segment), "auto" (one segment if the text is short, else sentences grouped up to
    `max_chars`), "sentence", "clause". marks: what the family wants kept together. speaker: who speaks where the text
    begins, as a mark.
    """
    whole = _trimmed(text, 0, len(text), True)
    if granularity == "none" or (granularity == "auto" and len(text) <= max_chars):
        return list(_with_speakers(text, _blank_turns_apart(text, [whole], marks), marks, speaker))
    plain = masked(text, marks)
    segments = [p for s in sentences(plain) for p in _fit(plain, s, max_chars)]
    if granularity == "clause":
        segments = [c for p in segments for c in _clauses(plain, p, 20)]
    if granularity == "auto":
        segments = list(_grouped(plain, segments, max_chars))
    return list(_with_speakers(text, _blank_turns_apart(text, segments or [whole], marks), marks, speaker))


def _blank_turns_apart(text: str, segments: Iterable[Segment], marks: TextMarks) -> Iterator[Segment]:
    """The segments, cut around turns of speakers in which there is nothing to speak."""
    starts = [m.start() for m in re.finditer(marks.speaker, text)]
    for p in segments:
        turns = itertools.pairwise([p.start, *(s for s in starts if p.start < s < p.end), p.end])
        for _, group in itertools.groupby(turns, lambda turn: is_blank(text[turn[0] : turn[1]], marks)):
            same = list(group)
            yield _trimmed(text, same[0][0], same[-1][1], p.paragraph and same[-1][1] == p.end)


def _with_speakers(text: str, segments: Iterable[Segment], marks: TextMarks, speaker: str) -> Iterator[Segment]:
    """The segments with their real text, each with the mark of who speaks it if it begins without one."""
    for p in segments:
        own = _trimmed(text, p.start, p.end, p.paragraph)
        begins = re.match(marks.speaker, own.text) is not None
        yield own if begins else replace(own, speaker=speaker)
        speaker = next(reversed(speakers(own.text, marks)), speaker)


def ready(text: str, clause: bool, marks: TextMarks = NO_MARKS) -> int:
    """How many characters of a text that is still being written are whole sentences or, if `clause`, clauses.

    A full stop counts once it is known what follows it, because "3." may become "3.14" and "Dr." is followed by a name.
    """
    text = masked(text, marks)
    cuts = [cut for cut, _ in _cuts(text) if cut < len(text.rstrip()) or text[cut - 1] in END_WIDE + CLOSERS]
    last = max(cuts, default=0)
    if clause:
        tail = text[last:]
        clauses = [m.end() for m in re.finditer(rf"[{CLAUSE}](?=\s\S)|[，、；：]", tail) if m.end() >= 20]
        last += max(clauses, default=0)
    return last if _WORD_CHAR.search(text[:last]) else 0


def _cuts(text: str) -> Iterator[tuple[int, bool]]:
    """Positions after which a sentence has ended, and whether a paragraph has."""
    breaks = [(m.start(), True) for m in _PARAGRAPH.finditer(text)]
    stops = [(m.end(), False) for m in _TERMINATOR.finditer(text) if _ends(text, m)]
    turns = [(m.start(), False) for m in _TURN.finditer(text)]
    yield from sorted(breaks + stops + turns)


def _ends(text: str, mark: re.Match[str]) -> bool:
    run = mark.group().rstrip(CLOSERS)
    after = text[mark.end() : mark.end() + NEAR]
    if any(c in END_WIDE for c in run) and run[-1] != "…":
        return True
    if not after[:1].isspace():
        return after == "" or (run[-1] in "!?" and not after[:1].isascii())
    following = after.lstrip()
    if not following or following[0].islower():
        return not following or "\n\n" in after[:4]
    if run != ".":
        return True
    return _dot_ends(text[max(0, mark.start() - NEAR) : mark.start()], following)


def _dot_ends(before: str, following: str) -> bool:
    """Whether a single full stop between `before` and `following` ends a sentence."""
    word = _WORD_BEFORE.search(before)
    if word is None:
        line = before.rsplit("\n", 1)[-1].strip()
        return not (line.isdigit() and len(line) <= 3)  # "1. First item"
    name = word.group(1)
    first = re.match(r"\w+", following)
    starter = first is not None and first.group().lower() in STARTERS
    if len(name) == 1 and name.isupper() and name != "I":
        return starter  # an initial: "J. Smith"
    if name.lower() in MAY_END:
        return starter
    return name.lower() not in ABBREVIATIONS


def _append(found: list[Segment], text: str, start: int, end: int, paragraph: bool) -> int:
    """Add text[start:end] as a sentence, or to the one before if it has no words. Returns the next start."""
    segment = _trimmed(text, start, end, paragraph)
    if not segment.text:
        if paragraph and found:
            found[-1] = _trimmed(text, found[-1].start, found[-1].end, True)
    elif _WORD_CHAR.search(segment.text) is None:
        if segment.text[0] == TURN and end < len(text):
            return start  # a speaker's mark goes with what follows
        if found:
            found[-1] = _trimmed(text, found[-1].start, segment.end, paragraph)
        else:
            return start  # leading marks go with what follows
    else:
        found.append(segment)
    return end


def _trimmed(text: str, start: int, end: int, paragraph: bool) -> Segment:
    body = text[start:end]
    left = len(body) - len(body.lstrip())
    stripped = body.strip()
    return Segment(stripped, start + left, start + left + len(stripped), paragraph)


def _fit(text: str, segment: Segment, max_chars: int) -> Iterator[Segment]:
    """A sentence in parts of at most `max_chars` characters: at clauses, else at spaces, else anywhere."""
    start = segment.start
    while segment.end - start > max_chars:
        window = text[start : start + max_chars]
        marks = [m.end() for m in re.finditer(rf"[{CLAUSE}](?=\s)|[，、；：]", window)]
        spaces = [m.start() for m in re.finditer(r"\s", window)]
        cut = next((max(c) for c in (marks, spaces) if c and max(c) > max_chars // 4), max_chars)
        cut = _outside_marks(text[start : segment.end], cut, max_chars)
        part = _trimmed(text, start, start + cut, False)
        if part.text:
            yield part
        start += cut
    last = _trimmed(text, start, segment.end, segment.paragraph)
    if last.text:
        yield last


def _outside_marks(text: str, cut: int, max_chars: int) -> int:
    """`cut`, or the place before the family's mark that it would cut or leave behind."""
    if text[cut - 1] not in PLACEHOLDERS:
        return cut
    if before := len(text[:cut].rstrip(PLACEHOLDERS)):
        return before
    words = re.search(rf"[^{PLACEHOLDERS}]", text[cut:])  # the mark itself is too long
    return min(len(text), cut + words.start() + max_chars) if words else len(text)


def _clauses(text: str, segment: Segment, least: int) -> Iterator[Segment]:
    start = segment.start
    for m in re.finditer(rf"[{CLAUSE}](?=\s)|[，、；：]", segment.text):
        cut = segment.start + m.end()
        if cut - start >= least and segment.end - cut >= least // 2:
            yield _trimmed(text, start, cut, False)
            start = cut
    yield _trimmed(text, start, segment.end, segment.paragraph)


def _grouped(text: str, segments: list[Segment], max_chars: int) -> Iterator[Segment]:
    """Neighbouring sentences of one paragraph together, up to `max_chars` characters."""
    group: Segment | None = None
    for p in segments:
        if group is not None and not group.paragraph and p.end - group.start <= max_chars:
            group = _trimmed(text, group.start, p.end, p.paragraph)
            continue
        if group is not None:
            yield group
        group = p
    if group is not None:
        yield group
