"""E-mail and web addresses, host numbers, paths, handles and hashtags."""

from __future__ import annotations

import re

from stentor.text.notations.rule import rules
from stentor.text.numbers import letters, spell

DOMAINS = (
    "com org net edu gov mil info biz io ai dev app co uk de fr eu ch jp au nz ca tv xyz tech"
).split()  # a host name without www needs one of these at its end
SPELLED = frozenset(
    "www http https ftp io ai uk de fr eu ch jp au nz ca tv edu html php js css id api cdn pdf py md csv png "
    "jpg xml cpp".split()
)
_SIGNS = {
    ".": "dot",
    "@": "at",
    "/": "slash",
    "_": "underscore",
    "-": "dash",
    ":": "colon",
    "?": "question mark",
    "=": "equals",
    "&": "and",
    "#": "hash",
    "~": "tilde",
    "%": "percent",
    "+": "plus",
    "\\": "backslash",
    "*": "star",
}
_PART = re.compile(r"[A-Za-z]+|\d+|.")
_HOST = rf"[a-zA-Z0-9][\w-]*(?:\.[a-zA-Z0-9][\w-]*)*\.(?:{'|'.join(DOMAINS)})\b"


def spoken_address(address: str) -> str:
    """ "www.stentor.org/a_b" -> "W W W dot stentor dot org slash a underscore b". Digits stay."""
    parts = (p for p in _PART.findall(address) if not p.isspace())
    return " ".join(_SIGNS.get(p) or (letters(p) if p.lower() in SPELLED else p) for p in parts)


def _web(m: re.Match[str]) -> str:
    address = m[0].rstrip(".,;:!?)'\"/")
    scheme = re.match(r"(?i)(?:https?|ftp)://", address)
    return f" {spoken_address(address[scheme.end() if scheme else 0 :])} " + m[0][len(address) :].lstrip("/")


def _number(m: re.Match[str]) -> str:
    return " dot ".join(spell(p) for p in m[1].split(".")) + (f" port {spell(m[2])}" if m[2] else "")


def _hashtag(m: re.Match[str]) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", m[1])
    return f"hashtag {words}"


RULES = rules(
    (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+", lambda m: spoken_address(m[0]), "@"),
    (r"(?i)\b(?:https?|ftp)://[^\s<>\"]+|\bwww\.[^\s<>\"]+", _web, "", ("http", "https", "ftp", "www")),
    (rf"\b{_HOST}(?:[/?][^\s<>\"]*)?", _web, "", DOMAINS),
    (r"(?<![\d.])(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?![\d.]*\d)(?::(\d{2,5})\b)?", _number, "0"),
    (r"(?<![\w.])~?/(?:[\w.-]+/)+[\w.-]*\w", lambda m: spoken_address(m[0]), "/"),
    (r"(?<![\w.])\.{0,2}/[a-z][\w.-]*\w", lambda m: spoken_address(m[0]), "/"),
    (r"\b[A-Z]:\\[\w.\\-]+\w", lambda m: spoken_address(m[0]), ": \\"),
    (r"(?<!\S)#([A-Za-z]\w+)", _hashtag, "#"),
    (r"(?<![\w.])@([A-Za-z]\w*)", lambda m: f"at {spoken_address(m[1])}", "@"),
)
