"""EPUB 2 and 3: the package, its table of contents and its pages, in the order of the spine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stentor.book.archive import Archive, resolved
from stentor.book.contents import Block, Book
from stentor.book.page import OPS, Node, blocks, body_role, local_name, parsed, title_of
from stentor.book.sections import Entry, Sheet, chapters_of
from stentor.output.tags import Picture

CONTAINER = "META-INF/container.xml"
ENCRYPTION = "META-INF/encryption.xml"
RIGHTS = ("META-INF/rights.xml", "META-INF/sinf.xml", "META-INF/license.lcpl")
OBFUSCATION = (
    "http://www.idpf.org/2008/embedding",
    "http://ns.adobe.com/pdf/enc#RC",
)
"""Algorithms by which fonts are scrambled. Text never is."""
XHTML = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
PICTURES = {"image/jpeg": "jpeg", "image/png": "png"}
MAX_ENTRIES = 10_000
DEPTH = 2
"""Levels of a table of contents whose entries are chapters."""


@dataclass(frozen=True)
class Item:
    """A file of the manifest."""

    id: str
    member: str
    media_type: str
    properties: frozenset[str]


class Package:
    """The package document of an EPUB."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.member = _package_member(archive)
        self.root = _xml(archive, self.member)
        self.items = {item.id: item for item in self._manifest()}
        self.by_member = {item.member: item for item in self.items.values()}

    def first(self, name: str) -> str:
        """The text of the first metadata element of this name, "" where there is none."""
        for node in self.root.iter():
            if local_name(node) == name:
                return " ".join("".join(node.itertext()).split())
        return ""

    def authors(self) -> str:
        """The authors, with commas between."""
        names = []
        for node in self.root.iter():
            role = node.get("{http://www.idpf.org/2007/opf}role", "aut")
            if local_name(node) == "creator" and role == "aut":
                names.append(" ".join("".join(node.itertext()).split()))
        return ", ".join(name for name in names if name)

    def spine(self) -> Iterator[Item]:
        """The pages in the order in which they are read. Those beside it, such as pop-ups, are left
        out."""
        for node in self.root.iter():
            if local_name(node) != "itemref" or node.get("linear") == "no":
                continue
            item = self.items.get(node.get("idref", ""))
            if item is not None and item.media_type in XHTML:
                yield item

    def navigation(self) -> Item | None:
        """The navigation document of EPUB 3."""
        return next((item for item in self.items.values() if "nav" in item.properties), None)

    def ncx(self) -> Item | None:
        """The table of contents of EPUB 2."""
        for node in self.root.iter():
            if local_name(node) == "spine" and node.get("toc") in self.items:
                return self.items[node.get("toc")]
        kind = "application/x-dtbncx+xml"
        return next((item for item in self.items.values() if item.media_type == kind), None)

    def guide(self) -> dict[str, str]:
        """The role of each page that the guide of EPUB 2 names."""
        pages = {}
        for node in self.root.iter():
            if local_name(node) == "reference":
                member, _ = resolved(self.member, node.get("href", ""))
                pages[member] = node.get("type", "").lower()
        return pages

    def cover(self) -> Picture | None:
        """The picture of the cover."""
        item = next((i for i in self.items.values() if "cover-image" in i.properties), None)
        if item is None:
            item = self.items.get(self._cover_id())
        if item is None or item.media_type not in PICTURES or item.member not in self._archive:
            return None
        return Picture(self._archive.read(item.member), PICTURES[item.media_type])

    def _cover_id(self) -> str:
        for node in self.root.iter():
            if local_name(node) == "meta" and node.get("name") == "cover":
                return str(node.get("content", ""))
        return ""

    def _manifest(self) -> Iterator[Item]:
        for node in self.root.iter():
            if local_name(node) != "item":
                continue
            member, _ = resolved(self.member, node.get("href", ""))
            properties = frozenset(node.get("properties", "").split())
            if member:
                yield Item(node.get("id", ""), member, node.get("media-type", ""), properties)


def read(path: Path, alt_text: bool) -> Book:
    """Read an EPUB. InvalidRequest("input") for a damaged or an encrypted one."""
    with Archive(path) as archive:
        _check_rights(archive)
        package = Package(archive)
        entries, roles = _contents(archive, package)
        sheets = list(_sheets(archive, package, roles, alt_text))
        if not any(sheet.blocks for sheet in sheets):
            raise archive.wrong("has no text")
        year = package.first("date")[:4]
        return Book(
            package.first("title") or path.stem,
            package.authors(),
            package.first("language"),
            year if year.isdecimal() else "",
            chapters_of(sheets, entries),
            package.cover(),
        )


def _check_rights(archive: Archive) -> None:
    """InvalidRequest for a book whose text is encrypted (DRM). Scrambled fonts are none of that."""
    if ENCRYPTION in archive:
        for node in _xml(archive, ENCRYPTION).iter():
            encrypts = local_name(node) == "encryptionmethod"
            if encrypts and node.get("Algorithm") not in OBFUSCATION:
                raise archive.wrong(
                    "is encrypted (DRM). Stentor reads files without copy protection only"
                )
    for member in RIGHTS:
        if member in archive and ENCRYPTION in archive:
            raise archive.wrong(
                f"is under copy protection ({member}). Stentor reads files without only"
            )


def _package_member(archive: Archive) -> str:
    if CONTAINER not in archive:
        raise archive.wrong(f"is no EPUB: it has no {CONTAINER}")
    for node in _xml(archive, CONTAINER).iter():
        if local_name(node) == "rootfile" and node.get("full-path"):
            member, _ = resolved("", node.get("full-path"))
            return member
    raise archive.wrong(f"is damaged: {CONTAINER} names no package")


def _xml(archive: Archive, member: str) -> Node:
    root = parsed(archive.read(member))
    if root is None:
        raise archive.wrong(f"is damaged: {member[:200]!r} is not XML")
    return root


def _contents(archive: Archive, package: Package) -> tuple[list[Entry], Mapping[str, str]]:
    """The table of contents, and the roles of pages."""
    roles = package.guide()
    navigation = package.navigation()
    if navigation is not None and navigation.member in archive:
        root = _xml(archive, navigation.member)
        roles = {**roles, **_landmarks(root, navigation.member)}
        roles[navigation.member] = "toc"
        entries = list(_nav_entries(root, navigation.member))
        if entries:
            return entries[:MAX_ENTRIES], roles
    ncx = package.ncx()
    if ncx is None or ncx.member not in archive:
        return [], roles
    return list(_ncx_entries(_xml(archive, ncx.member), ncx.member))[:MAX_ENTRIES], roles


def _navs(root: Node, kind: str) -> Iterator[Node]:
    for node in root.iter():
        types = f"{node.get(OPS + 'type', '')} {node.get('epub:type', '')}".split()
        if local_name(node) == "nav" and kind in types:
            yield node


def _nav_entries(root: Node, member: str) -> Iterator[Entry]:
    for nav in _navs(root, "toc"):
        for node in nav.iter():
            if local_name(node) not in ("a", "span"):
                continue
            depth = sum(local_name(above) == "ol" for above in node.iterancestors())
            target, fragment = resolved(member, node.get("href", "#"))
            title = " ".join("".join(node.itertext()).split())
            if node.get("href") and target and title and depth <= DEPTH:
                yield Entry(title, target, fragment)
        return


def _landmarks(root: Node, member: str) -> dict[str, str]:
    pages = {}
    for nav in _navs(root, "landmarks"):
        for node in nav.iter():
            kind = node.get(OPS + "type", "").lower()
            target, fragment = resolved(member, node.get("href", ""))
            if local_name(node) == "a" and kind and target and not fragment:
                pages[target] = kind
    return pages


def _ncx_entries(root: Node, member: str) -> Iterator[Entry]:
    for point in root.iter():
        if local_name(point) != "navpoint":
            continue
        depth = 1 + sum(local_name(above) == "navpoint" for above in point.iterancestors())
        title = target = fragment = ""
        for node in point:
            if local_name(node) == "navlabel":
                title = " ".join("".join(node.itertext()).split())
            elif local_name(node) == "content":
                target, fragment = resolved(member, node.get("src", ""))
        if title and target and depth <= DEPTH:
            yield Entry(title, target, fragment)


def _sheets(
    archive: Archive, package: Package, roles: Mapping[str, str], alt_text: bool
) -> Iterator[Sheet]:
    for item in package.spine():
        root = parsed(archive.read(item.member))
        if root is None:
            raise archive.wrong(f"is damaged: {item.member[:200]!r} is not XHTML")
        text: list[Block] = blocks(root, alt_text)
        role = body_role(root) or roles.get(item.member, "")
        yield Sheet(item.member, tuple(text), role, title_of(root))
