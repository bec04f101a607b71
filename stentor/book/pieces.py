"""Pieces of a book: the items that are spoken one by one, each within one chapter and one voice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stentor.book.chapters import Part, spoken_blocks
from stentor.book.contents import Block
from stentor.book.voices import Cast
from stentor.text.sentences import split

Ending = Literal["heading", "paragraph", "scene", "stop", "turn"]

PIECE_CHARS = 700
"""Characters at which a piece ends with its paragraph. A paragraph of twice as many is cut at its
sentences."""


@dataclass(frozen=True)
class Piece:
    """A text that is spoken at a time. id: of its item. ending: what ends with it, which decides on
    the pause behind it. fields: of its item, such as its voice."""

    id: str
    chapter: int
    text: str
    ending: Ending
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> bytes:
        """The item, as a line of a batch."""
        item = {"id": self.id, "text": self.text, **self.fields}
        return (json.dumps(item, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def pieces_of(parts: Sequence[Part], titles: bool, cast: Cast, gap: str) -> list[Piece]:
    """The pieces of all chapters that are spoken. titles: they are announced. gap: what stands
    between the paragraphs of a piece."""
    pieces: list[Piece] = []
    for part in parts:
        if part.spoken:
            blocks = spoken_blocks(part.chapter, titles)
            pieces += _Cutter(part.number, cast, gap).pieces(blocks)
    return pieces


class _Cutter:
    """Gathers the paragraphs of a chapter into pieces."""

    def __init__(self, chapter: int, cast: Cast, gap: str) -> None:
        self._chapter = chapter
        self._cast = cast
        self._gap = gap
        self._texts: list[str] = []
        self._voice: str | None = None
        self._pieces: list[Piece] = []

    def pieces(self, blocks: Sequence[Block]) -> list[Piece]:
        for block in blocks:
            if block.kind == "scene":
                self._end("scene")
            elif block.kind == "heading":
                self._end("paragraph")
                self._add(block.text, "heading")
                self._end("heading")
            else:
                self._paragraph(block.text)
        self._end("paragraph")
        return self._pieces

    def _paragraph(self, text: str) -> None:
        turns = list(self._cast.turns(text, self._voice))
        for at, (voice, words) in enumerate(turns):
            if voice != self._voice:
                self._end("turn" if at else "paragraph")
                self._voice = voice
            portions = list(_portions(words))
            for portion in portions[:-1]:
                self._add(portion, "stop")
                self._end("stop")
            for portion in portions[-1:]:
                self._add(portion, "paragraph")

    def _add(self, text: str, ending: Ending) -> None:
        if not any(sign.isalnum() for sign in text):
            return
        self._texts.append(text)
        if ending == "paragraph" and sum(map(len, self._texts)) >= PIECE_CHARS:
            self._end("paragraph")

    def _end(self, ending: Ending) -> None:
        """End the piece that is being gathered. A scene ends the last one."""
        if self._texts:
            id = f"c{self._chapter:04}-p{len(self._pieces) + 1:05}"
            text = self._gap.join(self._texts)
            fields = self._cast.fields(self._chapter, self._voice)
            self._pieces.append(Piece(id, self._chapter, text, ending, fields))
            self._texts.clear()
        elif ending == "scene" and self._pieces:
            last = self._pieces.pop()
            self._pieces.append(Piece(last.id, last.chapter, last.text, "scene", last.fields))


def _portions(text: str) -> Iterator[str]:
    """A paragraph, or its sentences in groups where it is very long."""
    if len(text) < 2 * PIECE_CHARS:
        yield text
        return
    start = end = 0
    for sentence in split(text, PIECE_CHARS, "sentence"):
        if sentence.end - start > PIECE_CHARS and end > start:
            yield text[start:end].strip()
            start = end
        end = sentence.end
    yield text[start:].strip()
