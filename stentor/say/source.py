"""The text that `stentor say` speaks: an argument, a file or standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from stentor.errors import InvalidRequest
from stentor.text.files import decoded

NONE = "give a text, - for standard input, or --file FILE"


def read(words: Sequence[str], file: Path | None) -> str:
    """The text of the arguments or of the file, which is not empty. "-", or neither in a pipe, is
    standard input."""
    text = " ".join(words) if words else None
    content = _read(text, file)
    if not content.strip():
        raise InvalidRequest("text", NONE if text is None and file is None else "must not be empty")
    return content


def _read(text: str | None, file: Path | None) -> str:
    piped = text is None and file is None and not sys.stdin.isatty()
    if text is not None and file is not None:
        raise InvalidRequest("text", "give a text or --file FILE, not both")
    if text is None and file is None and not piped:
        raise InvalidRequest("text", NONE)
    if piped or text == "-" or file == Path("-"):
        return decoded(sys.stdin.buffer.read(), "standard input", "file")
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
    """Prompts on a terminal. Elsewhere it warns, and the name is spoken."""
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
    return decoded(data, repr(str(file)), "file")
