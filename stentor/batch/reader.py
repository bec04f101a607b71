"""The input, record by record: JSON lines, CSV or plain text, from a file or standard input. It is
never held whole."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from stentor.arguments.untrusted import Unreadable, parse_json
from stentor.batch.fields import FIELDS, NAMES
from stentor.errors import InvalidRequest

LISTS = ("reference", "reference_text")  # of which a cell may have one, or several as a JSON list
LINE_BYTES = 16 * 2**20  # of one record at most


@dataclass(frozen=True)
class Record:
    """One line as it was read. line: its number, the first is 1. error: the field that is wrong and
    why, where the line is not even a record."""

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


def records(file: IO[bytes], input_format: str) -> Iterator[Record]:
    """Read the records of a file in one of the `INPUT_FORMATS`. Empty lines, and rows of empty
    cells, are none. InvalidRequest for a file that is not valid CSV."""
    if input_format == "csv":
        return _csv(file)
    return _by_line(file, _text_record if input_format == "txt" else _json_record)


def _by_line(file: IO[bytes], read: Callable[[int, bytes], Record]) -> Iterator[Record]:
    line = 0
    while raw := file.readline(LINE_BYTES):
        line += 1
        if len(raw) == LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := file.readline(LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield Record(line, {}, (None, f"has more than {LINE_BYTES // 2**20} MiB"))
        elif raw.strip():
            yield read(line, raw)


def _text_record(line: int, raw: bytes) -> Record:
    """Plain text: the whole line is the text of one item."""
    try:
        text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as e:
        return Record(line, {}, (None, f"is not UTF-8: {e.reason}"))
    return Record(line, {"text": text.strip()})


def _json_record(line: int, raw: bytes) -> Record:
    try:
        fields = parse_json(raw, _constant, _fields)
    except Unreadable as e:
        return Record(line, {}, (None, str(e)))
    except InvalidRequest as e:
        return Record(line, {}, (e.param, e.message))
    if not isinstance(fields, dict):
        return Record(line, {}, (None, f"must be a JSON object, got {type(fields).__name__}"))
    return Record(line, fields)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidRequest(next(n for n in names if names.count(n) > 1), "is given twice")
    return fields


def _constant(name: str) -> NoReturn:
    raise Unreadable(f"is not JSON: {name} is no number")


def _csv(file: IO[bytes]) -> Iterator[Record]:
    csv.field_size_limit(LINE_BYTES)
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    lines = _Lines(text)
    reader = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        line = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield _csv_record(line, header, cells)
            line = reader.line_num + 1
            lines.held = 0
    except csv.Error as e:
        raise InvalidRequest("input", f"line {reader.line_num}: is not CSV: {e}") from None
    except UnicodeDecodeError as e:
        raise InvalidRequest(
            "input", f"after line {reader.line_num}: is not UTF-8: {e.reason}"
        ) from None
    finally:
        text.detach()


class _Lines:
    """The lines of a CSV file. InvalidRequest before a record has more than `LINE_BYTES`
    characters. held: those of the record that is being read."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self.held = 0
        self._number = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(LINE_BYTES + 1):
            self._number += 1
            self.held += len(line)
            if self.held > LINE_BYTES:
                why = f"line {self._number}: its record has more than {LINE_BYTES >> 20} Mi characters"
                raise InvalidRequest("input", f"{why}, or a quotation mark is missing before it")
            yield line


def _check_header(header: list[str]) -> None:
    if not {"text", "input", "text_file"} & set(header):
        raise InvalidRequest(
            "input",
            f"line 1: the header must name text, input or text_file, got {', '.join(header)[:200]!r}",
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
            return Record(
                line,
                {},
                (None, f"has {cell[:40]!r} in column {column}, which the header does not name"),
            )
        fields[name] = _value(name, cell)
    return Record(line, fields)


def _value(name: str, cell: str) -> Any:
    """A cell as its field wants it: text stays text, the rest is a number, true, false or a
    list."""
    if name in LISTS and cell.lstrip().startswith("["):
        return _parsed(cell, cell)
    usual = NAMES.get(name, name)
    if usual in FIELDS and FIELDS[usual][0](cell):
        return cell
    return _parsed(cell.strip().lower(), cell)


def _parsed(words: str, cell: str) -> Any:
    """JSON as what it means, anything else as the cell."""
    try:
        return parse_json(words, _constant)
    except Unreadable:
        return cell
