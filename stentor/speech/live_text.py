"""Text that is still being written, cut into segments as soon as later text can no longer change them."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stentor.arguments import mend_unicode
from stentor.speech.timing import SegmentTiming, WordTiming
from stentor.text.marks import speakers
from stentor.text.segments import Reading
from stentor.text.sentences import Segment, Word, ready, sentences
from stentor.text.trace import WORD

if TYPE_CHECKING:
    from stentor.speech.speaking import SpokenSegment

PROBE = "Hello."  # stands for text that comes later when options are checked
AS_IT_IS = Reading()
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\W\d_](?=[^\w<|>/])")  # the last letter of a complete word


class TextTail:
    """Text that is written to a segment after it has begun, for a model that takes text while it speaks."""

    def __init__(self) -> None:
        self.closed = False
        self._text = ""
        self._changed = asyncio.Event()

    def write(self, text: str) -> None:
        self._text += text
        self._changed.set()

    def close(self) -> None:
        """The writer says that nothing follows, or the reader that it takes no more."""
        self.closed = True
        self._changed.set()

    def take(self) -> str:
        """Text that has been written and not yet taken."""
        text = self._text
        self._text = ""
        return text

    async def give(self, append: Callable[[str, bool], None], current: SpokenSegment) -> None:
        """Append the text to a segment that is spoken, as it is written. append: of the engine's stream."""
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


class TextFeed:
    """One utterance's text: it is written as it arrives and read as segments, which hold their place in the text.

    granularity: "auto" (complete sentences, grouped up to `max_chars` characters, where the first segment may be a
    clause, so that speech starts early), "sentence", "clause", "none" (nothing before `flush`).
    live: for a model that takes text while it speaks. A segment begins with the first word and has a tail. It ends at
    the first end of a sentence beyond `max_chars` characters.
    reading: the family's marks, and the user's lexicon. A live text is taken as it is. usual: how the family
    wants complete sentences cut where granularity is "auto".
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
        self.count = 0  # segments cut
        self.ended = False
        self._cut = 0  # characters that are in segments
        self._speaker = ""  # who speaks at `_cut`, as a mark
        self._segments: deque[FedSegment] = deque()
        self._tail: TextTail | None = None  # of the segment that is still being written
        self._began = 0  # where that segment begins
        self._changed = asyncio.Event()
        self._half = ""  # of a surrogate pair, at the end of what was written

    def write(self, text: str) -> None:
        """Add text, and cut off the segments that have become certain. Halves of surrogate pairs are joined, and those
        that are alone become U+FFFD."""
        text = self._half + text
        if "\ud800" <= text[-1:] <= "\udbff":
            self._half = text[-1:]
        else:
            self._half = ""
        self._take(mend_unicode(text[: len(text) - len(self._half)]))

    def _take(self, text: str) -> None:
        self.text += text
        if self.live:
            self._extend(last=False)
            return
        if self.granularity == "none":
            return
        tail = self.text[self._cut :]
        early = self.granularity == "clause" or (self.granularity == "auto" and not self.count)
        safe = ready(tail, False, self.marks) or (ready(tail, True, self.marks) if early else 0)
        if safe:
            self._add_segments(safe, keep_last=False)
        elif len(tail) > 2 * self.max_chars:  # no punctuation at all: cut where HTTP would
            self._add_segments(len(tail), keep_last=True)

    def flush(self, text: str = "") -> None:
        """Speak what has been written now, and this text, wherever it ends. It is cut as that of a whole request."""
        self.text += mend_unicode(self._half + text)
        self._half = ""
        if self.live:
            self._extend(last=True)
        else:
            self._add_segments(len(self.text) - self._cut, keep_last=False)

    def end(self, text: str = "") -> None:
        """Nothing follows, besides this text."""
        self.flush(text)
        self.ended = True
        self._changed.set()

    def _add_segments(self, size: int, keep_last: bool) -> None:
        start = self._cut
        text = self.text[start : start + size]
        segments = self.reading.segments(text, self.max_chars, self._wanted, self._speaker)
        if keep_last and segments:
            size = segments[-1].start
            segments = segments[:-1]
        self._cut += size
        self._speaker = next(
            reversed(speakers(self.text[start : self._cut], self.marks)), self._speaker
        )
        for p in segments:
            if p.text:
                if p is segments[-1]:
                    gap = self._gap()
                else:
                    gap = p.gap
                self._segments.append((replace(p.moved(start), gap=gap), None))
                self.count += 1
        self._changed.set()

    def _gap(self) -> int:
        """Line ends that are known behind what has been cut, where they end a paragraph."""
        ends = _SPACE.match(self.text, self._cut)
        if ends is not None and ends[0].count("\n") > 1:
            return ends[0].count("\n")
        return 0

    def _extend(self, last: bool) -> None:
        """Give all text to the segment that is being written, or begin one. last: it ends there."""
        if (
            self._tail is not None and self._tail.closed
        ):  # the model stopped before the end of its text
            self._cut -= len(self._tail.take())
            self._tail = None
        while self._cut < len(self.text):
            if self._tail is None:
                size = self._begin_segment(last)
            else:
                size = self._continue_segment(self._tail)
            if not size:
                break
            self._cut += size
        if last and self._tail is not None:
            self._tail.write(self.text[self._cut :])
            self._tail.close()
            self._tail = None
        if last:
            self._cut = len(self.text)
        self._changed.set()

    def _begin_segment(self, last: bool) -> int:
        """Begin a segment with the first word. Returns how many characters it has taken."""
        rest = self.text[self._cut :]
        word = _WORD.search(rest)
        if word is not None:
            size = word.end()
        elif last and rest.strip():
            size = len(rest)
        else:
            size = 0
        if size:
            text = rest[:size].lstrip()
            self._began = self._cut + size - len(text)
            self._tail = TextTail()
            self._segments.append(
                (extended(Segment("", self._began, self._began), text), self._tail)
            )
            self.count += 1
        return size

    def _continue_segment(self, tail: TextTail) -> int:
        """Give the segment more text. Beyond `max_chars` it takes only the rest of a sentence, or up to `max_chars`
        more if the sentence does not end. Returns how many characters it has taken."""
        rest = self.text[self._cut :]
        size = min(len(rest), self.max_chars - (self._cut - self._began))
        if size <= 0:
            found = sentences(rest)
            if len(found) > 1:
                size = found[0].end
            else:
                size = 0
            if len(rest) > self.max_chars and not 0 < size <= self.max_chars:
                size = rest.rfind(" ", 0, self.max_chars) + 1 or self.max_chars
            if size:
                tail.close()
                self._tail = None
        tail.write(rest[:size])
        return size

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
    whole = segment.text + text
    at = segment.start
    words = tuple(Word(m[0], at + m.start(), at + m.end()) for m in WORD.finditer(whole))
    return replace(segment, text=whole, end=segment.end + len(text), words=words)


def played_characters(
    timings: Sequence[SegmentTiming],
    current: tuple[Segment, float] | None,
    played_seconds: float,
    words: Sequence[WordTiming] = (),
) -> int:
    """The number of characters of a text whose audio has been played after `played_seconds` seconds.

    It is exact where a segment ends. Inside one it goes by words where their times are known, each from its beginning
    on, and else by the share of its time. `current`: the segment whose end is not yet known, and where its audio
    begins. words: those of it that have been spoken, if they are known. Its pace is that of the segments before, or 15
    characters per second.
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
