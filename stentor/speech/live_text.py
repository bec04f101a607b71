"""Text that is still being written, cut into segments as soon as later text can no longer change
them."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from stentor.arguments import mend_unicode
from stentor.speech.long_text import QUICK_CHARS, worked
from stentor.speech.timing import SegmentTiming, WordTiming
from stentor.text.endings import NEAR, Around
from stentor.text.marks import as_prefix, find_lead, speakers
from stentor.text.segments import Reading
from stentor.text.sentences import Segment, Word, ready, sentences
from stentor.text.trace import WORD

if TYPE_CHECKING:
    from stentor.speech.speaking import SpokenSegment

CONTEXT = 200  # characters that have been cut, with which the next part is read
STAND_IN = "A"  # for text that comes later, behind the end of a paragraph
PROBE = "Hello."  # stands for text that comes later when options are checked
AS_IT_IS = Reading()
_WORD = re.compile(r"[^\W\d_](?=[^\w<|>/])")  # the last letter of a complete word


class TextTail:
    """Text that is written to a segment after it has begun, for a model that takes text while it
    speaks."""

    def __init__(self) -> None:
        self.closed = False
        self._text = ""
        self._changed = asyncio.Event()

    def write(self, text: str) -> None:
        self._text += text
        self._changed.set()

    def close(self) -> None:
        """Called by the writer at its end, or by the reader to stop."""
        self.closed = True
        self._changed.set()

    def take(self) -> str:
        """Text that has been written and not yet taken."""
        text = self._text
        self._text = ""
        return text

    async def give(self, append: Callable[[str, bool], None], current: SpokenSegment) -> None:
        """Append the text to a segment that is spoken, as it is written. append: of the engine's
        stream."""
        last = False
        while not last:
            await self._changed.wait()
            self._changed.clear()
            last = self.closed
            text = self.take()
            append(text, last)
            current.segment = extended(current.segment, text)


FedSegment = tuple[Segment, TextTail | None]
"""A segment, and where the rest of its text will arrive (None: it is complete)."""


class _Cut(NamedTuple):
    """Segments of the next `size` characters, and who speaks behind them, as a mark.

    silence: seconds of pauses in text without segments.
    """

    size: int
    segments: list[Segment]
    speaker: str
    silence: float = 0.0


class TextFeed:
    """One utterance's text: it is written as it arrives and read as segments, which hold their
    place in the text.

    granularity: "auto" (complete sentences, grouped up to `max_chars` characters, where the first
    segment may be a clause, so that speech starts early), "sentence", "clause", "none" (nothing
    before `flush`). live: for a model that takes text while it speaks. A segment begins with the
    first word and has a tail. It ends at the first end of a sentence beyond `max_chars` characters.
    reading: the family's marks, and the user's lexicon. A live text is taken as it is. usual: how
    the family wants complete sentences cut where granularity is "auto".
    """

    def __init__(
        self,
        granularity: str,
        max_chars: int,
        live: bool,
        reading: Reading = AS_IT_IS,
        usual: str = "auto",
    ) -> None:
        self.granularity = granularity
        self.max_chars = max_chars
        self.live = live
        self.reading = reading
        self.marks = reading.marks
        if granularity == "auto":
            self._wanted = usual
        else:
            self._wanted = granularity
        self.text = ""
        self.lead: str | None = None  # what governs all of the text. None: not known yet
        self.count = 0  # segments cut
        self.silence = 0.0  # seconds that the text asks for behind its last segment
        self.ended = False
        self.voice: str | None = None  # of what is written now. None: the request's own
        self.turn: int | None = None  # in a dialogue
        self._cut = 0  # characters that are in segments
        self._end = 0  # of the last segment that was cut off
        self._began_turn = 0  # where the text or the turn begins, behind its lead
        self._speaker = ""  # who speaks at `_cut`, as a mark
        self._segments: deque[FedSegment] = deque()
        self._tail: TextTail | None = None  # of the segment that is still being written
        self._began = 0  # where that segment begins
        self._changed = asyncio.Event()
        self._half = ""  # of a surrogate pair, at the end of what was written
        self._look_at = 0  # characters behind `_cut` from which they are read again for a border
        self._searched = 0  # up to here there is no word behind `_cut`

    async def write(self, text: str) -> None:
        """Add text, and cut off the segments that have become certain. Halves of surrogate pairs
        are joined, and those that are alone become U+FFFD."""
        text = self._half + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._half = text[-1:]
        else:
            self._half = ""
        self.text += mend_unicode(text[: len(text) - len(self._half)])

        if not self._know_lead(complete=False):
            return
        if self.live:
            await self._extend(last=False)
        elif self.granularity != "none" and len(self.text) - self._cut >= self._look_at:
            await self._cut_off(last=False)

    async def flush(self, text: str = "") -> None:
        """Speak what has been written now, and this text, wherever it ends. It is cut as that of a
        whole request."""
        self.text += mend_unicode(self._half + text)
        self._half = ""
        self._know_lead(complete=True)
        if self.live:
            await self._extend(last=True)
        else:
            await self._cut_off(last=True)

    async def begin_turn(self, voice: str) -> None:
        """Speak what has been written, and what follows in another voice, as the next turn of a
        dialogue."""
        await self.flush()
        self.voice = voice
        self.turn = 0 if self.turn is None else self.turn + 1
        self.lead = None
        self._end = len(self.text)
        self._speaker = ""

    def _know_lead(self, complete: bool) -> bool:
        """Take off what leads the text, or a turn, once that is known, and return whether it is."""
        fresh = self.text[self._cut :]
        if self.lead is None and fresh.strip():
            self.lead = find_lead(fresh, self.marks, complete)
            self._cut += len(self.lead or "")
            self._began_turn = self._cut
        return self.lead is not None

    async def end(self, text: str = "") -> None:
        """Nothing follows, besides this text."""
        await self.flush(text)
        self.abandon()

    def abandon(self) -> None:
        """Nothing follows. Text that has not been cut into segments is dropped."""
        self.ended = True
        self._changed.set()

    async def _cut_off(self, last: bool) -> None:
        """Add the segments that are certain. last: all of the text is."""
        tail = self.text[self._cut :]
        cut = await worked(len(tail), lambda: self._certain(tail, last))
        if self.ended:
            return
        self._look_at = 0 if cut.size else self._next_look(len(tail))
        self._add_segments(cut)

    def _next_look(self, size: int) -> int:
        """Characters of a tail without a border at which it is worth another look. A long one is
        not read again for each character that comes."""
        if size <= QUICK_CHARS:
            return 0
        if size <= 2 * self.max_chars:
            return min(2 * size, 2 * self.max_chars + 1)
        return 2 * size

    def _certain(self, tail: str, last: bool) -> _Cut:
        """Cut the text behind `_cut`. It changes nothing here, as it may run in a thread."""
        size = len(tail) if last else self._ready(tail)
        goes_on = not size and len(tail) > 2 * self.max_chars
        if goes_on:  # no punctuation at all: cut where HTTP would
            size = len(tail)
        if not size:
            return _Cut(0, [], self._speaker)

        segments = self._read(tail[:size], tail[size : size + CONTEXT], last)
        silence = 0.0 if segments else self.reading.silence(tail[:size])
        if goes_on and segments:
            size = segments[-1].start
            segments = segments[:-1]
        turns = speakers(tail[:size], self.marks)
        return _Cut(size, segments, next(reversed(turns), self._speaker), silence)

    def _read(self, text: str, behind: str, last: bool) -> list[Segment]:
        """The segments of the text behind `_cut`. behind: what of the text follows by now."""
        if not last and not behind.strip():
            behind += STAND_IN
        around = Around(self._before(), behind)
        segments = self.reading.segments(
            text, self.max_chars, self._wanted, self._speaker, self.lead, around
        )
        if last and segments:  # what follows is not known
            segments[-1] = replace(segments[-1], gap=0)
        return segments

    def _ready(self, tail: str) -> int:
        """Characters of a text that are whole sentences, or clauses where speech begins early."""
        size = ready(tail, False, self.marks, self._before())
        early = self.granularity == "clause" or (self.granularity == "auto" and not self.count)
        if early and not size:
            return ready(tail, True, self.marks, self._before())
        return size

    def _before(self) -> str:
        """The end of the text that is in segments, from where its last paragraph begins."""
        before = self.text[max(self._began_turn, self._cut - CONTEXT) : self._cut]
        paragraph = before.rstrip().rfind("\n\n")
        if paragraph >= 0:
            return before[paragraph + 2 :]
        return before

    def _add_segments(self, cut: _Cut) -> None:
        start = self._cut
        self._cut += cut.size
        self._speaker = cut.speaker
        self.silence += cut.silence
        for segment in cut.segments:
            if segment.text:
                before = segment.before + self.silence
                self.silence = 0.0
                placed = replace(
                    segment.moved(start), before=before, voice=self.voice, turn=self.turn
                )
                placed = placed.spaced_in(self.text, self._end)  # `Reading` saw the latest part
                self._end = placed.end
                self._segments.append((placed, None))
                self.count += 1
        self._changed.set()

    async def _extend(self, last: bool) -> None:
        """Append all text to the open segment, or begin one. last: it ends there."""
        while True:
            self._take_back()
            if self._cut == len(self.text):
                break
            if self._tail is None:
                size = self._begin_segment(last)
            else:
                size = self._continue_segment(self._tail)
            if not size:
                break
            self._cut += size
            if len(self.text) - self._cut > QUICK_CHARS:
                await asyncio.sleep(0)

        if last and self._tail is not None:
            self._tail.write(self.text[self._cut :])
            self._tail.close()
            self._tail = None
        if last:
            self._cut = len(self.text)
        self._changed.set()

    def _take_back(self) -> None:
        """Take back the text of a segment whose model has stopped before the end of its text."""
        if self._tail is not None and self._tail.closed:
            self._cut -= len(self._tail.take())
            self._searched = self._cut
            self._tail = None

    def _begin_segment(self, last: bool) -> int:
        """Begin a segment with the first word. Returns how many characters it has taken."""
        word = _WORD.search(self.text, max(self._cut, self._searched))
        rest = self.text[self._cut :]
        if word is not None:
            size = word.end() - self._cut
        elif last and rest.strip():
            size = len(rest)
        else:
            size = 0
        self._searched = max(self._cut, len(self.text) - 1)  # its last letter may end a word yet
        if size:
            text = rest[:size].lstrip()
            self._began = self._cut + size - len(text)
            self._tail = TextTail()
            segment = Segment(
                "",
                self._began,
                self._began,
                lead=as_prefix(self.lead or ""),
                voice=self.voice,
                turn=self.turn,
            )
            self._segments.append((extended(segment, text), self._tail))
            self.count += 1
        return size

    def _continue_segment(self, tail: TextTail) -> int:
        """Append text to the segment. Beyond `max_chars` it takes only the rest of a sentence, or
        up to `max_chars` more if the sentence does not end. Returns how many characters it has
        taken."""
        rest = self.text[self._cut :]
        size = min(len(rest), self.max_chars - (self._cut - self._began))
        if size <= 0:
            next_sentences = sentences(rest[: self.max_chars + 2 * NEAR])
            size = next_sentences[0].end if len(next_sentences) > 1 else 0
            if len(rest) > self.max_chars and not 0 < size <= self.max_chars:
                size = rest.rfind(" ", 0, self.max_chars) + 1 or self.max_chars
            if size:
                tail.close()
                self._tail = None
        tail.write(rest[:size])
        return size

    @property
    def exhausted(self) -> bool:
        """Whether no segment is left and none follows."""
        return self.ended and not self._segments

    @property
    def needs_text(self) -> bool:
        """Whether the next segment needs more text to be written."""
        return not self._segments and not self.ended

    async def segments(self) -> AsyncIterator[FedSegment]:
        """Segments as they become certain, until the end, each with the text that it has by now."""
        while True:
            while self._segments:
                segment, tail = self._segments.popleft()
                yield (segment if tail is None else extended(segment, tail.take())), tail
            if self.ended:
                return
            self._changed.clear()
            await self._changed.wait()


def extended(segment: Segment, text: str) -> Segment:
    """The segment with more text at its end, which is taken as it is."""
    longer = segment.text + text
    at = segment.start
    words = tuple(Word(m[0], at + m.start(), at + m.end()) for m in WORD.finditer(longer))
    return replace(segment, text=longer, end=segment.end + len(text), words=words)


def played_characters(
    timings: Sequence[SegmentTiming],
    current: tuple[Segment, float] | None,
    played_seconds: float,
    words: Sequence[WordTiming] = (),
) -> int:
    """The number of characters of a text whose audio has been played after `played_seconds`
    seconds.

    It is exact where a segment ends. Inside one it goes by words where their times are known, each
    from its beginning on, and else by the share of its time. `current`: the segment whose end is
    not yet known, and where its audio begins. words: those of it that have been spoken, if they are
    known. Its pace is that of the segments before, or 15 characters per second.
    """
    characters = 0
    total = sum(t.end - t.start for t in timings)
    if total:
        pace = sum(t.end_char - t.start_char for t in timings) / total
    else:
        pace = 15.0
    for t in timings:
        if played_seconds <= t.start:
            return characters
        if played_seconds < t.end and t.words:
            return _begun(t.words, played_seconds, characters)
        if played_seconds < t.end:
            share = (played_seconds - t.start) / (t.end - t.start)
            return t.start_char + int(share * (t.end_char - t.start_char))
        characters = t.end_char
    if current is not None and played_seconds > current[1]:
        if words:
            return _begun(words, played_seconds, characters)
        segment, begin = current
        characters = max(
            characters, min(segment.end, segment.start + int(pace * (played_seconds - begin)))
        )
    return characters


def _begun(words: Sequence[WordTiming], seconds: float, before: int) -> int:
    """The end of the last word that begins before then, `before` if none does."""
    return max([before, *(w.end_char for w in words if w.start < seconds)])
