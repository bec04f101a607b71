"""A text that is being cleaned, and the place of each of its characters in the original text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

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
    """`text[i]` stands for given[starts[i]:ends[i]]. Both lists ascend."""

    text: str
    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, text: str) -> Draft:
        """A text before clean-up."""
        return cls(text, list(range(len(text))), list(range(1, len(text) + 1)))

    def sub(self, pattern: re.Pattern[str], action: Action) -> Draft:
        """Replace as `pattern.sub` does. A group 1 that stays as it is keeps its places."""
        draft = None
        for m in pattern.finditer(self.text):
            if callable(action):
                new = action(m)
            else:
                new = m.expand(action)
            if new == m[0]:
                continue
            draft = draft or Writer(self)
            draft.keep_to(m.start())
            if m.lastindex and new == m[1]:
                draft.keep(*m.span(1))
            else:
                draft.say(new, m.end())
            draft.skip_to(m.end())
        if draft is None:
            return self
        return draft.done()

    def source(self, start: int, end: int) -> tuple[int, int]:
        """The place of text[start:end] in the original text."""
        return self.starts[start], self.ends[end - 1]


@dataclass
class Writer:
    """Writes a draft from another, from its beginning to its end. `at` is the place that has been
    read up to."""

    old: Draft
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

    def say(self, new: str, end: int) -> None:
        """Put `new` in place of the text up to `end`."""
        if new:
            if self._ends:
                last = self._ends[-1]
            else:
                last = 0
            if end > self.at:
                start = self.old.starts[self.at]
                stop = self.old.ends[end - 1]
            else:
                start = stop = self.old.starts[self.at] if self.at < len(self.old.text) else last
            self._texts.append(new)
            self._starts += [start] * len(new)
            self._ends += [stop] * len(new)
        self.skip_to(end)

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
        if mark == STOP and body[-1] in ",、" and self._size() == self._comma_at:
            self._cut(1)
            body = body[:-1]
        bare = body.rstrip(_CLOSERS)
        if mark and bare and not _ENDED.search(body) and bare[-1].isalnum():
            wide = _IDEOGRAPHIC.match(bare[-1]) is not None
            self.say(WIDE[mark] if wide else mark.strip(), self.at)
            if mark == COMMA:
                self._comma_at = self._size()
            else:
                self._comma_at = -1
        breaks = max(gap, "\n" * old_gap.count("\n"), key=len)
        self.say(breaks or " ", self.at)

    def _size(self) -> int:
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

    def done(self) -> Draft:
        """The new draft, with the rest of the old one as it is."""
        self.keep_to(len(self.old.text))
        return Draft("".join(self._texts), self._starts, self._ends)
