"""Books of every kind are opened: what is read aloud, what is left out by its role, and what is refused in one line."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stentor.book.archive import resolved
from stentor.book.chapters import chosen, spoken_blocks
from stentor.book.contents import Book
from stentor.book.reading import read
from stentor.cli import main
from stentor.errors import InvalidRequest
from tests.book import made


def spoken(book: Book, matters: str = "auto", wanted: str | None = None) -> list[str]:
    """All texts that are spoken, in their order."""
    parts = [part for part in chosen(book, matters, wanted) if part.spoken]
    return [b.text for part in parts for b in spoken_blocks(part.chapter, True) if b.text]


def titles(book: Book) -> list[str]:
    return [chapter.title for chapter in book.chapters]


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_an_epub_2_is_read_by_its_ncx_without_raised_notes(tmp_path: Path) -> None:
    book = read(made.epub2(tmp_path / "b.epub"))
    assert (book.title, book.author, book.language, book.year) == (
        "The Plank and the River",
        "A. Writer",
        "en",
        "1897",
    )
    assert book.cover is not None
    assert book.cover.format == "png"
    assert titles(book)[2:] == ["Part One. Chapter 1", "Chapter 2", "Chapter 3"]
    text = spoken(book)
    assert text[0] == "Chapter 1"
    assert text[1].endswith("makes fine punch.")
    assert "Salt &amp; pepper\u00a0— and café." in text
    assert not any("Copyright" in part for part in text)


def test_an_epub_3_is_read_without_notes_page_numbers_and_readings(tmp_path: Path) -> None:
    book = read(made.epub3(tmp_path / "b.epub"))
    assert titles(book) == ["The Boats", "The Tyger", "Notes"]
    text = spoken(book)
    assert (
        text[1]
        == "When the rain stopped, we walked along the river and counted the boats. They came home."
    )
    assert text[2] == "漢"
    assert text[-1] == "\n".join(made.TYGER)
    assert not {"footnote", "7", "12", "kan", "A note"} & set(" ".join(text).split())


def test_descriptions_of_pictures_are_read_when_they_are_wanted(tmp_path: Path) -> None:
    text = spoken(read(made.epub3(tmp_path / "b.epub"), alt_text=True))
    assert text[2] == "漢 A small boat"


def test_markdown_is_read_without_its_signs_and_notes(tmp_path: Path) -> None:
    book = read(made.markdown(tmp_path / "b.md"))
    assert (book.title, book.author, book.year) == (
        "Notes of a Cook",
        "C. Writer, D. Writer",
        "1902",
    )
    text = spoken(book)
    assert text[:2] == [
        "Punch",
        "The juice of lemons makes fine punch. A pot of tea helps to\npass the evening.",
    ]
    assert text[2] == "drink, cups.\ntea, four.\npunch, two."
    assert text[4] == "Rice is often served in round bowls, see the shop."
    assert [b.kind for b in book.chapters[1].blocks] == [
        "heading",
        "paragraph",
        "scene",
        "paragraph",
    ]


def test_plain_text_is_cut_at_its_headings(tmp_path: Path) -> None:
    book = read(written(tmp_path / "b.txt", made.TEXT))
    assert (book.title, book.author) == ("A Day", "E. Writer")
    assert titles(book) == ["CHAPTER I. The Morning", "CHAPTER II. The Evening"]
    kinds = [block.kind for block in book.chapters[1].blocks]
    assert kinds == ["heading", "paragraph", "scene", "paragraph"]
    assert not any("licence" in text for text in spoken(book))


def test_html_docx_and_pdf_are_cut_at_their_headings(tmp_path: Path) -> None:
    page = made.page(
        "<h1>A Day</h1><h2>Morning</h2><p>Rise<br>now.</p><h2>Evening</h2><p>Sleep.</p>", "A Day"
    )
    html = read(written(tmp_path / "b.html", page))
    assert titles(html) == ["A Day", "Morning", "Evening"]
    docx = read(made.docx(tmp_path / "b.docx"))
    assert spoken(docx) == ["Morning", "Glue the sheet.", "Evening", "Kick the ball."]
    pdf = read(made.pdf(tmp_path / "b.pdf", ["Chapter 1", "A plank.", "Chapter 2", "A sheet."]))
    assert spoken(pdf) == ["Chapter 1", "A plank.", "Chapter 2", "A sheet."]


def test_a_page_that_is_not_xml_is_read_as_browsers_read_it(tmp_path: Path) -> None:
    broken = "<html><body><h1>One<p>Salt & <b>pepper<p>More<br>of it</body>"
    items = [("c", "c.html", "text/html", "")]
    package = made.opf(
        "2.0", "<dc:title>T</dc:title>", items, "<spine><itemref idref='c'/></spine>"
    )
    path = made.zipped(tmp_path / "b.epub", {"OEBPS/content.opf": package, "OEBPS/c.html": broken})
    assert " ".join(spoken(read(path))) == "One Salt &amp; pepper More,\nof it"


def test_chapters_are_chosen_by_rule_by_flag_and_by_number(tmp_path: Path) -> None:
    book = read(made.epub2(tmp_path / "b.epub"))

    def numbers(matters: str, wanted: str | None = None) -> list[int]:
        return [part.number for part in chosen(book, matters, wanted) if part.spoken]

    assert numbers("auto") == [3, 4, 5]
    assert numbers("all") == [1, 2, 3, 4, 5]
    assert numbers("auto", "2,4-") == [2, 4, 5]
    for wrong in ("0", "6", "4-3", "x", "1-9"):
        with pytest.raises(InvalidRequest, match="chapters"):
            chosen(book, "auto", wrong)


def test_titles_are_announced_or_not(tmp_path: Path) -> None:
    book = read(made.epub2(tmp_path / "b.epub"))
    chapter = book.chapters[3]
    assert spoken_blocks(chapter, True)[0].text == "Chapter 2"
    assert spoken_blocks(chapter, False)[0].kind == "paragraph"


def test_the_list_shows_numbers_titles_characters_and_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["book", str(made.epub2(tmp_path / "b.epub")), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The Plank and the River by A. Writer"
    assert "left out (copyright-page)" in lines[3]
    assert lines[-1].startswith("3 of 5 chapters, ")


def _drm(path: Path) -> Path:
    method = '<EncryptionMethod xmlns="http://www.w3.org/2001/04/xmlenc#" Algorithm="aes256-cbc"/>'
    return made.zipped(path, {"META-INF/encryption.xml": f"<encryption>{method}</encryption>"})


def _truncated(path: Path) -> Path:
    data = made.epub2(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def _flipped(path: Path) -> Path:
    made.epub2(path)
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("OEBPS/content.opf").header_offset + 60
    data = bytearray(path.read_bytes())
    data[place : place + 20] = bytes(20)
    path.write_bytes(bytes(data))
    return path


def _outside(path: Path) -> Path:
    return made.zipped(path, {"../../evil.xhtml": "x"})


def _bomb(path: Path) -> Path:
    return made.zipped(path, {"OEBPS/content.opf": b" " * (33 << 20)})


def _locked(path: Path) -> Path:
    """An EPUB whose package needs a password, by its flags."""
    data = bytearray(made.epub2(path).read_bytes())
    place = data.rfind(b"OEBPS/content.opf") - 46 + 8
    assert data[place - 8 : place - 4] == b"PK\x01\x02"
    struct.pack_into("<H", data, place, 1)
    path.write_bytes(bytes(data))
    return path


def _entities(path: Path) -> Path:
    """The billion laughs."""
    levels = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
    page = f'<!DOCTYPE html [<!ENTITY a0 "ha">{levels}]><html><body><p>&a11;</p></body></html>'
    items = [("c", "c.xhtml", "application/xhtml+xml", "")]
    package = made.opf(
        "2.0", "<dc:title>T</dc:title>", items, "<spine><itemref idref='c'/></spine>"
    )
    return made.zipped(path, {"OEBPS/content.opf": package, "OEBPS/c.xhtml": page})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_drm, "is encrypted"),
        (_locked, "is encrypted"),
        (_truncated, "is damaged"),
        (_flipped, "is damaged"),
        (_outside, "names a place outside"),
        (_bomb, "unpacks to more than 32 MiB"),
        (lambda path: made.zipped(path, {}), "is damaged: it has no 'OEBPS/content.opf'"),
        (lambda path: written(path, "no zip"), "is damaged"),
        (lambda path: path, "does not exist"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)).strip("<>"),
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], Path], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["book", str(make(tmp_path / "b.epub")), "--list"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("stentor: input: ")
    assert reason in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    "name", ["b.mobi", "b.acsm", "b", "b.docx", "b.pdf", "b.html", "b.txt", "b.md"]
)
def test_another_kind_or_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="input: "):
        read(written(tmp_path / name, ""))


def test_entities_that_stand_for_billions_of_characters_are_not_expanded(tmp_path: Path) -> None:
    book = read(_entities(tmp_path / "b.epub"))
    assert sum(chapter.characters for chapter in book.chapters) < 40


def test_scrambled_fonts_do_not_make_a_book_encrypted(tmp_path: Path) -> None:
    method = '<EncryptionMethod Algorithm="http://www.idpf.org/2008/embedding"/>'
    path = made.epub3(tmp_path / "b.epub")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("META-INF/encryption.xml", f"<encryption>{method}</encryption>")
    assert read(path).title == "Two Walks"


@pytest.mark.parametrize(
    ("base", "href", "member"),
    [
        ("OEBPS/a.xhtml", "b.xhtml#x", ("OEBPS/b.xhtml", "x")),
        ("OEBPS/t/a.xhtml", "../b%20c.xhtml", ("OEBPS/b c.xhtml", "")),
        ("OEBPS/a.xhtml", "#y", ("OEBPS/a.xhtml", "y")),
        ("a.xhtml", "../b.xhtml", ("", "")),
        ("a.xhtml", "/etc/passwd", ("", "")),
        ("a.xhtml", "https://example.org/b", ("", "")),
    ],
)
def test_links_stay_inside_the_file(base: str, href: str, member: tuple[str, str]) -> None:
    assert resolved(base, href) == member
