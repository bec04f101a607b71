"""The chapters of a book that are spoken, and the list of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stentor.book.contents import Block, Book, Chapter
from stentor.book.roles import is_read_aloud, matter
from stentor.errors import InvalidRequest

MATTERS = ("auto", "body", "all")
"""auto: without contents, copyright, notes and index. body: without any front or back matter."""
_RANGE = re.compile(r"(\d{1,5})?(-)?(\d{1,5})?")


@dataclass(frozen=True)
class Part:
    """A chapter with its number in the list, from 1, and whether it is spoken."""

    number: int
    chapter: Chapter
    spoken: bool


def chosen(book: Book, matters: str, wanted: str | None) -> list[Part]:
    """All chapters in order. matters: one of MATTERS, for a book of which no chapters are wanted by
    number. wanted: numbers as "3-7,9". InvalidRequest("chapters") for numbers that no chapter has,
    and for a book of which nothing would be spoken."""
    count = len(book.chapters)
    if wanted is None:
        numbers = None
    else:
        numbers = _numbers(wanted, count)
    parts = [
        Part(number, chapter, _is_spoken(number, chapter, matters, numbers))
        for number, chapter in enumerate(book.chapters, 1)
    ]
    if not any(part.spoken for part in parts):
        raise InvalidRequest(
            "chapters", f"none of the {count} parts is text to read aloud; name some (--chapters)"
        )
    return parts


def _is_spoken(number: int, chapter: Chapter, matters: str, numbers: set[int] | None) -> bool:
    if not any(block.text for block in chapter.blocks):
        return False
    if numbers is not None:
        return number in numbers
    if matters == "all":
        return True
    if matters == "body":
        return matter(chapter.role) == "body"
    return is_read_aloud(chapter.role)


def _numbers(wanted: str, count: int) -> set[int]:
    numbers: set[int] = set()
    for part in wanted.split(","):
        m = _RANGE.fullmatch(part.strip())
        if m is None or not (m[1] or m[3]):
            raise InvalidRequest("chapters", f"must be numbers such as 3-7,9, got {wanted[:80]!r}")
        first = int(m[1] or 1)
        last = first
        if m[2]:
            last = int(m[3] or count)
        if not 1 <= first <= last <= count:
            raise InvalidRequest(
                "chapters", f"{part.strip()!r} is not within the {count} chapters of the book"
            )
        numbers.update(range(first, last + 1))
    return numbers


def spoken_blocks(chapter: Chapter, titles: bool) -> list[Block]:
    """The blocks of a chapter as they are spoken. titles: with its title in front, where its text
    does not begin with it; else without the headings that it begins with."""
    blocks = list(chapter.blocks)
    if not titles:
        while blocks and blocks[0].kind != "paragraph":
            blocks.pop(0)
        return blocks or list(chapter.blocks)
    if not chapter.titled or _begins_with_title(chapter):
        return blocks
    return [Block("heading", chapter.title, level=1), *blocks]


def _begins_with_title(chapter: Chapter) -> bool:
    """Whether a chapter begins with a heading, or with its title as a paragraph."""
    first = next((block for block in chapter.blocks if block.text), None)
    if first is None or first.kind == "heading":
        return True
    return _letters(first.text).startswith(_letters(chapter.title))


def _letters(text: str) -> str:
    return "".join(sign for sign in text.casefold() if sign.isalnum())


def listed(book: Book, parts: Sequence[Part]) -> Iterator[str]:
    """The lines of `--list`: number, title, characters and minutes, and what is left out."""
    by = f" by {book.author}" * bool(book.author)
    yield f"{book.title}{by}"
    width = max(len(part.chapter.title) for part in parts)
    width = min(max(width, 5), 60)
    yield f"{'':>4}  {'title':<{width}}  {'chars':>8}  {'minutes':>7}"
    for part in parts:
        chapter = part.chapter
        note = ""
        if not part.spoken:
            note = f"  left out ({chapter.role or 'not chosen'})"
        title = chapter.title
        if len(title) > width:
            title = title[: width - 1] + "…"
        yield (
            f"{part.number:>4}  {title:<{width}}  {chapter.characters:>8,}  {chapter.minutes:>7.1f}{note}"
        )
    spoken = [part.chapter for part in parts if part.spoken]
    size = sum(chapter.characters for chapter in spoken)
    minutes = sum(chapter.minutes for chapter in spoken)
    yield f"{len(spoken)} of {len(parts)} chapters, {size:,} characters, about {_hours(minutes)}"


def _hours(minutes: float) -> str:
    if minutes < 60:
        return f"{minutes:.0f} min"
    return f"{int(minutes) // 60} h {int(minutes) % 60:02} min"
