"""Read files and JSON that others wrote within limits (YAML: `untrusted_yaml`). `Unreadable`
describes the fault without the file's name.

A parser alone has no bounds: lists in lists end in RecursionError, an integer of thousands of
digits in ValueError, `/dev/zero` in all of the memory, and a FIFO never.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

Constant = Callable[[str], Any]
Pairs = Callable[[list[tuple[str, Any]]], Any]

MIB = 1 << 20
JSON_BYTES = 64 * MIB
"""Most bytes of a JSON file of a checkpoint. The largest released one, an index of shards, has less
than 1 MiB."""
MAX_DEPTH = 64
MAX_VALUES = 4_000_000
MAX_DIGITS = 400
TOO_DEEP = f"has lists or objects more than {MAX_DEPTH} deep"

# a FIFO is opened, and then refused
_NONBLOCK = 0 if os.name == "nt" else os.O_NONBLOCK | os.O_NOCTTY


class Unreadable(Exception):
    """Why a file or a text cannot be taken."""


class Missing(Unreadable):
    """There is no such file."""


def open_regular(path: Path) -> IO[bytes]:
    """A regular file, open for reading. Links are followed. It does not wait for the other end of a
    FIFO."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK))  # noqa: SIM115
    except (FileNotFoundError, NotADirectoryError):
        raise Missing("does not exist") from None
    except OSError as e:
        raise Unreadable(f"cannot be read: {e.strerror}") from None
    except ValueError:  # a NUL character
        raise Missing("does not exist") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unreadable("is not a regular file")
    return file


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file. Unreadable if it has more than `most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise Unreadable(f"is larger than {most / MIB:g} MiB")
        try:
            data = file.read(most + 1)
        except OSError as e:
            raise Unreadable(f"cannot be read: {e.strerror}") from None
    if len(data) > most:
        raise Unreadable(f"is larger than {most / MIB:g} MiB")
    return data


def read_text(path: Path, most: int) -> str:
    """The text of a regular file in UTF-8, with or without a mark at its beginning."""
    return decoded(read_bytes(path, most))


def read_json(path: Path, most: int = JSON_BYTES) -> Any:
    """The value in a JSON file."""
    return parse_json(read_text(path, most))


def parse_json(
    text: str | bytes, constant: Constant | None = None, pairs: Pairs | None = None
) -> Any:
    """The value of a JSON text. constant: makes a value of NaN and Infinity. pairs: makes one of an
    object's. What they raise is raised."""
    if isinstance(text, bytes):
        text = decoded(text)
    try:
        return _bounded(_decoder(constant, pairs).decode(text))
    except json.JSONDecodeError as e:
        raise Unreadable(f"is not JSON: {e.msg} at character {e.pos + 1}") from None
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None


def decoded(data: bytes) -> str:
    """Text in UTF-8, with or without a mark at its beginning."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise Unreadable(f"is not UTF-8: byte {e.start} is {data[e.start]:#04x}") from None


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"has a number of {len(digits)} digits, at most {MAX_DIGITS} are allowed")
    return int(digits)


@lru_cache
def _decoder(constant: Constant | None, pairs: Pairs | None) -> json.JSONDecoder:
    return json.JSONDecoder(parse_int=_integer, parse_constant=constant, object_pairs_hook=pairs)


def _bounded(value: Any) -> Any:
    """The value itself, if it is neither too deep nor too large. Others would end what walks
    through them."""
    if isinstance(value, dict | list):
        level = [value]
    else:
        level = []
    count = 0
    for _ in range(MAX_DEPTH):
        values = [v for c in level for v in (c.values() if isinstance(c, dict) else c)]
        level = [v for v in values if isinstance(v, dict | list)]
        count = count + len(values)
        if count > MAX_VALUES:
            raise Unreadable(f"has more than {MAX_VALUES} values")
        if not level:
            return value
    raise Unreadable(TOO_DEEP)
