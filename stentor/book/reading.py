"""Opens a book by its kind."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

from stentor.book.contents import Book
from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.text.files import decoded

MARKDOWN = (".md", ".markdown")
TEXT = (".txt", ".text")
HTML = (".html", ".htm", ".xhtml")
SUFFIXES = (".epub", *HTML, *MARKDOWN, *TEXT, ".docx", ".pdf")
PROTECTED = (".acsm", ".azw", ".azw3", ".kfx", ".aax", ".lcpl")
"""Suffixes of books under copy protection."""


def read(path: Path, alt_text: bool = False) -> Book:
    """Read a book. alt_text: with the descriptions of its pictures.

    InvalidRequest("input") names in one line what is wrong: a kind that is not known, a damaged or
    an encrypted file, one that unpacks to more than is allowed, or one without text.
    """
    book = _read(path, alt_text)
    if not any(block.text for chapter in book.chapters for block in chapter.blocks):
        raise InvalidRequest("input", f"{path.name!r} has no text")
    return book


def _read(path: Path, alt_text: bool) -> Book:
    from stentor.book import documents, plain

    suffix = path.suffix.lower()
    if suffix == ".epub":
        _need_lxml()
        from stentor.book import epub

        return epub.read(path, alt_text)
    if suffix in HTML:
        _need_lxml()
        return documents.html_book(path, alt_text)
    if suffix == ".docx":
        _need_lxml()
        return documents.docx_book(path, alt_text)
    if suffix == ".pdf":
        return documents.pdf_book(path)
    if suffix in MARKDOWN:
        return plain.markdown_book(_text(path), path.stem)
    if suffix in TEXT:
        return plain.text_book(_text(path), path.stem)
    raise InvalidRequest("input", _unknown(path, suffix))


def _text(path: Path) -> str:
    from stentor.book.documents import contents

    data = contents(path)
    text = decoded(data, repr(path.name), "input")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unknown(path: Path, suffix: str) -> str:
    if suffix in PROTECTED:
        return f"{path.name!r} is under copy protection. Stentor reads files without only"
    if path.is_dir():
        return f"{str(path)!r} is a folder; name a file"
    what = suffix or "a file without suffix"
    if path.is_file() and zipfile.is_zipfile(path):
        what += " (a zip file)"
    return f"cannot read {what}; use {', '.join(SUFFIXES)}"


def _need_lxml() -> None:
    if importlib.util.find_spec("lxml") is None:
        raise InvalidRequest("input", f"needs lxml: {pip_install('books')}")
