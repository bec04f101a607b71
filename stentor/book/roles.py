"""Roles of the parts of a book, as EPUB (`epub:type`) and ARIA (`role="doc-..."`) name them, and
what each means for a reader aloud."""

from __future__ import annotations

import re
from typing import Literal

Matter = Literal["front", "body", "back"]

NEVER_SPOKEN = frozenset(
    "noteref footnote footnotes endnote rearnote rearnotes note pagebreak page-list biblioref backlink annoref "
    "annotation pagelist keyword pg-boilerplate".split()
)
"""Notes and the marks that lead to them, and page numbers."""
FRONT = {
    "cover": False,
    "frontmatter": True,
    "halftitlepage": False,
    "titlepage": False,
    "title-page": False,
    "copyright-page": False,
    "imprint": False,
    "imprimatur": False,
    "toc": False,
    "toc-brief": False,
    "landmarks": False,
    "loi": False,
    "lot": False,
    "loa": False,
    "lov": False,
    "abstract": True,
    "acknowledgments": True,
    "acknowledgements": True,
    "dedication": True,
    "epigraph": True,
    "foreword": True,
    "introduction": True,
    "preamble": True,
    "preface": True,
}
"""Roles of front matter, and whether a narrator reads such a part."""
BACK = {
    "backmatter": True,
    "afterword": True,
    "appendix": True,
    "conclusion": True,
    "epilogue": True,
    "bibliography": False,
    "colophon": False,
    "contributors": False,
    "credits": False,
    "endnotes": False,
    "notes": False,
    "errata": False,
    "glossary": False,
    "index": False,
    "license": False,
    "other-credits": False,
}
"""Roles of back matter, and the same."""
BODY = frozenset("bodymatter chapter part volume division prologue text subchapter".split())
KNOWN = BODY | FRONT.keys() | BACK.keys()

_TITLES = (
    ("cover", r"(?:front |book )?cover(?: page)?"),
    ("titlepage", r"(?:half[- ]?)?title[- ]?page"),
    ("copyright-page", r"copyright(?: page| notice| information)?|imprint|rights"),
    ("toc", r"(?:table of )?contents|toc|inhalt(?:sverzeichnis)?|table des matières|índice"),
    ("loi", r"(?:list of )?(?:illustrations|figures|maps|plates)"),
    ("lot", r"list of tables"),
    ("dedication", r"dedication|widmung|dédicace"),
    ("epigraph", r"epigraph"),
    ("acknowledgments", r"acknowledge?ments|danksagung|remerciements"),
    ("foreword", r"foreword|vorwort|avant-propos"),
    ("preface", r"(?:author's |editor's |translator's )?preface|préface"),
    ("introduction", r"introduction|introductory(?: note)?|einleitung"),
    ("afterword", r"afterword|nachwort|postface"),
    ("epilogue", r"epilogue|epilog|épilogue"),
    ("appendix", r"appendix(?: [\w.]{1,5})?|appendices"),
    ("endnotes", r"(?:end|foot)?notes|notes and references|anmerkungen|fußnoten"),
    ("bibliography", r"bibliography|references|works cited|further reading|literatur"),
    ("glossary", r"glossary|glossar"),
    ("index", r"(?:general )?index|register|(?:subject|name) index"),
    ("colophon", r"colophon|uncopyright"),
    ("contributors", r"about the (?:author|publisher|translator|editor)s?|also by .{1,60}"),
    ("license", r"(?:the )?(?:full )?project gutenberg.{0,40}licen[cs]e.{0,40}|licen[cs]e"),
)
_BY_TITLE = [(role, re.compile(pattern, re.IGNORECASE)) for role, pattern in _TITLES]


def role_of_title(title: str) -> str:
    """Return the role that a title alone shows, such as "toc" of "Contents", and "" where it shows
    none."""
    plain = title.strip(" .:*\n")
    for role, pattern in _BY_TITLE:
        if pattern.fullmatch(plain):
            return role
    return ""


def matter(role: str) -> Matter:
    """The part of a book to which a role belongs."""
    if role in FRONT:
        return "front"
    if role in BACK:
        return "back"
    return "body"


def is_read_aloud(role: str) -> bool:
    """Whether a narrator reads a part of this role: no contents, copyright, notes or index."""
    return FRONT.get(role, BACK.get(role, True))
