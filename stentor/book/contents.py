"""The contents of a book, whatever kind of file it was read from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stentor.output.tags import Picture

Kind = Literal["heading", "paragraph", "scene"]

CHARS_PER_SECOND = 15.0
"""Characters of English prose that a narrator reads in a second, for estimates."""
_SCENE = re.compile(r"[*#~•·⁂❦❧☙◆◇§=_.\s—–-]+")


def is_scene_break(text: str) -> bool:
    """Whether a paragraph holds signs only, such as `* * *`."""
    return _SCENE.fullmatch(text) is not None


@dataclass(frozen=True)
class Block:
    """A heading, a paragraph or a scene break, which has no text.

    text: as `stentor.text` reads marks, so `&lt;`, `&gt;` and `&amp;` may stand for signs. anchors:
    names by which links of the same file reach it. role: of the part of the book around it, as EPUB
    names them ("dedication"), "" where the file has none.
    """

    kind: Kind
    text: str
    anchors: tuple[str, ...] = ()
    role: str = ""
    level: int = 0


@dataclass(frozen=True)
class Chapter:
    """A chapter. role: as EPUB names it. titled: its title comes from the book, and not from its
    place in it."""

    title: str
    blocks: tuple[Block, ...]
    role: str = ""
    titled: bool = True

    @property
    def characters(self) -> int:
        """Characters of its text."""
        return sum(len(block.text) for block in self.blocks)

    @property
    def minutes(self) -> float:
        """The time that it takes to read aloud, by its length."""
        return self.characters / CHARS_PER_SECOND / 60


@dataclass(frozen=True)
class Book:
    """A book. language: as the file names it ("en-GB"), "" where it names none. year: "" too."""

    title: str
    author: str
    language: str
    year: str
    chapters: tuple[Chapter, ...]
    cover: Picture | None = None


def characters(chapters: Sequence[Chapter]) -> int:
    """Characters of several chapters."""
    return sum(chapter.characters for chapter in chapters)
