"""The input, record by record: JSON lines or CSV, from a file or from standard input. It is never held whole."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from stentor.batch.fields import FIELDS
from stentor.errors import InvalidRequest

LISTS = ("reference", "reference_text")  # of which a cell may have one, or several as a JSON list
LINE_BYTES = 16 * 2**20  # of one record at most


@dataclass(frozen=True)
class Record:
    """One line as it was read. line: its number, the first is 1. error: the field that is wrong and why, where the
    line is not even a record."""

    line: int
    fields: dict[str, Any]
    error: tuple[str | None, str] | None = None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The input. `-` is standard input. InvalidRequest if it cannot be read."""
    if path == Path("-"):
        yield sys.stdin.buffer
        return
    try:
        file = path.open("rb")
    except OSError as e:
        raise InvalidRequest("input", f"cannot read {str(path)!r}: {e.strerror}") from None
    with file:
        yield file


def records(file: IO[bytes], as_csv: bool) -> Iterator[Record]:
    """The records of a file. Empty lines, and rows of empty cells, are none. InvalidRequest for a CSV file that is
    wrong as a whole."""
    return _csv(file) if as_csv else _json_lines(file)


def _json_lines(file: IO[bytes]) -> Iterator[Record]:
    line = 0
    while raw := file.readline(LINE_BYTES):
        line += 1
        if len(raw) == LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := file.readline(LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield Record(line, {}, (None, f"has more than {LINE_BYTES // 2**20} MiB"))
        elif raw.strip():
            yield _json_record(line, raw)


def _json_record(line: int, raw: bytes) -> Record:
    try:
        found = _JSON.decode(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        return Record(line, {}, (None, f"is not UTF-8: byte {e.start} is {raw[e.start]:#04x}"))
    except json.JSONDecodeError as e:
        return Record(line, {}, (None, f"is not JSON: {e.msg} at character {e.pos + 1}"))
    except InvalidRequest as e:
        return Record(line, {}, (e.param, e.message))
    except (ValueError, RecursionError) as e:  # a number of thousands of digits, lists of lists without end
        return Record(line, {}, (None, f"is not JSON: {e}"))
    if not isinstance(found, dict):
        return Record(line, {}, (None, f"must be a JSON object, got {type(found).__name__}"))
    return Record(line, found)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidRequest(next(n for n in names if names.count(n) > 1), "is given twice")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_JSON = json.JSONDecoder(object_pairs_hook=_fields, parse_constant=_constant)


def _csv(file: IO[bytes]) -> Iterator[Record]:
    csv.field_size_limit(LINE_BYTES)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    reader = csv.reader(text, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        line = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield _csv_record(line, header, cells)
            line = reader.line_num + 1
    except csv.Error as e:
        raise InvalidRequest("input", f"line {reader.line_num}: is not CSV: {e}") from None
    except UnicodeDecodeError as e:
        raise InvalidRequest("input", f"after line {reader.line_num}: is not UTF-8: {e.reason}") from None
    finally:
        text.detach()


def _check_header(header: list[str]) -> None:
    if "text" not in header and "text_file" not in header:
        raise InvalidRequest(
            "input", f"line 1: the header must name text or text_file, got {', '.join(header)[:200]!r}"
        )
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise InvalidRequest("input", f"line 1: the header names {twice[0]!r} twice")


def _csv_record(line: int, header: list[str], cells: list[str]) -> Record:
    if len(cells) != len(header):
        return Record(line, {}, (None, f"has {len(cells)} cells, and the header has {len(header)}"))
    fields = {}
    for column, (name, cell) in enumerate(zip(header, cells, strict=True), 1):
        if not cell.strip():
            continue
        if not name:
            return Record(line, {}, (None, f"has {cell[:40]!r} in column {column}, which the header does not name"))
        fields[name] = _value(name, cell)
    return Record(line, fields)


def _value(name: str, cell: str) -> Any:
    """A cell as its field wants it: text stays text, the rest is a number, true, false or a list."""
    if name in LISTS and cell.lstrip().startswith("["):
        return _parsed(cell, cell)
    if name in FIELDS and FIELDS[name][0](cell):
        return cell
    return _parsed(cell.strip().lower(), cell)


def _parsed(words: str, cell: str) -> Any:
    """JSON as what it means, anything else as the cell."""
    try:
        return json.loads(words, parse_constant=_constant)
    except (ValueError, RecursionError):
        return cell
