"""HTML, DOCX and PDF as books. The last two need a library each."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from stentor.arguments.untrusted import MIB, Unreadable, read_bytes
from stentor.book.archive import Archive
from stentor.book.contents import Block, Book
from stentor.book.plain import text_blocks, with_headings_apart
from stentor.book.sections import chapters_by_headings
from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install

FILE_BYTES = 256 * MIB
PDF_TEXT = 64 * MIB
"""Most characters of a PDF, whose pages may share what they show."""


def contents(path: Path, limit: int = FILE_BYTES) -> bytes:
    """The bytes of a file. InvalidRequest("input") where it cannot be read."""
    try:
        return read_bytes(path, limit)
    except Unreadable as e:
        raise InvalidRequest("input", f"{str(path)!r} {e}") from None


def html_book(path: Path, alt_text: bool) -> Book:
    """A book in one page of HTML."""
    from stentor.book.page import parsed

    root = parsed(contents(path))
    if root is None:
        raise InvalidRequest("input", f"{path.name!r} is no HTML")
    return _of_page(root, path.stem, alt_text)


def docx_book(path: Path, alt_text: bool) -> Book:
    """A book in a DOCX file, by its styles of headings. Its notes are left out."""
    _need("mammoth", "books")
    import mammoth

    from stentor.book.page import parsed

    with Archive(path) as archive:  # within its limits
        if "word/document.xml" not in archive:
            raise archive.wrong("is no DOCX: it has no word/document.xml")
        archive.read("word/document.xml")
    try:
        page = mammoth.convert_to_html(io.BytesIO(contents(path))).value
    except Exception as e:  # the library has no class for what it cannot read
        raise InvalidRequest("input", f"{path.name!r} is damaged: {e}") from None
    root = parsed(f"<html><body>{page}</body></html>".encode())
    if root is None:
        raise InvalidRequest("input", f"{path.name!r} has no text")
    for node in root.iter("li"):
        if node.get("id", "").startswith(("footnote-", "endnote-")):
            node.set("role", "doc-footnote")
    return _of_page(root, path.stem, alt_text)


def pdf_book(path: Path) -> Book:
    """A book in a PDF with text. Scans have none."""
    _need("pypdf", "books")
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(io.BytesIO(contents(path)))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InvalidRequest("input", f"{path.name!r} is encrypted: it needs a password")
        pages = _pages(reader, path.name)
        facts: Any = reader.metadata or {}
    except InvalidRequest:
        raise
    except (PyPdfError, ValueError, KeyError, TypeError, RecursionError, OSError) as e:
        raise InvalidRequest("input", f"{path.name!r} is damaged: {e}") from None
    text = with_headings_apart("\n".join(pages))
    if not any(sign.isalnum() for sign in text):
        raise InvalidRequest("input", f"{path.name!r} has no text: a scan needs OCR first")
    title = str(facts.get("/Title") or path.stem)
    author = str(facts.get("/Author") or "")
    return Book(title, author, "", "", chapters_by_headings(text_blocks(text), title))


def _pages(reader: Any, name: str) -> list[str]:
    pages: list[str] = []
    size = 0
    for page in reader.pages:
        pages.append(page.extract_text())
        size += len(pages[-1])
        if size > PDF_TEXT:
            raise InvalidRequest(
                "input", f"{name!r} is refused: it has more than {PDF_TEXT // MIB} Mi characters"
            )
    return pages


def _of_page(root: Any, name: str, alt_text: bool) -> Book:
    from stentor.book.page import blocks, local_name, title_of

    text = blocks(root, alt_text)
    facts = {
        node.get("name", "").lower(): node.get("content", "")
        for node in root.iter()
        if local_name(node) == "meta"
    }
    title = facts.get("dc.title") or title_of(root) or _first_heading(text) or name
    author = facts.get("author") or facts.get("dc.creator") or ""
    language = root.get("lang") or root.get("{http://www.w3.org/XML/1998/namespace}lang") or ""
    return Book(title, author, language, "", chapters_by_headings(text, title))


def _first_heading(text: list[Block]) -> str:
    return next((block.text for block in text if block.kind == "heading"), "")


def _need(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise InvalidRequest("input", f"needs {module}: {pip_install(extra)}")
