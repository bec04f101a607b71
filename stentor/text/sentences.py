"""Cutting text into sentences and clauses, with abbreviations, decimals, initials, quotes, and CJK,
Arabic and Indic punctuation. Segments keep their place in the text, so that times and interruptions
can name characters."""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from stentor.text.endings import (
    CLAUSE_END,
    GROWING_CLAUSE_END,
    NOTHING,
    Around,
    cuts,
    is_joined,
)
from stentor.text.english.tables import DAYS, MONTHS
from stentor.text.length import spoken_length, spoken_lengths
from stentor.text.marks import (
    NO_MARKS,
    OTHER,
    PLACEHOLDERS,
    TURN,
    TextMarks,
    is_blank,
    masked,
    speakers,
)
from stentor.text.pauses import PAUSES
from stentor.text.punctuation import CLOSERS

_MARKS = {
    c: kind
    for kind, marks in (
        ("comma", ",،、，"),
        ("semicolon", ";:؛；："),
        ("dash", "—–-"),
        ("ellipsis", "…"),
    )
    for c in marks
}
_GAPS = {2: "paragraph", 3: "heading", 4: "scene"}
_OPENS_TURN = '"“«「『—–'
_CLOSES_TURN = '"”»」』'
_LONGEST_WORD = 40  # characters of a word or a number that stays whole in text without spaces
MAX_CHARS = 400  # of a segment, by default
GRANULARITIES = ("auto", "none", "sentence", "clause")
PARAGRAPH_LINES = 2  # line ends behind a paragraph. A heading has more
_PARAGRAPH = re.compile(r"\n[ \t\r\f\v]*\n\s*")
_WORD_CHAR = re.compile(r"\w")
_SIGN = re.compile(r"\S")
_SPACE = re.compile(r"\s")
_NO_PLACEHOLDER = re.compile(rf"[^{PLACEHOLDERS}]")
SHORTEST_PART = 6  # characters of what stands between dashes
SHORTEST_START = 20  # characters of a short start, and half as many behind it
START = 60
"""Spoken length of a short start, if its first sentence has a clause or an end so early."""
_DASH = re.compile(
    rf"(?<=[^\W\d_])[,.?!{re.escape(CLOSERS)}]{{0,3}}?"
    r"(?:\s*+—++|\s++(?:–|--++|(?<=[^\W\d_]{2}\s)-)(?=\s)|--++|\s?(?P<ellipsis>\.{3,}+|…++))"
    rf"[{re.escape(CLOSERS)}]{{0,3}}+\s*+(?=[\"'“‘(]?[^\W\d_])(?!(?:{'|'.join((*DAYS, *MONTHS))}))"
)
_PLACES = (  # where a long sentence is cut, the best first
    CLAUSE_END,
    re.compile(r"(?<!\d)\s(?!\d)"),
    _SPACE,
    re.compile(r"[/&?=_~+|;:,](?=\w)(?!\d{3}(?!\d))|[-.](?=[A-Za-z])"),
)


class Word(NamedTuple):
    """A word, with the marks beside it, as written: whole[start:end] but for marks around it."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Segment:
    """text == whole[start:end], without white space at its ends. gap: line ends behind it, from the
    second on (0: its paragraph goes on). 2 end a paragraph, 3 a heading, more a scene.

    speaker: the mark of who speaks it, where the text begins inside a turn and so without its mark.
    lead: what stood in front of the whole text and governs it. spaced: see `spaced_in`. gap_before:
    line ends before the first segment of a part of a text, where they end a paragraph. before,
    after: seconds of silence in the text there. None: the usual pause between segments. Where the
    text had marks of its own (markup.py), `start` and `end` are places in the text with them.
    words: those of `spoken`, where `Reading` has cut it. unread: pieces of it that the model leaves
    out. In a dialogue, voice: who speaks it (None: the request's own voice), turn: which turn it is
    of. `start` and `end` are then places in the text of that turn where turns are texts of their
    own.
    """

    text: str
    start: int
    end: int
    gap: int = 0
    speaker: str = ""
    lead: str = ""
    spaced: bool = field(default=False, compare=False)
    gap_before: int = field(default=0, compare=False)
    before: float = 0.0
    after: float | None = None
    words: tuple[Word, ...] = field(default=(), compare=False)
    unread: tuple[str, ...] = ()
    voice: str | None = None
    turn: int | None = None

    @property
    def ending(self) -> str:
        """Kind of end, one of the keys of `pauses.PAUSES`."""
        if self.gap:
            turn = self.gap == 2 and (self.text[0] in _OPENS_TURN or self.text[-1] in _CLOSES_TURN)
            if turn:
                return "turn"
            return _GAPS[min(self.gap, 4)]
        text = self.text.rstrip(CLOSERS)
        if text.endswith("..."):
            return "ellipsis"
        return _MARKS.get(text[-1:], "stop")

    def ending_before(self, following: Segment) -> str:
        """Return its kind of end, where more line ends may have arrived since it was cut."""
        if self.gap < following.gap_before and self.gap <= PARAGRAPH_LINES:
            return replace(self, gap=following.gap_before).ending
        return self.ending

    @property
    def spoken(self) -> str:
        """The text as the model is to get it."""
        return self.lead + self.transcript

    @property
    def transcript(self) -> str:
        """The text as a later piece continues it, without what governs it."""
        return self.speaker + self.text

    def moved(self, by: int) -> Segment:
        """The segment where its text stands behind `by` other characters."""
        words = tuple(Word(w.text, w.start + by, w.end + by) for w in self.words)
        return replace(self, start=self.start + by, end=self.end + by, words=words)

    def spaced_in(self, text: str, end: int) -> Segment:
        """The segment, and whether white space is between it and the one before, which ends at
        `end`."""
        spaced = re.search(r"\s", text[end : self.start]) is not None
        return replace(self, spaced=spaced)


def sentences(text: str, around: Around = NOTHING) -> list[Segment]:
    """All sentences of a text, in order. Together they hold every character that is not white
    space."""
    return [_trimmed(text, *span) for span in _spans(text, around)]


def _spans(text: str, around: Around) -> Iterator[tuple[int, int, int]]:
    """Where sentences begin and end, and their gaps. What has no words goes with the sentence
    before, or with what follows where it leads or is a speaker's mark."""
    last: tuple[int, int, int] | None = None
    start = scanned = 0
    for cut, gap in itertools.chain(cuts(text, around=around), [(len(text), 2)]):
        if start == scanned and not text[scanned:cut].strip():
            if gap and last:
                last = (*last[:2], gap)
        elif _WORD_CHAR.search(text, scanned, cut) is None:
            if last is None or (cut < len(text) and _leads(text, start, cut, last[2])):
                scanned = cut
                continue
            last = (last[0], cut, gap)
        else:
            if last is not None:
                yield last
            last = (start, cut, gap)
        start = scanned = cut
    if last is not None:
        yield last


def _leads(text: str, start: int, cut: int, gap: int) -> bool:
    """Whether signs go with what follows: behind a speaker's mark, or with a mark in a paragraph
    without words. gap: of the sentence before."""
    first = _SIGN.search(text, start)
    if first is not None and first[0] == TURN:
        return True
    return gap > 0 and OTHER in text[start:cut]


def split(
    text: str,
    max_chars: int,
    granularity: str,
    marks: TextMarks = NO_MARKS,
    speaker: str = "",
    dashes: bool = False,
    short_start: bool = False,
    around: Around = NOTHING,
) -> list[Segment]:
    """Segments to speak one after another, none longer than `max_chars` besides the mark of its
    speaker. That is the spoken length of so many letters: digits, signs and wide characters count
    more (text/length.py).

    granularity: "none" (one segment), "auto" (paragraphs, of which long ones are cut into sentences
    grouped up to `max_chars`), "sentence", "clause". marks: what the family wants kept together.
    speaker: who speaks where the text begins, as a mark. dashes: whether a segment ends behind a
    dash and an ellipsis too, for a model that makes no pause there. short_start: whether "auto"
    begins with a clause and takes at most twice as much text each time, for a stream of a model
    whose pieces are complete before they sound. around: what stands beside the text and is not cut.
    """
    trimmed = _trimmed(text, 0, len(text), 2)
    short = spoken_length(text) <= max_chars and not _PARAGRAPH.search(text.strip())
    starts_short = short_start and granularity == "auto"
    plain = masked(text, marks)
    if granularity == "none" or (granularity == "auto" and short and not starts_short):
        segments = [trimmed]
    else:
        uncut = sentences(plain, _masked_around(around, marks))
        segments = [p for s in uncut for p in _fit(plain, s, max_chars)] or [trimmed]
    if granularity == "clause":
        segments = [c for p in segments for c in _clauses(plain, p, 20)]
    if starts_short:
        segments[:1] = _start(plain, segments[0])
        segments = list(_grouped(plain, segments, max_chars, START))
    elif granularity == "auto":
        segments = list(_grouped(plain, segments, max_chars, max_chars))
    if dashes and granularity != "none":
        segments = [piece for p in segments for piece in _between_dashes(plain, p)]
    apart = _blank_turns_apart(text, segments, marks)
    return list(_with_speakers(text, apart, marks, speaker))


def _blank_turns_apart(
    text: str, segments: Iterable[Segment], marks: TextMarks
) -> Iterator[Segment]:
    """The segments, cut around turns of speakers in which there is nothing to speak."""
    starts = [m.start() for m in re.finditer(marks.speaker, text)]
    for p in segments:
        turns = itertools.pairwise([p.start, *(s for s in starts if p.start < s < p.end), p.end])
        for _, group in itertools.groupby(
            turns, lambda turn: is_blank(text[turn[0] : turn[1]], marks)
        ):
            same = list(group)
            part = _trimmed(text, same[0][0], same[-1][1], 0)
            yield replace(part, gap=p.gap, after=p.after) if same[-1][1] == p.end else part


def _with_speakers(
    text: str, segments: Iterable[Segment], marks: TextMarks, speaker: str
) -> Iterator[Segment]:
    """The segments with their real text, each with the mark of who speaks it if it begins without
    one."""
    for p in segments:
        segment = replace(_trimmed(text, p.start, p.end, p.gap), after=p.after)
        begins = re.match(marks.speaker, segment.text) is not None
        yield segment if begins else replace(segment, speaker=speaker)
        speaker = next(reversed(speakers(segment.text, marks)), speaker)


def _masked_around(around: Around, marks: TextMarks) -> Around:
    return Around(masked(around.before, marks), masked(around.behind, marks))


def ready(text: str, clause: bool, marks: TextMarks = NO_MARKS, before: str = "") -> int:
    """How many characters of a text that is still being written are whole sentences or, if
    `clause`, clauses.

    A full stop counts once it is known what follows it, because "3." may become "3.14" and "Dr." is
    followed by a name. before: what has been cut off in front of it.
    """
    text = masked(text, marks)
    around = _masked_around(Around(before), marks)
    last = max((cut for cut, _ in cuts(text, True, around)), default=0)
    if clause:
        clauses = [m.end() for m in GROWING_CLAUSE_END.finditer(text, last) if m.end() - last >= 20]
        last = max(clauses, default=last)
    if _WORD_CHAR.search(text[:last]):
        return last
    return 0


def _trimmed(text: str, start: int, end: int, gap: int) -> Segment:
    body = text[start:end]
    first = start + len(body) - len(body.lstrip())
    stripped = body.strip()
    return Segment(stripped, first, first + len(stripped), gap)


def _fit(text: str, segment: Segment, longest: int) -> Iterator[Segment]:
    """A sentence in parts of at most `longest` (spoken length): behind commas, else between words,
    else between the groups of an address, else in parts of the same length."""
    start = segment.start
    lengths = [0, *itertools.accumulate(spoken_lengths(segment.text))]
    while lengths[-1] - lengths[start - segment.start] > longest:
        cut = segment.start + _cut(segment.text, lengths, start - segment.start, longest)
        cut = _outside_marks(text, start, cut, segment.end, longest)
        part = _trimmed(text, start, cut, 0)
        if part.text:
            yield part
        start = cut
    last = _trimmed(text, start, segment.end, segment.gap)
    if last.text:
        yield last


def _cut(text: str, lengths: Sequence[int], start: int, longest: int) -> int:
    """Where to end a part of at most `longest` that begins at `start`. lengths: spoken, in front of
    each character."""
    end = max(start + 1, bisect_right(lengths, lengths[start] + longest) - 1)
    least = lengths[start] + longest // 4
    for places in _PLACES:
        cuts = [m.end() for m in places.finditer(text, start, end) if lengths[m.end()] > least]
        if cuts:
            return cuts[-1]
    horizon = min(len(text), end + 10 * longest)  # a bounded look ahead keeps the work linear
    space = _SPACE.search(text, end, horizon)
    if space is not None:
        horizon = space.start()
    length = lengths[horizon] - lengths[start]
    part = ceil(length / ceil(length / longest))
    cut = max(start + 1, bisect_right(lengths, lengths[start] + part) - 1)
    return _between_signs(text, start, cut)


def _between_signs(text: str, start: int, cut: int) -> int:
    """The nearest place up to `cut` that is inside no number, Latin word or sign with its marks.
    What is too long for that is cut behind a sign."""
    for at in range(cut, max(start, cut - _LONGEST_WORD), -1):
        if at >= len(text) or not is_joined(text, at):
            return at
    while cut < len(text) and unicodedata.category(text[cut])[0] == "M":
        cut += 1
    return cut


def _outside_marks(text: str, start: int, cut: int, end: int, longest: int) -> int:
    """`cut`, or the place before the family's mark that it would cut or leave behind. start, end:
    of what is cut."""
    if text[cut - 1] not in PLACEHOLDERS:
        return cut
    before = len(text[start:cut].rstrip(PLACEHOLDERS))
    if before:
        return start + before
    words = _NO_PLACEHOLDER.search(text, cut, end)  # the mark itself is too long
    if words is None:
        return end
    longer = min(end, words.start() + longest)
    return start + len(text[start:longer].rstrip(PLACEHOLDERS))


def _clauses(text: str, segment: Segment, least: int) -> Iterator[Segment]:
    start = segment.start
    for m in CLAUSE_END.finditer(segment.text):
        cut = segment.start + m.end()
        if cut - start >= least and segment.end - cut >= least // 2:
            yield _trimmed(text, start, cut, 0)
            start = cut
    yield _trimmed(text, start, segment.end, segment.gap)


def _start(text: str, sentence: Segment) -> Iterator[Segment]:
    """A sentence, cut behind its first clause where it is long."""
    if spoken_length(sentence.text) > START:
        for m in CLAUSE_END.finditer(sentence.text):
            cut = sentence.start + m.end()
            if m.end() >= SHORTEST_START and sentence.end - cut >= SHORTEST_START // 2:
                yield _trimmed(text, sentence.start, cut, 0)
                yield _trimmed(text, cut, sentence.end, sentence.gap)
                return
    yield sentence


def _between_dashes(text: str, segment: Segment) -> Iterator[Segment]:
    """A segment in parts that end behind its dashes and ellipses, with the silence that is due
    there."""
    start = segment.start
    for m in _DASH.finditer(segment.text):
        cut = segment.start + m.end()
        if min(cut - start, segment.end - cut) < SHORTEST_PART:
            continue
        kind = "hesitation" if m["ellipsis"] else "aside"
        yield replace(_trimmed(text, start, cut, 0), after=PAUSES[kind])
        start = cut
    yield _trimmed(text, start, segment.end, segment.gap)


def _grouped(text: str, segments: list[Segment], max_chars: int, first: int) -> Iterator[Segment]:
    """Neighbouring sentences of one paragraph together, up to `max_chars` characters. The first
    group has at most `first`, and no other more than twice as many as that before it."""
    group: Segment | None = None
    length = 0
    limit = first
    for p in segments:
        following = spoken_length(text[p.start if group is None else group.end : p.end])
        if group is not None and not group.gap and length + following <= limit:
            group = _trimmed(text, group.start, p.end, p.gap)
            length += following
            continue
        if group is not None:
            yield group
            limit = min(max_chars, 2 * max(first, length))
        group = p
        length = spoken_length(p.text)
    if group is not None:
        yield group
