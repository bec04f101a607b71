"""HTML and XHTML as blocks of text. Notes, their marks and page numbers are left out by their
roles."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from html.entities import html5
from typing import Any

from lxml import etree
from lxml.html import HTMLParser

from stentor.book.contents import Block, Kind, is_scene_break
from stentor.book.roles import KNOWN, NEVER_SPOKEN
from stentor.text.cleanup.pages import without_html
from stentor.text.draft import Draft

Node = Any
"""An element of a page: lxml has no types."""
OPS = "{http://www.idpf.org/2007/ops}"
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure "
    "footer header hgroup hr html legend li main menu ol p pre section summary table tbody td tfoot th thead tr ul".split()
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_UNSPOKEN = frozenset(
    "applet audio button canvas embed form head iframe map math nav noscript object rp rt script select style svg "
    "template textarea video".split()
)
_WRITTEN = frozenset({"sup", "sub", "br"})
"""Tags that the clean-up reads inside a block. Others do not change how a text is spoken."""
_TABLE = frozenset("table caption tbody thead tfoot tr td th p div li".split())
"""Tags that it also reads inside a table."""
_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]{1,31};)")
_XML_ENTITIES = (b"amp;", b"lt;", b"gt;", b"quot;", b"apos;")
_SPACES = re.compile(r"[^\S\u00a0]+")
_NOTE_MARK = re.compile(r"[\[(]?(?:\d{1,4}|[a-zA-Z]|[ivxlc]{1,6}|[*†‡§¶]{1,3})[\])]?")
_GUTENBERG = frozenset({"pg-header", "pg-footer", "pg-machine-header"})
"""Names that Project Gutenberg gives to what it puts around a book."""


def parsed(data: bytes) -> Node | None:
    """Parse a page: as XML, else as the HTML of browsers. No entity is expanded and nothing is
    fetched. None for a page without any element."""
    try:
        return etree.fromstring(_ENTITY.sub(_numeric, data), _xml_parser())
    except (etree.XMLSyntaxError, ValueError):
        pass
    try:
        data.decode()
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = None
    parser = HTMLParser(encoding=encoding, no_network=True, remove_comments=True, remove_pis=True)
    try:
        return etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


def _xml_parser() -> etree.XMLParser:
    return etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )


def _numeric(m: re.Match[bytes]) -> bytes:
    """A named entity of HTML as numbers, which XML knows without a DTD."""
    signs = html5.get(m[1].decode())
    if m[1] in _XML_ENTITIES or signs is None:
        return m[0]
    return b"".join(b"&#%d;" % ord(sign) for sign in signs)


def local_name(node: Node) -> str:
    """The name of an element without its namespace, "" for what is no element."""
    if not isinstance(node.tag, str):
        return ""
    return node.tag.rpartition("}")[2].lower()


def roles(node: Node) -> frozenset[str]:
    """The roles of an element, by EPUB and by ARIA."""
    epub = f"{node.get(OPS + 'type', '')} {node.get('epub:type', '')}".lower().split()
    aria = [name.removeprefix("doc-") for name in node.get("role", "").lower().split()]
    return frozenset(epub + aria)


def body_role(root: Node) -> str:
    """The role of a page: of its body, or of the only section in it."""
    for node in root.iter():
        if local_name(node) in ("body", "section", "article") and (names := roles(node) & KNOWN):
            return min(names)
    return ""


def title_of(root: Node) -> str:
    """The text of the `<title>`."""
    for node in root.iter():
        if local_name(node) == "title":
            return " ".join("".join(node.itertext()).split())
    return ""


def blocks(root: Node, alt_text: bool = False) -> list[Block]:
    """The text of a page. alt_text: with the descriptions of its pictures."""
    return list(_Walk(alt_text).blocks(root, ""))


class _Walk:
    """Goes through a page, and gathers inline text until a block ends.

    A block is written once more as HTML of few tags, which the clean-up reads as it reads a page
    that somebody has pasted: it knows raised numbers, lines of poems and cells.
    """

    def __init__(self, alt_text: bool) -> None:
        self._alt_text = alt_text
        self._markup: list[str] = []
        self._anchors: list[str] = []

    def blocks(self, node: Node, role: str, inside: str = "") -> Iterator[Block]:
        """The blocks of an element. inside: the heading or table around it."""
        name = local_name(node)
        if self._is_left_out(node, name):
            return
        block = name in _BLOCKS or name in _HEADINGS
        if block and not inside:
            yield from self._end("paragraph", role)
        role = next(iter(sorted(roles(node) & KNOWN)), role)
        self._note_anchors(node)
        if name == "hr":
            yield Block("scene", "", self._take_anchors(), role)
            return
        outer = inside
        if name in _HEADINGS or name in ("table", "pre"):
            inside = inside or name
        written = name in _WRITTEN or (inside == "table" and name in _TABLE)
        if written:
            self._markup.append(f"<{name}>")
        elif name == "img" and self._alt_text:
            self._markup.append(f" {html.escape(node.get('alt', ''), quote=False)} ")
        yield from self._content(node, role, inside)
        if written and name != "br":
            self._markup.append(f"</{name}>")
        if block and not outer:
            yield from self._end(_kind(name), role, _HEADINGS.get(name, 0))

    def _content(self, node: Node, role: str, inside: str) -> Iterator[Block]:
        self._text(node.text, inside)
        for child in node:
            if isinstance(child.tag, str):
                yield from self.blocks(child, role, inside)
            self._text(child.tail, inside)

    def _text(self, text: str | None, inside: str) -> None:
        if not text:
            return
        if inside != "pre":
            text = _SPACES.sub(" ", text)
        self._markup.append(html.escape(text, quote=False))

    def _is_left_out(self, node: Node, name: str) -> bool:
        if name in _UNSPOKEN or node.get("hidden") is not None or node.get("id") in _GUTENBERG:
            return True
        if node.get("aria-hidden") == "true" or roles(node) & NEVER_SPOKEN:
            return True
        return _is_note_mark(node, name)

    def _note_anchors(self, node: Node) -> None:
        for name in (node.get("id"), node.get("name")):
            if name:
                self._anchors.append(name)

    def _take_anchors(self) -> tuple[str, ...]:
        anchors = tuple(self._anchors)
        self._anchors.clear()
        return anchors

    def _end(self, kind: Kind, role: str, level: int = 0) -> Iterator[Block]:
        """The block that ends here, if there is any text."""
        markup = "".join(self._markup)
        self._markup.clear()
        if not markup.strip():
            return
        text = without_html(Draft.of(markup)).text.strip()
        if not text:
            return
        if is_scene_break(text):
            yield Block("scene", "", self._take_anchors(), role)
        else:
            yield Block(kind, text, self._take_anchors(), role, level)


def _kind(name: str) -> Kind:
    if name in _HEADINGS:
        return "heading"
    return "paragraph"


def _is_note_mark(node: Node, name: str) -> bool:
    """Whether an element is a raised number that links to a note: a link in a `<sup>`, or a `<sup>`
    in a link."""
    if name == "sup":
        links = [child for child in node if local_name(child) == "a"]
    elif name == "a" and [local_name(child) for child in node] == ["sup"]:
        links = [node]
    else:
        return False
    text = "".join(node.itertext()).strip()
    return bool(_NOTE_MARK.fullmatch(text)) and any("#" in link.get("href", "") for link in links)
