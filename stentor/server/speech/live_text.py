"""Text that is still being written: cut into pieces as soon as what follows can no longer change them."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from stentor.server.speech.outcomes import Segment
from stentor.server.speech.sentences import Piece, ready, sentences, split

_SPOKEN = re.compile(r"\w")
_WORD = re.compile(r"[^\W\d_](?=[^\w<|>/])")  # the last letter of a complete word


class Tail:
    """What is written to a piece after it has begun, for a model that takes text while it speaks."""

    def __init__(self) -> None:
        self.closed = False
        self._text = ""
        self._changed = asyncio.Event()

    def write(self, text: str) -> None:
        self._text += text
        self._changed.set()

    def close(self) -> None:
        """Nothing follows; at the other end: nothing more is taken."""
        self.closed = True
        self._changed.set()

    def take(self) -> str:
        """What has been written and not been taken."""
        text, self._text = self._text, ""
        return text

    async def parts(self) -> AsyncIterator[tuple[str, bool]]:
        """(text, whether it is the last) as it is written."""
        last = False
        while not last:
            await self._changed.wait()
            self._changed.clear()
            last = self.closed
            yield self.take(), last


Cut = tuple[Piece, Tail | None]


class Feed:
    """One utterance's text. Written at one end, read as pieces at the other; pieces hold places in the whole text.

    granularity: "auto" (sentences, those that are there together up to `most` characters; the first piece may be a
    clause, so that speech starts early), "sentence", "clause", "none" (nothing before `flush`).
    live: for a model that takes text while it speaks. A piece begins with the first word and has a tail; it ends with
    the first sentence that ends beyond `most` characters.
    """

    def __init__(self, granularity: str, most: int, live: bool) -> None:
        self.granularity, self.most, self.live = granularity, most, live
        self.text = ""
        self.count = 0  # pieces cut
        self.ended = False
        self._cut = 0  # characters that are in pieces
        self._pieces: deque[Cut] = deque()
        self._tail: Tail | None = None  # of the piece that is still written
        self._began = 0  # where that piece begins
        self._changed = asyncio.Event()

    def write(self, text: str) -> None:
        self.text += text
        if self.live:
            self._grow(last=False)
            return
        if self.granularity == "none":
            return
        tail = self.text[self._cut :]
        early = self.granularity == "clause" or (self.granularity == "auto" and not self.count)
        safe = ready(tail, False) or (ready(tail, True) if early else 0)
        if safe:
            self._take(safe, keep_last=False)
        elif len(tail) > 2 * self.most:  # no mark at all: cut where HTTP would
            self._take(len(tail), keep_last=True)

    def flush(self) -> None:
        """What has been written is spoken now, wherever it ends."""
        if self.live:
            self._grow(last=True)
        else:
            self._take(len(self.text) - self._cut, keep_last=False)

    def end(self) -> None:
        """Nothing follows."""
        self.flush()
        self.ended = True
        self._changed.set()

    def _take(self, size: int, keep_last: bool) -> None:
        start = self._cut
        pieces = split(self.text[start : start + size], self.most, self.granularity)
        if keep_last:
            size = pieces[-1].start
            pieces = pieces[:-1]
        self._cut += size
        for p in pieces:
            if _SPOKEN.search(p.text):
                self._pieces.append((Piece(p.text, start + p.start, start + p.end), None))
                self.count += 1
        self._changed.set()

    def _grow(self, last: bool) -> None:
        """Give all text to the piece that is written, or begin one. last: it ends there."""
        if self._tail is not None and self._tail.closed:  # the model has stopped before its text
            self._cut -= len(self._tail.take())
            self._tail = None
        while self._cut < len(self.text):
            size = self._begin(last) if self._tail is None else self._go_on(self._tail)
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

    def _begin(self, last: bool) -> int:
        """A piece of the first word. Returns how many characters it has taken."""
        rest = self.text[self._cut :]
        word = _WORD.search(rest)
        size = word.end() if word is not None else len(rest) if last and _SPOKEN.search(rest) else 0
        if size:
            text = rest[:size].lstrip()
            self._began = self._cut + size - len(text)
            self._tail = Tail()
            self._pieces.append((Piece(text, self._began, self._began + len(text)), self._tail))
            self.count += 1
        return size

    def _go_on(self, tail: Tail) -> int:
        """More of the piece; beyond `most` only to the end of a sentence, or so far again if there is none."""
        rest = self.text[self._cut :]
        size = min(len(rest), self.most - (self._cut - self._began))
        if size <= 0:
            found = sentences(rest)
            size = found[0].end if len(found) > 1 else 0
            if len(rest) > self.most and not 0 < size <= self.most:
                size = rest.rfind(" ", 0, self.most) + 1 or self.most
            if size:
                tail.close()
                self._tail = None
        tail.write(rest[:size])
        return size

    @property
    def hungry(self) -> bool:
        """Whether it can give a piece only once more is written."""
        return not self._pieces and not self.ended

    async def pieces(self) -> AsyncIterator[Cut]:
        """Pieces as they become safe, until the end; with what has been written to them by now."""
        while True:
            while self._pieces:
                piece, tail = self._pieces.popleft()
                yield (piece if tail is None else grown(piece, tail.take())), tail
            if self.ended:
                return
            self._changed.clear()
            await self._changed.wait()


def grown(piece: Piece, text: str) -> Piece:
    """A piece with more text at its end."""
    return replace(piece, text=piece.text + text, end=piece.end + len(text))


def place(segments: Sequence[Segment], speaking: tuple[Piece, float] | None, heard: float) -> int:
    """The character up to which a text has been heard after `heard` seconds of its audio.

    Exact where a segment ends, in proportion inside one. `speaking`: the piece whose end is not yet known and where its
    audio begins; the pace of the segments before is assumed there, or 15 characters a second.
    """
    at = 0
    spoken = sum(s.end - s.start for s in segments)
    pace = sum(s.end_char - s.start_char for s in segments) / spoken if spoken else 15.0
    for s in segments:
        if heard <= s.start:
            return at
        if heard < s.end:
            return s.start_char + int((heard - s.start) / (s.end - s.start) * (s.end_char - s.start_char))
        at = s.end_char
    if speaking is not None and heard > speaking[1]:
        piece = speaking[0]
        at = max(at, min(piece.end, piece.start + int(pace * (heard - speaking[1]))))
    return at
