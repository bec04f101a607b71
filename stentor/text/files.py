"""Text of a file: UTF-8, or UTF-16 as Windows writes it."""

from __future__ import annotations

import codecs

from stentor.errors import InvalidRequest

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_FEW = 0.01  # of the characters of a text are control characters, at most


def decoded(data: bytes, name: str, param: str) -> str:
    """The text of a file's bytes. Raises InvalidRequest(param) if they are none. name:
    of the file."""
    wide = data.startswith(_WIDE)
    try:
        text = data.decode("utf-16" if wide else _unmarked(data) or "utf-8-sig")
    except UnicodeDecodeError as e:
        if wide or b"\0" in data:
            raise InvalidRequest(param, f"{name} is not text") from None
        raise InvalidRequest(
            param, f"{name} is not UTF-8 text: byte {e.start} is {data[e.start]:#04x}"
        ) from None
    controls = sum(c < " " and not c.isspace() for c in text)
    if controls > _FEW * len(text) and "\0" in text:
        raise InvalidRequest(param, f"{name} is not text")
    return text


def _unmarked(data: bytes) -> str | None:
    """UTF-16 without a mark at its beginning: every other byte of Latin text is 0."""
    head = data[:1000]
    first = head[::2].count(0)
    second = head[1::2].count(0)
    if len(head) < 4 or len(data) % 2 or max(first, second) < 0.4 * len(head):
        return None
    if first > second:
        return "utf-16-be"
    return "utf-16-le"
