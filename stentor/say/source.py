"""The text that `stentor say` speaks: an argument, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from stentor.errors import InvalidRequest


def read(text: str | None, file: Path | None) -> str:
    """The text of the argument or of the file; one of them is given, and not empty. "-" is standard input."""
    found = _read(text, file)
    if not found.strip():
        raise InvalidRequest("text", "must not be empty")
    return found


def _read(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise InvalidRequest("text", "give a text, - for standard input, or --file FILE")
    if text == "-" or file == Path("-"):
        return _decoded(sys.stdin.buffer.read(), "standard input")
    if file is not None:
        return _contents(file)
    assert text is not None
    if _is_file(text) and _file_is_meant(text):
        return _contents(Path(text))
    return text


def _is_file(text: str) -> bool:
    try:
        return "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a zero byte
        return False


def _file_is_meant(name: str) -> bool:
    """Asks on a terminal. Elsewhere it warns, and the name is spoken."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        warning = f"{name!r} is a file. Its name is spoken; --file {name} speaks the text in it"
        print(f"stentor: warning: {warning}", file=sys.stderr)
        return False
    print(f"{name!r} is a file. Speak the text in it? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _contents(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as e:
        raise InvalidRequest("file", f"cannot read {str(file)!r}: {e.strerror}") from None
    return _decoded(data, repr(str(file)))


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InvalidRequest("file", f"{name} is not UTF-8 text: byte {e.start} is {data[e.start]:#04x}") from None
