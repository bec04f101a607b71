"""A text that is being rewritten, and the place of each of its characters in the original text."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

Action = str | Callable[[re.Match[str]], str]
COMMA = ", "
STOP = ". "
WIDE = {COMMA: "、", STOP: "。"}
"""Marks behind Chinese and Japanese."""
LINE = "\n"
PARAGRAPH = "\n\n"
HEADING = "\n\n\n"
SCENE = "\n\n\n\n"
"""White space that ends a line, a paragraph, a heading and a scene. `sentences` gives each its own
pause."""
_IDEOGRAPHIC = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_ENDED = re.compile(r"[.!?:;,…。！？、，；：।۔؟—–-][\"'”’»)\]」』）*_]*$")
_CLOSERS = "\"'”’»)]」』）*_ \t\n"


@dataclass(frozen=True)
class Draft:
    """`text[i]` stands for original[starts[i]:ends[i]]. Both lists ascend. Characters that were
    written for one piece of the original all stand for the whole piece."""

    text: str
    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, text: str) -> Self:
        """A text that nothing has changed."""
        return cls(text, list(range(len(text))), list(range(1, len(text) + 1)))

    def __getitem__(self, part: slice) -> Self:
        starts = self.starts[part]
        ends = self.ends[part]
        return type(self)(self.text[part], starts, ends)

    def part(self, start: int, end: int) -> Self:
        """Return what stands for original[start:end], with places in that."""
        first = self.place(start)
        piece = self[first : self.place(end)]
        starts = []
        ends = []
        for outer, until in zip(piece.starts, piece.ends, strict=True):
            # a piece may reach beyond the part
            begin = max(start, outer)
            stop = min(until, end)
            starts.append(begin - start)
            ends.append(stop - start)
        return type(self)(piece.text, starts, ends)

    def place(self, at: int) -> int:
        """Return the place in `text` of original[at:], behind what has been put in there."""
        place = bisect_left(self.starts, at)
        length = len(self.text)
        while place < length:
            is_put_in = self.starts[place] == at == self.ends[place]
            if not is_put_in:
                break
            place += 1
        return place

    def sub(self, pattern: re.Pattern[str], action: Action) -> Self:
        """Replace as `pattern.sub` does. `_written` finds what the new text stands for."""
        changed = None
        fixed = isinstance(action, str) and "\\" not in action
        for m in pattern.finditer(self.text):
            if callable(action):
                new = action(m)
            elif fixed:
                new = action
            else:
                new = m.expand(action)
            if new == m[0]:
                continue

            changed = changed or Writer(self)
            changed.keep_to(m.start())
            changed.put(new, *self._written(m, new))
            changed.skip_to(m.end())
        if changed is None:
            return self
        return changed.done()

    def _written(self, m: re.Match[str], new: str) -> tuple[list[int], list[int]]:
        """A group 1 that stays as it is keeps its places."""
        if m.lastindex and new == m[1]:
            start, end = m.span(1)
            return self.starts[start:end], self.ends[start:end]
        last = self.ends[-1] if self.ends else 0
        start, end = self.replaced(*m.span(), last)
        return [start] * len(new), [end] * len(new)

    def replaced(self, start: int, end: int, last: int) -> tuple[int, int]:
        """The place of what replaces text[start:end]. last: the place of what is written at the end
        of this text."""
        if end > start:
            return self.source(start, end)
        if start < len(self.text):
            last = self.starts[start]
        return last, last

    def source(self, start: int, end: int) -> tuple[int, int]:
        """The place of text[start:end] in the original text. A part of what was written for one
        piece has the place of the piece."""
        return self.starts[start], self.ends[end - 1]

    def extent(self, start: int, end: int) -> tuple[int, int]:
        """Return where text[start:end] begins and ends in the original text. A part of what was
        written for one piece has its share of the piece, so parts of a text that follow each other
        have extents that do."""
        begin = self._border(start, self.starts[start])
        stop = self._border(end, self.ends[end - 1])
        return begin, stop

    def _border(self, place: int, outer: int) -> int:
        """`outer`, unless `place` is inside what was written for one piece."""
        if place in (0, len(self.text)) or not self._is_same_piece(place - 1, place):
            return outer
        start = self.starts[place]
        end = self.ends[place]
        here = bisect_left(self.starts, start, 0, place)
        until = bisect_right(self.ends, end, place)
        # a text without length may stand at either end of the piece
        while self.ends[here] != end:
            here += 1
        while self.starts[until - 1] != start:
            until -= 1
        share = (place - here) * (end - start) // (until - here)
        return start + share

    def _is_same_piece(self, one: int, other: int) -> bool:
        same_start = self.starts[one] == self.starts[other]
        return same_start and self.ends[one] == self.ends[other]


D = TypeVar("D", bound=Draft)


@dataclass
class Writer(Generic[D]):
    """Writes a draft from another, from its beginning to its end. `at` is the place that has been
    read up to."""

    old: D
    at: int = 0
    _texts: list[str] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _comma_at: int = -1  # where the comma that `close` wrote last ends

    def keep_to(self, end: int) -> None:
        """Take the text up to `end` as it is."""
        if end > self.at:
            self._texts.append(self.old.text[self.at : end])
            self._starts += self.old.starts[self.at : end]
            self._ends += self.old.ends[self.at : end]
            self.at = end

    def skip_to(self, end: int) -> None:
        """Leave out the text up to `end`."""
        self.at = max(self.at, end)

    def keep(self, start: int, end: int) -> None:
        """Leave out the text up to `start`, and take it from there to `end`."""
        self.skip_to(start)
        self.keep_to(end)

    def write(self, new: str, end: int) -> None:
        """Put `new` in place of the text up to `end`."""
        if new:
            last = self._ends[-1] if self._ends else 0
            self._put_for(new, *self.old.replaced(self.at, end, last))
        self.skip_to(end)

    def written(self, size: int) -> str:
        """The text that was written since there were `size` characters."""
        return "".join(self._texts)[size:]

    def rewrite(self, size: int, new: str) -> None:
        """Put `new` in place of what was written since there were `size` characters, which is not
        empty. It stands for the whole of that."""
        if new != self.written(size):
            start = self._starts[size]
            end = self._ends[-1]
            self._cut(self.size - size)
            self._put_for(new, start, end)

    def _put_for(self, new: str, start: int, end: int) -> None:
        self.put(new, [start] * len(new), [end] * len(new))

    def put(self, new: str, starts: list[int], ends: list[int]) -> None:
        """Write `new`, whose characters stand for original[starts[i]:ends[i]]."""
        self._texts.append(new)
        self._starts += starts
        self._ends += ends

    def close(self, mark: str, gap: str) -> None:
        """End what has been written with a mark, unless it has one, and with white space. Nothing
        in front of a text, and of several gaps in a row the longest."""
        tail = "".join(self._texts[-4:])[-40:]
        body = tail.rstrip()
        if not body:
            return
        drop = len(tail) - len(body)
        old_gap = tail[len(body) :]
        self._cut(drop)
        # a row ends with its last cell
        if mark == STOP and body[-1] in ",、" and self.size == self._comma_at:
            self._cut(1)
            body = body[:-1]
        bare = body.rstrip(_CLOSERS)
        if mark and bare and not _ENDED.search(body) and bare[-1].isalnum():
            wide = _IDEOGRAPHIC.match(bare[-1]) is not None
            self.write(WIDE[mark] if wide else mark.strip(), self.at)
            if mark == COMMA:
                self._comma_at = self.size
            else:
                self._comma_at = -1
        breaks = max(gap, "\n" * old_gap.count("\n"), key=len)
        self.write(breaks or " ", self.at)

    @property
    def size(self) -> int:
        """Characters that were written since `take`."""
        return len(self._starts)

    def _cut(self, size: int) -> None:
        """Take back the last characters, which are white space."""
        rest = size
        while rest:
            last = self._texts.pop()
            piece = last[: max(0, len(last) - rest)]
            rest -= len(last) - len(piece)
            if piece:
                self._texts.append(piece)
        if size:
            del self._starts[-size:], self._ends[-size:]

    def take(self) -> D:
        """Return what was written since the last call, as a draft of its own."""
        written = type(self.old)("".join(self._texts), self._starts, self._ends)
        self._texts = []
        self._starts = []
        self._ends = []
        return written

    def done(self) -> D:
        """The new draft, with the rest of the old one as it is."""
        self.keep_to(len(self.old.text))
        return self.take()
