"""Plain text and Markdown as blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from markdown_it import MarkdownIt

from stentor.arguments.untrusted import Unreadable
from stentor.arguments.untrusted_yaml import parse_yaml
from stentor.book.contents import Block, Book, is_scene_break
from stentor.book.sections import chapters_by_headings
from stentor.text.cleanup import cleaned
from stentor.text.draft import SCENE

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n((?:[^\n]*\n){1,200}?)(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_NOTE = re.compile(r"^[ ]{0,3}\[\^[^\]\s]{1,40}\]:")
_PARAGRAPHS = re.compile(r"(\n[ \t]*(?:\n[ \t]*)+)")
_NUMBER = (
    r"(?:\d{1,3}|[IVXLC]{1,8}|[A-Z][a-z]{2,8}(?:[- ][A-Za-z]{3,8})?|[A-Z]{3,9}(?:[- ][A-Z]{3,8})?)"
)
_HEADING = re.compile(
    rf"(?:(?i:chapter|part|book|volume|section|canto|act|scene|letter|stave|kapitel|teil|chapitre|capítulo)\s+{_NUMBER}\b"
    r"[^\n]{0,80}(?:\n[^\n]{1,80})?"
    r"|(?i:prologue|epilogue|preface|foreword|introduction|contents|table of contents|dedication|acknowledge?ments"
    r"|afterword|appendix|index|notes|glossary|bibliography|vorwort|nachwort|prolog|epilog)\b\.?"
    r"|[IVXLC]{1,8}\.?(?:[ \t]+[^\n]{1,60})?)"
)
_CHAPTER_LINE = re.compile(
    rf"^[ \t]*(?i:chapter|part|book|kapitel|chapitre|capítulo)[ \t]+{_NUMBER}\b[^\n]{{0,60}}$", re.M
)
_GUTENBERG_START = re.compile(r"^\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG[^\n]*$", re.M)
_GUTENBERG_END = re.compile(r"^\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG", re.M)
_FACT = re.compile(r"^(Title|Author|Language|Release Date):[ \t]*([^\n]+)$", re.M)
WHOLE_TEXT = ("characters", "layout", "lines")
"""Steps of the clean-up that see pages and lines, and so read all of a text at once."""


def markdown_book(text: str, name: str) -> Book:
    """A book in Markdown. Its front matter may name title, author, language and date."""
    facts, body = _front_matter(text)
    blocks = list(_markdown_blocks(body))
    top = [block for block in blocks if block.kind == "heading" and block.level == 1]
    title = str(facts.get("title") or (top[0].text if len(top) == 1 else "") or name)
    return Book(
        title,
        _names(facts.get("author") or facts.get("authors") or facts.get("creator")),
        str(facts.get("language") or facts.get("lang") or ""),
        str(facts.get("date") or facts.get("year") or "")[:4],
        chapters_by_headings(blocks, title),
    )


def text_book(text: str, name: str) -> Book:
    """A book in plain text, with headings such as "Chapter 1" on lines of their own."""
    facts = {m[1]: m[2].strip() for m in _FACT.finditer(text[:20_000])}
    body = _without_gutenberg(text)
    title = facts.get("Title", name)
    blocks = text_blocks(body)
    return Book(
        title,
        facts.get("Author", ""),
        "",
        "",
        chapters_by_headings(blocks, title),
    )


def text_blocks(text: str) -> list[Block]:
    """The headings, paragraphs and scene breaks of a plain text."""
    pieces = _PARAGRAPHS.split(cleaned(text, WHOLE_TEXT).text.strip("\n"))
    blocks: list[Block] = []
    for at, piece in enumerate(pieces):
        if at % 2 and piece.count("\n") >= len(SCENE):
            blocks.append(Block("scene", ""))
        elif at % 2 == 0 and piece.strip():
            blocks.append(_text_block(piece.strip()))
    return blocks


def with_headings_apart(text: str) -> str:
    """A text of pages, on which no empty line stands around headings, with such lines."""
    return _CHAPTER_LINE.sub(r"\n\n\g<0>\n\n", text)


def _text_block(text: str) -> Block:
    title = text.strip("*_ ").removesuffix(".")
    if is_scene_break(text):
        return Block("scene", "")
    if _HEADING.fullmatch(title) and not title.endswith((",", ";", "”", '"')):
        return Block("heading", title, level=1)
    return Block("paragraph", text)


def _without_gutenberg(text: str) -> str:
    """A text without what Project Gutenberg puts around it."""
    start = _GUTENBERG_START.search(text)
    if start is not None:
        text = text[start.end() :]
    end = _GUTENBERG_END.search(text)
    if end is not None:
        text = text[: end.start()]
    return text


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text
    try:
        facts = parse_yaml(match[1], yaml.BaseLoader)
    except Unreadable:
        return {}, text
    if not isinstance(facts, dict):
        return {}, text
    return facts, text[match.end() :]


def _names(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value or "")


def _markdown_blocks(text: str) -> Iterator[Block]:
    """The blocks of the top level: each is read by the clean-up, as Markdown that somebody has
    pasted."""
    lines = text.splitlines(keepends=True)
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    for token in tokens:
        if token.level or token.map is None or token.nesting < 0:
            continue
        source = "".join(lines[token.map[0] : token.map[1]]).strip("\n")
        if token.type == "hr" or is_scene_break(source):
            yield Block("scene", "")
        elif token.type == "heading_open":
            yield from _heading(source, int(token.tag[1:]))
        else:
            yield from _paragraph(source)


def _heading(source: str, level: int) -> Iterator[Block]:
    title = cleaned(source.strip().strip("#").strip().rstrip("=-\n"), _INLINE).text.strip()
    if title:
        yield Block("heading", title, level=level)


_INLINE = ("html", "characters", "formulas", "notes", "markdown")
_MARKDOWN = (*_INLINE, "lines")


def _paragraph(source: str) -> Iterator[Block]:
    body = "\n".join(_without_notes(source.split("\n")))
    if body.strip():
        yield Block("paragraph", cleaned(body, _MARKDOWN).text.strip())


def _without_notes(lines: Sequence[str]) -> Iterator[str]:
    """Lines without footnotes, each of which ends where its paragraph does."""
    note = False
    for line in lines:
        note = bool(_NOTE.match(line)) or (note and bool(line.strip()))
        if not note:
            yield line
