"""Text to the segments that are spoken one after another, with marks that people write into it for
a voice: pauses, phonemes, a small part of SSML, and a lexicon's words.

    `Wait. [pause 600ms] [pause:1.5] [PAUSE 1.0] [pause] Done.       [Worcester](/wˈʊstəɹ/)`
    `<break time="600ms"/> <sub alias="..."> <say-as interpret-as="characters"> <phoneme ph="...">`
    `<p>  <s>`

This is no XML parser: tags are found by their form, in one pass. Entities other than the five of
XML and numbers stay as they are, declarations are skipped, and nothing is fetched or expanded. Tags
of another name are skipped. A tag that is not closed is skipped too, so malformed markup loses no
words. What a page or a chat has besides is read before, by `cleanup`.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, replace

from stentor.errors import InvalidRequest
from stentor.text.cleanup import STEPS, cleaned
from stentor.text.draft import Draft, Writer
from stentor.text.endings import NEAR, NOTHING, Around
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
from stentor.text.pauses import LONGEST_PAUSE, MAX_SILENCE
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


@dataclass(frozen=True)
class Part:
    """A text without marks, and the seconds of silence behind it (None: the usual pause, as it ends
    the text)."""

    draft: Draft
    pause: float | None

    @property
    def text(self) -> str:
        """The text without marks."""
        return self.draft.text


def parts(draft: Draft, phonemes: bool, lexicon: Lexicon | None = None) -> list[Part]:
    """A text between its pauses, with places in its original. phonemes: the family reads them, as
    `[word](/phonemes/)` without white space.

    InvalidRequest("text") for pauses of more than MAX_SILENCE seconds together.
    """
    pieces = _Reader(draft, phonemes, lexicon).read()
    silence = sum(p.pause or 0.0 for p in pieces)
    if silence > MAX_SILENCE:
        raise InvalidRequest(
            "text",
            f"has pauses of {silence:.0f} s together, at most {MAX_SILENCE:.0f} s are allowed",
        )
    return pieces


def shown(text: str) -> str:
    """The text of a part as a reader sees it: without phonemes."""
    if "[" not in text:
        return text
    return _TOKEN.sub(lambda m: m["word"].replace("_", " ") if m["word"] else m[0], text)


@dataclass
class _Open:
    """A tag whose content is read in another way. start: characters of the part before it."""

    name: str
    attributes: dict[str, str]
    start: int


class _Reader:
    def __init__(self, draft: Draft, phonemes: bool, lexicon: Lexicon | None) -> None:
        self.draft = draft
        self.phonemes = phonemes
        self.lexicon = lexicon
        self.parts: list[Part] = []
        self.out = Writer(draft)  # writes the present part
        self.last = ""  # the last character that is not white space
        self.open: _Open | None = None
        self._tagged = _TAG.search(draft.text) is not None
        self._last_close = {name: draft.text.rfind(f"</{name}") for name in _WITH_CONTENT}

    def read(self) -> list[Part]:
        at = 0
        for m in _TOKEN.finditer(self.draft.text):
            self._words(at, m.start())
            self._token(m)
            at = m.end()
        self._words(at, len(self.draft.text))
        self._end(None)
        return self.parts

    def _token(self, m: re.Match[str]) -> None:
        if m["silence"]:
            if m["pause"]:
                unit = "ms" if m["ms"] else "s"
                self._pause(f"{m['pause']}{unit}")
            else:
                self._pause(_LENGTHS.get((m["length"] or "").lower(), ""))
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
            self.open = _Open(name, attributes, self.out.size)

    def _close(self, name: str) -> None:
        opened = self.open
        if opened is None or opened.name != name:
            return
        self.open = None
        content = self.out.written(opened.start)
        if content:
            reading = self._read_as(opened, content)
            self.out.rewrite(opened.start, reading)
            self.last = reading.rstrip()[-1:] or self.last

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
        text = self.draft.text[start:end]
        at = 0
        if self.lexicon is not None and self.open is None:
            readings = self.lexicon.words(text)
        else:
            readings = []
        for begin, stop, word_reading in readings:
            self._add(text[at:begin], start + at, start + begin)
            at = stop
            reading = word_reading
            if word_reading[0] == word_reading[-1] == "/" and len(word_reading) > 2:
                sounds = word_reading[1:-1]
                if text[stop : stop + 2] in ("'s", "’s"):
                    at = stop + 2
                    sounds = sounds + _owner(sounds)
                reading = self._with_phonemes(text[begin:at], sounds)
            self._add(reading, start + begin, start + at)
        self._add(text[at:], start + at, end)

    def _add(self, text: str, start: int, end: int) -> None:
        if text == self.draft.text[start:end]:
            self.out.keep(start, end)
        elif text:
            self.out.skip_to(start)
            self.out.write(text, end)
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
        self.parts.append(Part(self.out.take(), pause))
        self.last = ""


def _owner(sounds: str) -> str:
    """How 's sounds behind a word."""
    if sounds[-1] in "szʃʒʧʤ":
        return "ᵻz"
    if sounds[-1] in "ptkfθ":
        return "s"
    return "z"


def _say_as(content: str, how: str, format: str) -> str:
    """Text that is read by `how`, where the text alone is ambiguous."""
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
    user's lexicon, the steps of the clean-up, and a pattern of what the family leaves out. dashes,
    short_start: see `split`."""

    marks: TextMarks = NO_MARKS
    phonemes: bool = False
    lexicon: Lexicon | None = None
    cleanup: tuple[str, ...] = tuple(STEPS)
    unread: str = NEVER
    dashes: bool = False
    short_start: bool = False

    def segments(
        self,
        text: str,
        max_chars: int,
        granularity: str,
        speaker: str = "",
        lead: str | None = None,
        around: Around = NOTHING,
    ) -> list[Segment]:
        """Cut a text as `split` does, and at each of its pauses. Segments without text
        are left out.

        lead: what governs this text and stood before it. None: it is looked for in front of `text`.
        around: what has been cut off in front of the text, and what stands behind it so far, which
        the clean-up reads too.
        InvalidRequest("text") for pauses that are too long together.
        """
        if lead is None:
            lead = find_lead(text, self.marks) or ""
            segments = self._cleaned(text[len(lead) :], max_chars, granularity, speaker, around)
            segments = [s.moved(len(lead)) for s in segments]
        else:
            segments = self._cleaned(text, max_chars, granularity, speaker, around)

        if lead:
            segments = [replace(s, lead=as_prefix(lead)) for s in segments]
        ends = [0, *(s.end for s in segments)]
        segments = [s.spaced_in(text, end) for s, end in zip(segments, ends, strict=False)]
        return [self._noted(s) for s in segments]

    def _cleaned(
        self, text: str, max_chars: int, granularity: str, speaker: str, around: Around
    ) -> list[Segment]:
        """The segments of a text that is cleaned while the family's marks are held."""
        start = len(around.before)
        end = start + len(text)
        marks = Held(around.before + text + around.behind, self.marks)
        surrounded = cleaned(marks.text, self.cleanup)
        draft = surrounded.part(start, end)
        around = _around(surrounded, start, end)
        segments: list[Segment] = []
        before = 0.0
        all_parts = parts(draft, self.phonemes, self.lexicon)
        for part in all_parts:
            part_draft = replace(part.draft, text=marks.restored(part.text))
            if part_draft.text.strip():
                beside = Around(
                    around.before if part is all_parts[0] else "",
                    around.behind if part is all_parts[-1] else "",
                )
                cut = split(
                    part_draft.text,
                    max_chars,
                    granularity,
                    self.marks,
                    speaker,
                    self.dashes,
                    self.short_start and not segments,
                    beside,
                )
                cut = [_placed(s, part_draft, text) for s in cut]
                if before:
                    cut[0] = replace(cut[0], before=before)
                if part.pause is not None:
                    cut[-1] = replace(cut[-1], after=part.pause)
                segments += cut
                before = 0.0
                speaker = next(reversed(speakers(part_draft.text, self.marks)), speaker)
            elif segments and part.pause is not None:
                segments[-1] = replace(segments[-1], after=(segments[-1].after or 0.0) + part.pause)
            else:
                before += part.pause or 0.0
        if segments and around.before:
            segments[0] = replace(segments[0], gap_before=_gap(surrounded, start))
        if segments and around.behind:
            segments[-1] = replace(segments[-1], gap=_gap(surrounded, end))
        return segments

    def silence(self, text: str) -> float:
        """Return the seconds of the pauses in a text without words, which has no segments."""
        clean = cleaned(text, self.cleanup)
        return sum(part.pause or 0.0 for part in parts(clean, self.phonemes, self.lexicon))

    def _noted(self, segment: Segment) -> Segment:
        """A segment with what of it is not read."""
        left_out = tuple(m[0] for m in re.finditer(self.unread, segment.text))
        if left_out:
            return replace(segment, unread=left_out)
        return segment


def _around(draft: Draft, start: int, end: int) -> Around:
    """The clean text beside original[start:end]."""
    before = draft.text[: draft.place(start)]
    behind = draft.text[draft.place(end) :]
    return Around(before[-NEAR:], behind[:NEAR])


def _gap(draft: Draft, original: int) -> int:
    """The line ends around a place of the original text, where they end a paragraph."""
    at = draft.place(original)
    before = draft.text[:at]
    behind = draft.text[at:]
    gap = before[len(before.rstrip()) :] + behind[: len(behind) - len(behind.lstrip())]
    if gap.count("\n") > 1:
        return gap.count("\n")
    return 0


def _placed(segment: Segment, draft: Draft, text: str) -> Segment:
    """A segment of a draft with its places in the original `text`, and those of its words."""
    if draft.text == text and "[" not in text:  # every place is the same
        at = segment.start
        places = WORD.finditer(segment.text)
        return replace(
            segment, words=tuple(Word(m[0], at + m.start(), at + m.end()) for m in places)
        )
    words = tuple(
        _word(draft, segment.start + m.start(), segment.start + m.end(), text)
        for m in WORD.finditer(segment.text)
    )
    start, end = draft.extent(segment.start, segment.end)
    return replace(segment, start=start, end=end, words=words)


def _word(draft: Draft, start: int, end: int, text: str) -> Word:
    """draft.text[start:end] as the original `text` has it."""
    spoken = draft.text[start:end]
    begin, stop = draft.source(start, end)
    written = text[begin:stop]
    if spoken == written:
        return Word(shown(spoken), begin, stop)
    plain = shown(_ANY_TAG.sub("", written))
    return Word(" ".join(plain.split()) or shown(spoken), begin, stop)
