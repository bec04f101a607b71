"""Three small books, made of texts of this tree and of verses in the public domain, and files that are no books."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTAINER = (
    '<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
    '<rootfiles><rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
TYGER = (
    "Tyger Tyger, burning bright,",
    "In the forests of the night;",
    "What immortal hand or eye,",
    "Could frame thy fearful symmetry?",
)
XHTML = 'xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"'


def sentences() -> list[str]:
    """The test sentences of the built-in voice."""
    text = (ROOT / "training" / "test_sentences.txt").read_text("utf-8")
    return text.split("\n")[:-1]


def paragraph(chapter: int, count: int = 3) -> str:
    """Some of them, others for each chapter."""
    lines = sentences()
    first = (chapter * count) % (len(lines) - count + 1)
    return " ".join(lines[first : first + count])


def png(width: int = 60, height: int = 80) -> bytes:
    """A picture for a cover."""
    rows = b"".join(b"\0" + bytes((200, 40, 40)) * width for _ in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def zipped(path: Path, members: Mapping[str, str | bytes]) -> Path:
    """An EPUB of these members, with its type in front."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", CONTAINER)
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def page(body: str, title: str = "", attributes: str = "") -> str:
    return (
        f"<html {XHTML}><head><title>{title}</title></head><body {attributes}>{body}</body></html>"
    )


def opf(
    version: str,
    metadata: str,
    items: Sequence[tuple[str, str, str, str]],
    spine: str,
    more: str = "",
) -> str:
    """A package. items: id, href, media type, properties."""
    manifest = "".join(
        f'<item id="{id}" href="{href}" media-type="{kind}"{properties and f" properties={properties!r}"}/>'
        for id, href, kind, properties in items
    )
    return (
        f'<?xml version="1.0" encoding="utf-8"?><package xmlns="http://www.idpf.org/2007/opf" version="{version}" '
        'unique-identifier="id"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/" '
        f'xmlns:opf="http://www.idpf.org/2007/opf"><dc:identifier id="id">urn:x:1</dc:identifier>{metadata}</metadata>'
        f"<manifest>{manifest}</manifest>{spine}{more}</package>"
    )


def epub2(path: Path, chapters: int = 3) -> Path:
    """An EPUB 2 with an NCX of nested parts, a guide, a cover, and entities of XHTML 1.1."""
    names = [f"c{n}.xhtml" for n in range(1, chapters + 1)]
    xhtml = "application/xhtml+xml"
    items = [
        ("ncx", "toc.ncx", "application/x-dtbncx+xml", ""),
        ("pic", "cover.png", "image/png", ""),
    ]
    items += [("title", "title.xhtml", xhtml, ""), ("rights", "rights.xhtml", xhtml, "")]
    items += [(f"c{n}", name, xhtml, "") for n, name in enumerate(names, 1)]
    order = ["title", "rights", *(f"c{n}" for n in range(1, chapters + 1))]
    spine = f'<spine toc="ncx">{"".join(f"<itemref idref={id!r}/>" for id in order)}</spine>'
    guide = '<guide><reference type="title-page" href="title.xhtml"/><reference type="copyright-page" href="rights.xhtml"/></guide>'
    metadata = (
        "<dc:title>The Plank and the River</dc:title><dc:creator opf:role='aut'>A. Writer</dc:creator>"
        "<dc:creator opf:role='ill'>A. Painter</dc:creator><dc:language>en</dc:language>"
        "<dc:date>1897-05-01</dc:date><meta name='cover' content='pic'/>"
    )
    points = "".join(
        f'<navPoint id="p{n}"><navLabel><text>Chapter {n}</text></navLabel><content src="{name}#start"/></navPoint>'
        for n, name in enumerate(names, 1)
    )
    ncx = (
        '<?xml version="1.0"?><ncx xmlns="http://www.daisy.org/z3986/2005/ncx/" version="2005-1"><navMap>'
        '<navPoint id="p0"><navLabel><text>Part One</text></navLabel><content src="c1.xhtml"/>'
        f"{points}</navPoint></navMap></ncx>"
    )
    doctype = (
        '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" '
        '"http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">'
    )
    members: dict[str, str | bytes] = {
        "OEBPS/content.opf": opf("2.0", metadata, items, spine, guide),
        "OEBPS/toc.ncx": ncx,
        "OEBPS/cover.png": png(),
        "OEBPS/title.xhtml": page("<h1>The Plank and the River</h1><p>by A. Writer</p>"),
        "OEBPS/rights.xhtml": page("<p>Copyright nobody.</p>"),
    }
    for n, name in enumerate(names, 1):
        members[f"OEBPS/{name}"] = doctype + page(
            f'<a id="start"/><h2>Chapter {n}</h2><p>{paragraph(n)}<a href="n.xhtml#n1"><sup>1</sup></a></p>'
            f"<p>Salt &amp; pepper&nbsp;&mdash; and caf&eacute;.</p><hr/><p>{paragraph(n + 4, 2)}</p>"
        )
    return zipped(path, members)


def epub3(path: Path) -> Path:
    """An EPUB 3 with notes, page numbers, a poem, landmarks and a cover."""
    xhtml = "application/xhtml+xml"
    items = [
        ("nav", "nav.xhtml", xhtml, "nav"),
        ("cover", "cover.png", "image/png", "cover-image"),
        ("c1", "text/one.xhtml", xhtml, ""),
        ("c2", "text/two.xhtml", xhtml, ""),
        ("notes", "text/notes.xhtml", xhtml, ""),
    ]
    spine = "<spine><itemref idref='nav'/><itemref idref='c1'/><itemref idref='c2'/><itemref idref='notes'/></spine>"
    metadata = (
        "<dc:title>Two Walks</dc:title><dc:creator>B. Writer</dc:creator><dc:language>en-GB</dc:language>"
        "<dc:date>1911</dc:date><meta property='dcterms:modified'>2020-01-01T00:00:00Z</meta>"
    )
    nav = page(
        '<nav epub:type="toc"><h1>Contents</h1><ol><li><a href="text/one.xhtml">The Boats</a></li>'
        '<li><a href="text/two.xhtml#poem">The Tyger</a></li><li><a href="text/notes.xhtml">Notes</a></li></ol></nav>'
        '<nav epub:type="landmarks"><ol><li><a epub:type="bodymatter" href="text/one.xhtml">Start</a></li></ol></nav>'
        '<nav epub:type="page-list"><ol><li><a href="text/one.xhtml#p7">7</a></li></ol></nav>'
    )
    one = page(
        '<section epub:type="chapter"><h1>The Boats</h1><p>When the rain stopped, we walked along the river'
        '<a epub:type="noteref" href="notes.xhtml#n1">12</a> and counted the boats.'
        '<span epub:type="pagebreak" id="p7" role="doc-pagebreak">7</span> They came home.</p>'
        '<aside epub:type="footnote" id="f1"><p>A footnote that nobody reads.</p></aside>'
        '<p><ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby><img src="x.png" alt="A small boat"/></p>'
        "<p>* * *</p><p>The last boat was late.</p></section>"
    )
    lines = "<br/>".join(f"<span>{line}</span>" for line in TYGER)
    two = page(
        f'<section id="poem" epub:type="chapter"><h1>The Tyger</h1><p epub:type="z3998:verse">{lines}</p></section>'
    )
    notes = page(
        '<section epub:type="endnotes"><h1>Notes</h1><ol><li epub:type="endnote" id="n1"><p>A note. '
        '<a role="doc-backlink" href="one.xhtml">back</a></p></li></ol></section>'
    )
    members: dict[str, str | bytes] = {
        "OEBPS/content.opf": opf("3.0", metadata, items, spine),
        "OEBPS/nav.xhtml": nav,
        "OEBPS/cover.png": png(),
        "OEBPS/text/one.xhtml": one,
        "OEBPS/text/two.xhtml": two,
        "OEBPS/text/notes.xhtml": notes,
    }
    return zipped(path, members)


MARKDOWN = """\
---
title: Notes of a Cook
author: [C. Writer, D. Writer]
language: en
date: 1902-03-04
---

# Punch

The juice of lemons makes fine **punch**.[^1] A pot of tea helps to
pass the evening.

| drink | cups |
|---|---|
| tea | four |
| punch | two |

[^1]: Lemons of any kind.

# Rice

Rice is often served in round bowls, see [the shop](https://example.org/rice).

***

1. Wash the rice.
2. Boil it.

# Index

punch, rice, tea
"""


def markdown(path: Path) -> Path:
    """A book in Markdown, with a table, a list, a link and a note."""
    path.write_text(MARKDOWN, "utf-8")
    return path


TEXT = """\
Title: A Day
Author: E. Writer

*** START OF THE PROJECT GUTENBERG EBOOK A DAY ***

CHAPTER I. The Morning

The boy was there when the sun rose. A rod is used to
catch pink salmon.

CHAPTER II. The Evening

Four hours of steady work
faced us.

* * *

Smoky fires lack flame and heat.

*** END OF THE PROJECT GUTENBERG EBOOK A DAY ***

The licence.
"""


def docx(path: Path) -> Path:
    """A DOCX with two headings and a footnote."""
    w = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'

    def words(text: str, style: str = "", note: str = "") -> str:
        properties = style and f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>'
        return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r>{note}</w:p>"

    mark = '<w:r><w:footnoteReference w:id="1"/></w:r>'
    body = words("Morning", "Heading1") + words("Glue the sheet.", note=mark)
    body += words("Evening", "Heading1") + words("Kick the ball.")
    styles = (
        '<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style>'
    )
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    members = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
        f'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main}.document.main+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{kind}/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/_rels/document.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{kind}/footnotes" Target="footnotes.xml"/><Relationship Id="r2" Type="{kind}/styles" '
        'Target="styles.xml"/></Relationships>',
        "word/document.xml": f"<w:document {w}><w:body>{body}</w:body></w:document>",
        "word/styles.xml": f"<w:styles {w}>{styles}</w:styles>",
        "word/footnotes.xml": f'<w:footnotes {w}><w:footnote w:id="1">{words("Glue of bones.")}</w:footnote></w:footnotes>',
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def pdf(path: Path, lines: Sequence[str]) -> Path:
    """A PDF with a page of these lines."""
    shown = "".join(f"({line}) Tj 0 -24 Td " for line in lines)
    stream = f"BT /F1 12 Tf 72 720 Td {shown}ET".encode()
    objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = out.tell()
    out.write(
        b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % at for at in places)
    )
    out.write(b"trailer\n<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % table)
    path.write_bytes(out.getvalue())
    return path
