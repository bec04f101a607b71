"""Text to the segments that are spoken one after another, with marks that people write into it for
a voice: pauses, phonemes, a small part of SSML, and a lexicon's words.

    Wait. [pause 600ms] [pause:1.5] [PAUSE 1.0] [pause] Done.       [Worcester](/wˈʊstəɹ/)
    <break time="600ms"/>  <sub alias="...">  <say-as interpret-as="characters">  <phoneme ph="...">
    <p>  <s>

This is no XML parser: tags are found by their form, in one pass. Entities other than the five of
XML and numbers stay as they are, declarations are skipped, and nothing is fetched or expanded. Tags
of another name are skipped. A tag that is not closed is skipped too, so malformed markup loses no
words. What a page or a chat has besides is read before, by `cleanup`.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stentor.errors import InvalidRequest
from stentor.text.cleanup import STEPS, cleaned
from stentor.text.cleanup.draft import Draft
from stentor.text.lexicon import Lexicon
from stentor.text.marks import (
    NEVER,
    NO_MARKS,
    PHONEMES,
    Held,
    TextMarks,
    as_prefix,
    find_lead,
    speakers,
)
from stentor.text.pauses import LONGEST_PAUSE, MOST_SILENCE
from stentor.text.sentences import Segment, Word, split
from stentor.text.trace import WORD

_NAMES = (
    "speak break sub say-as phoneme p s voice prosody emphasis lang audio mark desc par seq media metadata meta w "
    "token lexicon lookup"
).split()
_STRENGTHS = {
    "none": 0.0,
    "x-weak": 0.1,
    "weak": 0.2,
    "medium": 0.35,
    "strong": 0.7,
    "x-strong": 1.2,
}
_LENGTHS = {"short": "250ms", "medium": "500ms", "long": "1s"}
_TOKEN = re.compile(
    r"<!--[^<>]*-->|<[!?][^<>]*>"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][A-Za-z0-9_:.-]*)(?P<attributes>\s[^<>]*?)?(?P<empty>/?)>"
    r"|(?P<silence>\[(?i:(?P<length>short|medium|long)\s)?(?i:pause|silence|break)"
    r"(?:\s*+[:=]?\s*+(?P<pause>\d{1,6}(?:\.\d{1,6})?)\s*(?:(?P<ms>(?i:ms|milliseconds?))|(?i:s|secs?|seconds?))?)?\])"
    r"|(?:\[\[slnc |<\|pause:)(?P<slnc>\d{1,6})(?:ms)?(?:\]\]|\|>)|<#(?P<seconds>\d{1,3}(?:\.\d{1,6})?)#>"
    rf"|{PHONEMES}"
    r"|&(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});"
)
_TAG = re.compile(rf"</?(?:{'|'.join(_NAMES)})(?:\s[^<>]*)?/?>")
_ATTRIBUTE = re.compile(r"(?<![\w:-])([\w:-]++)\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)')")
_SECONDS = re.compile(r"(?<!\s)\s*+\+?(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})\s*+(ms|s)\s*+")
_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_DATE_ORDER = {"mdy": (2, 0, 1), "dmy": (2, 1, 0), "ymd": (0, 1, 2)}
_WITH_CONTENT = ("sub", "say-as", "phoneme")


class Place(NamedTuple):
    """A chunk of a part begins at `here`, and stands for original[start:end]. same: it is that
    text, unchanged."""

    here: int
    start: int
    end: int
    same: bool


@dataclass(frozen=True)
class Part:
    """A text without marks, and the seconds of silence behind it (None: the usual pause, as it ends
    the text).

    places: where each chunk of it begins, ascending, and where what it stands for begins and ends
    in the original text.
    """

    text: str
    pause: float | None
    places: tuple[Place, ...]

    def origin(self, place: int) -> int:
        """The border in the original text for one between two characters of this text. It
        never goes back as `place` goes on: what says something else than it stands for is passed in
        proportion."""
        chunk = self.places[at := self._chunk(place)]
        return chunk.start + (place - chunk.here) * (chunk.end - chunk.start) // (
            self._until(at) - chunk.here
        )

    def extent(self, start: int, end: int) -> tuple[int, int]:
        """Where in the original text text[start:end] begins and ends. The extents of parts of
        a text that follow each other do so too."""
        last = self._chunk(end - 1)
        return self.origin(start), self.places[last].end if end == self._until(
            last
        ) else self.origin(end)

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Where in the text that was given stands what text[start:end] says. Of a chunk that says
        something else it is all that the chunk stands for."""
        first = self.places[self._chunk(start)]
        last = self.places[self._chunk(end - 1)]
        begin, stop = self.extent(start, end)
        return begin if first.same else first.start, stop if last.same else last.end

    def unchanged(self, start: int, end: int) -> bool:
        """Whether text[start:end] is one piece of the original text."""
        first = self._chunk(start)
        return first == self._chunk(end - 1) and self.places[first].same

    def _chunk(self, place: int) -> int:
        return max(0, bisect_right(self.places, place, key=lambda p: p.here) - 1)

    def _until(self, at: int) -> int:
        """Where in this text a chunk ends."""
        if at + 1 < len(self.places):
            return self.places[at + 1].here
        return len(self.text)


def parts(text: str, phonemes: bool, lexicon: Lexicon | None = None) -> list[Part]:
    """A text between its pauses. phonemes: the family reads them, as `[word](/phonemes/)` without
    white space.

    InvalidRequest("text") for pauses of more than MOST_SILENCE seconds together.
    """
    pieces = _Reader(text, phonemes, lexicon).read()
    silence = sum(p.pause or 0.0 for p in pieces)
    if silence > MOST_SILENCE:
        raise InvalidRequest(
            "text",
            f"has pauses of {silence:.0f} s together, at most {MOST_SILENCE:.0f} s are allowed",
        )
    return pieces


def shown(text: str) -> str:
    """The text of a part as a reader sees it: without phonemes."""
    if "[" not in text:
        return text
    return _TOKEN.sub(lambda m: m["word"].replace("_", " ") if m["word"] else m[0], text)


@dataclass
class _Open:
    """A tag whose content is read in another way. start: how many chunks stand before its
    content."""

    name: str
    attributes: dict[str, str]
    start: int


@dataclass
class _Reader:
    given: str
    phonemes: bool
    lexicon: Lexicon | None
    found: list[Part] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)  # of the present part
    places: list[Place] = field(default_factory=list)  # of the chunks
    length: int = 0  # of the chunks
    last: str = ""  # the last character that is not white space
    open: _Open | None = None

    def read(self) -> list[Part]:
        self._tagged = _TAG.search(self.given) is not None
        self._last_close = {name: self.given.rfind(f"</{name}") for name in _WITH_CONTENT}
        at = 0
        for m in _TOKEN.finditer(self.given):
            self._words(at, m.start())
            self._token(m)
            at = m.end()
        self._words(at, len(self.given))
        self._end(None)
        return self.found

    def _token(self, m: re.Match[str]) -> None:
        if m["silence"]:
            length = _LENGTHS.get((m["length"] or "").lower(), "")
            self._pause(f"{m['pause']}{'ms' if m['ms'] else 's'}" if m["pause"] else length)
        elif m["slnc"] or m["seconds"]:
            self._pause(f"{m['slnc']}ms" if m["slnc"] else f"{m['seconds']}s")
        elif m["word"]:
            self._add(self._with_phonemes(m["word"], m["phonemes"]), *m.span())
        elif m["name"]:
            self._tag(m)
        elif m[0][0] == "&":
            self._add(html.unescape(m[0]), *m.span())

    def _tag(self, m: re.Match[str]) -> None:
        name = m["name"].lower()
        if not (self._tagged or m["name"].islower() or m["close"] or m["attributes"]):
            self._add(m[0], *m.span())  # List<String>
            return
        if m["attributes"] and "=" not in m["attributes"] and not self._tagged:
            self._add(m[0], *m.span())  # x <y and z> w
            return
        matches = _ATTRIBUTE.finditer(m["attributes"] or "")
        attributes = {a[1].lower(): html.unescape(a[2] or a[3] or "") for a in matches}
        if name == "break" and not m["close"]:
            self._pause(
                attributes.get("time") or f"{_STRENGTHS.get(attributes.get('strength', ''), 0.35)}s"
            )
        elif name == "p":
            self._add("\n\n" if self.last else "", *m.span())
        elif name == "s":
            ends = not m["close"] or not self.last or self.last in ".!?…:;,"
            self._add(" " if ends else ". ", *m.span())
        elif name in _WITH_CONTENT and m["close"]:
            self._close(name)
        elif (
            name in _WITH_CONTENT
            and not m["empty"]
            and self.open is None
            and self._last_close[name] > m.end() - 1
        ):
            self.open = _Open(name, attributes, len(self.chunks))

    def _close(self, name: str) -> None:
        opened = self.open
        if opened is None or opened.name != name:
            return
        self.open = None
        content = self.chunks[opened.start :]
        places = self.places[opened.start :]
        if content:
            del self.chunks[opened.start :], self.places[opened.start :]
            self.length = places[0].here
            self._add(self._read_as(opened, "".join(content)), places[0].start, places[-1].end)

    def _read_as(self, opened: _Open, content: str) -> str:
        attributes = opened.attributes
        if opened.name == "sub":
            return attributes.get("alias", "").strip() or content
        if opened.name == "say-as":
            return _say_as(
                content, attributes.get("interpret-as", ""), attributes.get("format", "")
            )
        if attributes.get("alphabet", "ipa") != "ipa" or not content.strip():
            return content
        return self._with_phonemes(content, attributes.get("ph", ""))

    def _with_phonemes(self, word: str, phonemes: str) -> str:
        bare = re.sub(r"[\[\]\n]", "", shown(word)).strip()[:80]
        sounds = "_".join(phonemes.replace("/", "").split())[:200]
        if self.phonemes and sounds and bare:
            return f"[{'_'.join(bare.split())}](/{sounds}/)"
        return bare

    def _words(self, start: int, end: int) -> None:
        """Text without marks, with the words of the lexicon read by it."""
        text = self.given[start:end]
        at = 0
        if self.lexicon is not None and self.open is None:
            readings = self.lexicon.words(text)
        else:
            readings = []
        for left, right, word_reading in readings:
            self._add(text[at:left], start + at, start + left)
            at = right
            reading = word_reading
            if word_reading[0] == word_reading[-1] == "/" and len(word_reading) > 2:
                sounds = word_reading[1:-1]
                if text[right : right + 2] in ("'s", "’s"):
                    at = right + 2
                    sounds = sounds + _owner(sounds)
                reading = self._with_phonemes(text[left:at], sounds)
            self._add(reading, start + left, start + at)
        self._add(text[at:], start + at, end)

    def _add(self, text: str, start: int, end: int) -> None:
        if text:
            self.places.append(Place(self.length, start, end, text == self.given[start:end]))
            self.chunks.append(text)
            self.length += len(text)
            self.last = text.rstrip()[-1:] or self.last

    def _pause(self, written: str) -> None:
        m = _SECONDS.fullmatch(written)
        if m:
            seconds = min(LONGEST_PAUSE, float(m[1]) / (1000 if m[2] == "ms" else 1))
        else:
            seconds = _STRENGTHS["medium"]
        if self.open is None:
            self._end(seconds)

    def _end(self, pause: float | None) -> None:
        self.found.append(Part("".join(self.chunks), pause, tuple(self.places)))
        self.chunks = []
        self.places = []
        self.length = 0
        self.last = ""


def _owner(sounds: str) -> str:
    """How 's sounds behind a word."""
    if sounds[-1] in "szʃʒʧʤ":
        return "ᵻz"
    if sounds[-1] in "ptkfθ":
        return "s"
    return "z"


def _say_as(content: str, how: str, format: str) -> str:
    """Text that is read as `how` says, where the text alone does not tell."""
    if how in ("characters", "spell-out", "verbatim"):
        return " ".join(c.upper() for c in content if not c.isspace())
    if how in ("digits", "telephone"):
        groups = re.findall(r"\d+|[A-Za-z]+", content)
        return ", ".join(" ".join(g) if g.isdigit() else g for g in groups) or content
    if how == "ordinal" and content.strip().isdecimal():
        return content.strip() + _suffix(content.strip())
    if how in ("cardinal", "number") and _NUMBER.fullmatch(content.strip()):
        return _with_commas(content.strip())
    order = _DATE_ORDER.get(format.lower())
    fields = re.findall(r"\d+", content)
    if how == "date" and order and len(fields) == 3 and len(fields[order[0]]) == 4:
        year, month, day = (fields[i] for i in order)
        return f"{year}-{month:0>2}-{day:0>2}"
    return content


def _with_commas(number: str) -> str:
    integer, point, rest = number.replace(",", "").partition(".")
    if len(integer) <= 15:
        return f"{int(integer):,}{point}{rest}"
    return number


def _suffix(digits: str) -> str:
    if digits[-2:-1] == "1":
        last = 0
    else:
        last = int(digits[-1])
    return {1: "st", 2: "nd", 3: "rd"}.get(last, "th")


_ANY_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Reading:
    """How a text is read: marks that the family wants kept together, whether it reads phonemes, the
    user's lexicon, the steps of the clean-up, and a pattern of what the family leaves out."""

    marks: TextMarks = NO_MARKS
    phonemes: bool = False
    lexicon: Lexicon | None = None
    cleanup: tuple[str, ...] = tuple(STEPS)
    unread: str = NEVER

    def segments(
        self,
        text: str,
        max_chars: int,
        granularity: str,
        speaker: str = "",
        lead: str | None = None,
    ) -> list[Segment]:
        """Cut a text as `split` does, and at each of its pauses. Segments without text
        are left out.

        lead: what governs this text and stood before it. None: it is looked for in front of `text`.
        InvalidRequest("text") for pauses that are too long together.
        """
        if lead is None:
            lead = find_lead(text, self.marks) or ""
            segments = self._cleaned(text[len(lead) :], max_chars, granularity, speaker)
            segments = [s.moved(len(lead)) for s in segments]
        else:
            segments = self._cleaned(text, max_chars, granularity, speaker)

        if lead:
            segments = [replace(s, lead=as_prefix(lead)) for s in segments]
        ends = [0, *(s.end for s in segments)]
        segments = [s.spaced_in(text, end) for s, end in zip(segments, ends, strict=False)]
        return [self._noted(s) for s in segments]

    def _cleaned(self, text: str, max_chars: int, granularity: str, speaker: str) -> list[Segment]:
        """The segments of a text that is cleaned while the family's marks are held."""
        buffered = Held(text, self.marks)
        draft = cleaned(buffered.text, self.cleanup)
        segments = self._segments(draft.text, buffered, max_chars, granularity, speaker)
        if draft.text == buffered.text:
            return segments
        return [_given(s, draft, text) for s in segments]

    def silence(self, text: str) -> float:
        """Return the seconds of the pauses in a text without words, which has no segments."""
        clean = cleaned(text, self.cleanup).text
        return sum(part.pause or 0.0 for part in parts(clean, self.phonemes, self.lexicon))

    def _noted(self, segment: Segment) -> Segment:
        """A segment with what of it is not read."""
        left_out = tuple(m[0] for m in re.finditer(self.unread, segment.text))
        if left_out:
            return replace(segment, unread=left_out)
        return segment

    def _segments(
        self, text: str, held: Held, max_chars: int, granularity: str, speaker: str
    ) -> list[Segment]:
        """The segments of a clean text whose marks are held, with places in that text."""
        segments: list[Segment] = []
        original = held.restored(text)
        before = 0.0
        for held_part in parts(text, self.phonemes, self.lexicon):
            part = replace(held_part, text=held.restored(held_part.text))
            if part.text.strip():
                cut = split(
                    part.text, max_chars, granularity, self.marks, speaker, dashes=self.phonemes
                )
                cut = [_placed(s, part, original) for s in cut]
                if before:
                    cut[0] = replace(cut[0], before=before)
                if part.pause is not None:
                    cut[-1] = replace(cut[-1], after=part.pause)
                segments += cut
                before = 0.0
                speaker = next(reversed(speakers(part.text, self.marks)), speaker)
            elif segments and part.pause is not None:
                segments[-1] = replace(segments[-1], after=(segments[-1].after or 0.0) + part.pause)
            else:
                before += part.pause or 0.0
        return segments


def _given(segment: Segment, draft: Draft, text: str) -> Segment:
    """A segment of a clean text with its places in the original `text`, and those of its words."""
    start, end = draft.source(segment.start, segment.end)
    words = tuple(_given_word(w, draft, text) for w in segment.words)
    return replace(segment, start=start, end=end, words=words)


def _given_word(word: Word, draft: Draft, text: str) -> Word:
    """A word of a clean text as the original `text` has it."""
    start, end = draft.source(word.start, word.end)
    written = text[start:end]
    if draft.text[word.start : word.end] == written:
        return Word(word.text, start, end)
    return Word(" ".join(_ANY_TAG.sub("", written).split()) or word.text, start, end)


def _placed(segment: Segment, part: Part, text: str) -> Segment:
    """A segment of `part` with its places in the original text, and those of its words."""
    # without marks: every place is the same
    if len(part.places) == 1 and part.text == text and "[" not in text:
        at = segment.start
        places = WORD.finditer(segment.text)
        return replace(
            segment, words=tuple(Word(m[0], at + m.start(), at + m.end()) for m in places)
        )
    words = []
    for m in WORD.finditer(segment.text):
        here = segment.start + m.start(), segment.start + m.end()
        start, end = part.source(*here)
        words.append(
            Word(
                shown(m[0] if part.unchanged(*here) else _ANY_TAG.sub("", text[start:end])),
                start,
                end,
            )
        )
    start, end = part.extent(segment.start, segment.end)
    return replace(segment, start=start, end=end, words=tuple(words))
