"""Text that is still being written: cut into pieces as soon as what follows can no longer change them."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence

from stentor.server.longform import Piece, ready, split
from stentor.server.outcomes import Segment

_SPOKEN = re.compile(r"\w")


class Feed:
    """One utterance's text. Written at one end, read as pieces at the other; pieces hold places in the whole text.

    granularity: "auto" (sentences, those that are there together up to `most` characters; the first piece may be a
    clause, so that speech starts early), "sentence", "clause", "none" (nothing before `flush`).
    """

    def __init__(self, granularity: str, most: int) -> None:
        self.granularity, self.most = granularity, most
        self.text = ""
        self.count = 0  # pieces cut
        self.ended = False
        self._cut = 0  # characters that are in pieces
        self._pieces: deque[Piece] = deque()
        self._changed = asyncio.Event()

    def write(self, text: str) -> None:
        self.text += text
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
                self._pieces.append(Piece(p.text, start + p.start, start + p.end))
                self.count += 1
        self._changed.set()

    @property
    def hungry(self) -> bool:
        """Whether it can give a piece only once more is written."""
        return not self._pieces and not self.ended

    async def pieces(self) -> AsyncIterator[Piece]:
        """Pieces as they become safe, until the end."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self.ended:
                return
            self._changed.clear()
            await self._changed.wait()


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
