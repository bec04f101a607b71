"""Chapters of a book, from its table of contents or from its headings."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stentor.book.contents import Block, Chapter
from stentor.book.roles import role_of_title

MAX_TITLE = 120
_GENERAL = frozenset({"text", "bodymatter", "start", "chapter", "part", "volume", "division"})
"""Roles that do not tell whether a part is the text itself."""


@dataclass(frozen=True)
class Sheet:
    """A page of a book. member: its file. title: of the file, which may be the book's."""

    member: str
    blocks: tuple[Block, ...]
    role: str = ""
    title: str = ""


@dataclass(frozen=True)
class Entry:
    """A line of a table of contents, and where it leads."""

    title: str
    member: str
    fragment: str


def chapters_of(sheets: Sequence[Sheet], entries: Sequence[Entry]) -> tuple[Chapter, ...]:
    """Cut pages at the entries of a table of contents. Without one, each page begins a chapter,
    unless it has no heading and so continues the one before."""
    begins = _begins(sheets, entries)
    if not begins:
        begins = _begins_of_sheets(sheets)
    flat = [(sheet, block) for sheet in sheets for block in sheet.blocks]
    return tuple(_cut(flat, begins))


def chapters_by_headings(blocks: Sequence[Block], title: str) -> tuple[Chapter, ...]:
    """Cut one text at its headings: at those of the highest level that stands there more than once.
    title: of the whole."""
    levels = Counter(block.level for block in blocks if block.kind == "heading")
    repeated = [level for level, count in sorted(levels.items()) if count > 1]
    level = next(iter(repeated or sorted(levels)), 0)
    begins = {
        at: _title(block.text)
        for at, block in enumerate(blocks)
        if block.kind == "heading" and block.level == level
    }
    sheet = Sheet("", tuple(blocks), title=title)
    if len(begins) < 2:
        begins = {}
    if not begins:
        return tuple(_cut([(sheet, block) for block in blocks], {0: title}))
    return tuple(_cut([(sheet, block) for block in blocks], begins))


def _begins(sheets: Sequence[Sheet], entries: Sequence[Entry]) -> dict[int, str]:
    """The title of the chapter that begins at each place among all blocks."""
    places: dict[tuple[str, str], int] = {}
    at = 0
    for sheet in sheets:
        places.setdefault((sheet.member, ""), at)
        for block in sheet.blocks:
            for anchor in block.anchors:
                places.setdefault((sheet.member, anchor), at)
            at += 1
    begins: dict[int, str] = {}
    for entry in entries:
        place = places.get((entry.member, entry.fragment), places.get((entry.member, "")))
        if place is None or place >= at:
            continue
        title = _title(entry.title)
        if place in begins and title.casefold() not in begins[place].casefold():
            title = _title(f"{begins[place].rstrip('.')}. {title}")
        elif place in begins:
            title = begins[place]
        begins[place] = title
    return begins


def _begins_of_sheets(sheets: Sequence[Sheet]) -> dict[int, str]:
    begins: dict[int, str] = {}
    at = 0
    for sheet in sheets:
        heading = next((block for block in sheet.blocks if block.kind == "heading"), None)
        if sheet.blocks and (heading is not None or sheet.role or not begins):
            begins[at] = _title(heading.text if heading else "")
        at += len(sheet.blocks)
    return begins


def _cut(flat: Sequence[tuple[Sheet, Block]], begins: dict[int, str]) -> Iterator[Chapter]:
    """The chapters between the places where they begin. What stands before the first is a chapter
    of its own, and so is each page there."""
    first = min(begins, default=0)
    starts = dict(begins)
    for at in range(first):
        if at == 0 or flat[at][0] is not flat[at - 1][0]:
            starts[at] = ""
    places = sorted(starts)
    for at, end in zip(places, [*places[1:], len(flat)], strict=True):
        part = flat[at:end]
        if part:
            yield _chapter(starts[at], part, before=at < first)


def _chapter(title: str, part: Sequence[tuple[Sheet, Block]], before: bool) -> Chapter:
    sheet, block = part[0]
    role = block.role
    if not role or role in _GENERAL:
        role = sheet.role or role
    heading = ""
    if block.kind == "heading":
        heading = _title(block.text)
    name = title or heading
    if not role or role in _GENERAL:
        role = role_of_title(name or sheet.title) or role
    if before and (not role or role in _GENERAL):
        role = "frontmatter"
    blocks = tuple(block for _, block in part)
    return Chapter(name or _placed_title(role, sheet), blocks, role, bool(name))


def _placed_title(role: str, sheet: Sheet) -> str:
    """A title for a part that has none, for lists only."""
    if role and role not in _GENERAL:
        return role.replace("-", " ").capitalize()
    return _title(sheet.title) or "Untitled"


def _title(text: str) -> str:
    """A text on one line, as a reader sees it."""
    line = " ".join(html.unescape(text).split())
    if len(line) > MAX_TITLE:
        return line[: MAX_TITLE - 1].rstrip() + "…"
    return line
