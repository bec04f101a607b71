"""Arguments of callers in all their types. Nothing of the package is imported here."""

from __future__ import annotations

import errno
import operator
import os
import reprlib
from pathlib import Path
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def shown(value: object) -> str:
    """A wrong value for a message: its repr, or of a large one only the beginning."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"an integer of {value.bit_length()} bits"
    return _REPR.repr(value)


def whole(value: Any) -> int | None:
    """The whole number that a value is, also one of numpy. None for a bool, and for what is
    none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def not_unicode(text: str) -> str | None:
    """Return what is wrong with a text that is not valid Unicode, or None if it is valid."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        return f"is not valid Unicode: {e.reason} at character {e.start}"
    return None


def mend_unicode(text: str) -> str:
    """A text with halves of surrogate pairs joined, and U+FFFD for those that are alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def as_path(value: object) -> Path:
    """Return a path, with the user's folder in place of `~`. ValueError if the value is no path."""
    if not isinstance(value, str | Path):
        raise ValueError(f"must be a path, got {type(value).__name__}")
    try:
        if value == "":
            raise ValueError("it is empty")
        if b"\0" in os.fsencode(value):
            raise ValueError("it holds a NUL character")
        path = Path(value).expanduser()
        if _is_loop(path):
            raise ValueError("it is a loop of links")
        return path
    except (ValueError, RuntimeError) as e:  # a surrogate, or no such user
        raise ValueError(f"{shown(str(value))} is no path: {e}") from None


def _is_loop(path: Path) -> bool:
    try:
        path.stat()
    except OSError as e:
        return e.errno == errno.ELOOP
    return False


def as_audio_file(value: object) -> Path:
    """Return the path of an audio file. ValueError if it cannot be one."""
    path = as_path(value)
    if os.path.isfile(path):  # not an error where a name is too long
        return path
    if not os.path.exists(path):
        raise ValueError(f"audio file {str(path)!r} does not exist")
    if os.path.isdir(path):
        kind = "a directory"
    else:
        kind = "no regular file"
    raise ValueError(f"{str(path)!r} is {kind}; name an audio file (wav, flac, ogg, mp3)")
