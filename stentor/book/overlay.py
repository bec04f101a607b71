"""EPUB 3 with media overlays: the text of a book, whose sentences light up while they are read."""

from __future__ import annotations

import html
import re
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stentor.batch import disk
from stentor.book.contents import Book
from stentor.book.joining import SpokenPiece
from stentor.book.writing import WrittenChapter
from stentor.output.marks import Marks
from stentor.speech.timing import SegmentTiming

ACTIVE_CLASS = "-epub-media-overlay-active"
FORMAT = "m4a"
"""AAC in MP4: every reader has it, and its times are exact, as its edit list names the priming."""
MODIFIED = "2000-01-01T00:00:00Z"
"""The date that the format asks for. It is always the same, so that a book has the same bytes."""
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_GAP = re.compile(r"\n\n(?:\[pause [\d.]+s\]\n\n)?")
_NAMESPACES = 'xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"'
_STYLE = f".{ACTIVE_CLASS} {{ background-color: #ffe08a; color: #000; }}\n"


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page: its name there, and its times in the audio."""

    id: str
    timing: SegmentTiming


class Page:
    """The page of a chapter, and the overlay that goes with it."""

    def __init__(self, at: int, chapter: WrittenChapter, language: str) -> None:
        self.name = f"chapter-{at:04}"
        self.chapter = chapter
        self.sentences: list[Sentence] = []
        self._language = language
        self._body: list[str] = []
        self._open = ""  # tag of the block that is being written

    def xhtml(self) -> str:
        """The page, which also makes `sentences`."""
        for spoken, start in zip(
            self.chapter.source.pieces, self.chapter.source.starts, strict=True
        ):
            self._piece(spoken, self.chapter.start + start)
        self._close()
        body = "\n".join(self._body)
        title = html.escape(self.chapter.title)
        return (
            f'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n'
            f'<html {_NAMESPACES} xml:lang="{self._language}" lang="{self._language}"><head><title>{title}</title>'
            '<link rel="stylesheet" type="text/css" href="style.css"/></head>\n'
            f'<body><section epub:type="chapter">\n{body}\n</section></body></html>\n'
        )

    def smil(self) -> str:
        """The overlay: which part of the audio belongs to which sentence."""
        pars = "\n".join(
            f'<par id="par-{sentence.id}"><text src="{self.name}.xhtml#{sentence.id}"/>'
            f'<audio src="{self.name}.{FORMAT}" clipBegin="{sentence.timing.start:.3f}s" '
            f'clipEnd="{sentence.timing.end:.3f}s"/></par>'
            for sentence in self.sentences
        )
        return (
            '<?xml version="1.0" encoding="utf-8"?>\n<smil xmlns="http://www.w3.org/ns/SMIL" '
            'xmlns:epub="http://www.idpf.org/2007/ops" version="3.0"><body>\n'
            f'<seq id="seq" epub:textref="{self.name}.xhtml">\n{pars}\n</seq></body></smil>\n'
        )

    @property
    def seconds(self) -> float:
        """Seconds of audio that its overlay plays."""
        return sum(
            round(each.timing.end, 3) - round(each.timing.start, 3) for each in self.sentences
        )

    def _piece(self, spoken: SpokenPiece, start: float) -> None:
        piece = spoken.piece
        borders = [m.end() for m in _GAP.finditer(piece.text)]
        tag = "p"
        if piece.ending == "heading":
            tag = "h2"
        for segment in spoken.segments(start):
            while borders and segment.start_char >= borders[0]:
                borders.pop(0)
                self._close()
            self._sentence(segment, tag)
        if piece.ending not in ("stop", "turn"):
            self._close()
        if piece.ending == "scene":
            self._body.append("<hr/>")

    def _sentence(self, segment: SegmentTiming, tag: str) -> None:
        if segment.end - segment.start < 0.001:
            return
        sentence = Sentence(f"s{len(self.sentences) + 1}", segment)
        self.sentences.append(sentence)
        text = html.escape(segment.text.strip(), quote=False).replace("\n", "<br/>")
        if not self._open:
            self._open = tag
            self._body.append(f"<{tag}>")
        self._body.append(f'<span id="{sentence.id}">{text}</span>')

    def _close(self) -> None:
        if self._open:
            self._body.append(f"</{self._open}>")
        self._open = ""


def write(
    path: Path, book: Book, chapters: Sequence[WrittenChapter], narrator: str, marks: Marks
) -> None:
    """Write an EPUB of chapters whose audio has been written into files of `FORMAT`."""
    language = book.language or "en"
    pages = [Page(at, chapter, language) for at, chapter in enumerate(chapters, 1)]
    with disk.written_aside(path) as aside, zipfile.ZipFile(aside, "w") as archive:
        _add(archive, "mimetype", b"application/epub+zip", zipfile.ZIP_STORED)
        _add(archive, "META-INF/container.xml", _CONTAINER.encode())
        _add(archive, "EPUB/style.css", _STYLE.encode())
        for page in pages:
            _add(archive, f"EPUB/{page.name}.xhtml", page.xhtml().encode())
            _add(archive, f"EPUB/{page.name}.smil", page.smil().encode())
            info = zipfile.ZipInfo(f"EPUB/{page.name}.{FORMAT}", ZIP_DATE)
            with archive.open(info, "w") as member, page.chapter.file.open("rb") as audio:
                while data := audio.read(1 << 20):
                    member.write(data)
        if book.cover is not None:
            _add(archive, f"EPUB/cover.{book.cover.format}", book.cover.data)
        _add(archive, "EPUB/nav.xhtml", _navigation(pages, language).encode())
        _add(archive, "EPUB/package.opf", _package(book, pages, language, narrator, marks).encode())


_CONTAINER = (
    '<?xml version="1.0"?>\n<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
    '<rootfiles><rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/></rootfiles>'
    "</container>\n"
)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, how: int = zipfile.ZIP_DEFLATED) -> None:
    info = zipfile.ZipInfo(name, ZIP_DATE)
    info.compress_type = how
    archive.writestr(info, data)


def _navigation(pages: Sequence[Page], language: str) -> str:
    lines = "\n".join(
        f'<li><a href="{page.name}.xhtml">{html.escape(page.chapter.title)}</a></li>'
        for page in pages
    )
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html {_NAMESPACES} xml:lang="{language}" '
        f'lang="{language}"><head><title>Contents</title></head>\n'
        f'<body><nav epub:type="toc"><ol>\n{lines}\n</ol></nav></body></html>\n'
    )


def _package(book: Book, pages: Sequence[Page], language: str, narrator: str, marks: Marks) -> str:
    metadata = "\n".join(_metadata(book, pages, language, narrator, marks))
    items = "\n".join(_items(book, pages))
    spine = "".join(f'<itemref idref="{page.name}"/>' for page in pages)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<package xmlns="http://www.idpf.org/2007/opf" version="3.0" '
        f'unique-identifier="id" xml:lang="{language}">\n'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">\n{metadata}\n</metadata>\n'
        f"<manifest>\n{items}\n</manifest>\n<spine>{spine}</spine>\n</package>\n"
    )


def _metadata(
    book: Book, pages: Sequence[Page], language: str, narrator: str, marks: Marks
) -> Iterator[str]:
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{book.title}\n{book.author}\n{marks.comment}")
    yield f'<dc:identifier id="id">urn:uuid:{name}</dc:identifier>'
    yield f"<dc:title>{html.escape(book.title)}</dc:title>"
    yield f"<dc:language>{html.escape(language)}</dc:language>"
    if book.author:
        yield f"<dc:creator>{html.escape(book.author)}</dc:creator>"
    if book.year:
        yield f"<dc:date>{book.year}</dc:date>"
    if marks.comment is not None:
        yield f"<dc:description>{html.escape(marks.comment)}</dc:description>"
    yield f'<meta property="dcterms:modified">{MODIFIED}</meta>'
    yield f'<meta property="media:active-class">{ACTIVE_CLASS}</meta>'
    yield f'<meta property="media:narrator">{html.escape(narrator)}</meta>'
    total = sum(page.seconds for page in pages)
    yield f'<meta property="media:duration">{total:.3f}s</meta>'
    for page in pages:
        yield f'<meta property="media:duration" refines="#{page.name}-smil">{page.seconds:.3f}s</meta>'


def _items(book: Book, pages: Sequence[Page]) -> Iterator[str]:
    yield '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
    yield '<item id="style" href="style.css" media-type="text/css"/>'
    if book.cover is not None:
        kind = book.cover.format
        yield f'<item id="cover" href="cover.{kind}" media-type="image/{kind}" properties="cover-image"/>'
    for page in pages:
        name = page.name
        yield (
            f'<item id="{name}" href="{name}.xhtml" media-type="application/xhtml+xml" media-overlay="{name}-smil"/>'
        )
        yield f'<item id="{name}-smil" href="{name}.smil" media-type="application/smil+xml"/>'
        yield f'<item id="{name}-audio" href="{name}.{FORMAT}" media-type="audio/mp4"/>'
