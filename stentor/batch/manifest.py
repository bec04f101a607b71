"""`manifest.jsonl`: what became of every item, one JSON object per line. Appended to until the run
is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stentor.arguments import shown
from stentor.arguments.untrusted import MIB, Missing, Unreadable, open_regular, parse_json
from stentor.batch import disk
from stentor.batch.catalogue import Catalogue
from stentor.batch.fields import ID
from stentor.batch.item import LOST, SAID, Row
from stentor.errors import InvalidRequest

NAME = "manifest.jsonl"
ROW_BYTES = 64 * MIB  # of one row at most


class Manifest:
    """The manifest of a run, open to be appended to. InvalidRequest where it cannot be read.

    keep: whether a row of an earlier run still counts. Others are dropped, and so is a last line
    that is torn.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, keep: Callable[[Row], bool]) -> None:
        self.path = folder / NAME
        self._catalogue = catalogue
        self._size = 0
        with disk.replaced(self.path) as self._handle:
            for row in rows(self.path):
                if keep(row):
                    self._write([row])
        self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows, which last when this returns."""
        if rows:
            self._write(rows)
            os.fsync(self._handle)

    def sort(self) -> None:
        """Write the rows once more, in the order of the input."""
        with disk.replaced(self.path) as handle, self.path.open("rb") as written:
            for at, size in self._catalogue.places():
                written.seek(at)
                disk.write_all(handle, written.read(size))

    def close(self) -> None:
        """Nothing is appended any more."""
        os.close(self._handle)

    def _write(self, rows: Sequence[Row]) -> None:
        lines = [encoded(row) for row in rows]
        disk.write_all(self._handle, b"".join(lines))
        for row, line in zip(rows, lines, strict=True):
            self._catalogue.listed(row, self._size, len(line))
            self._size += len(line)


def encoded(row: Row) -> bytes:
    """A row as a line. A text that is no Unicode, in an error, is escaped as JSON does."""
    return (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def rows(path: Path) -> Iterator[Row]:
    """The rows of a manifest, none where there is no file. A last line that was not finished is
    left out. InvalidRequest for any other line that is none."""
    try:
        file = open_regular(path)
    except Missing:
        return
    except Unreadable as e:
        raise InvalidRequest("resume", f"{str(path)!r} {e}") from None
    number = 0
    with file as lines:
        while line := lines.readline(ROW_BYTES):
            number += 1
            if not line.endswith(b"\n") and len(line) < ROW_BYTES:
                return
            try:
                row = parse_row(line)
            except Unreadable as e:
                what = f"line {number} of {str(path)!r} is not a row of a manifest: it {e}"
                raise InvalidRequest("resume", what) from None
            yield row


def parse_row(line: bytes) -> Row:
    """Parse the row of a line. Raises Unreadable."""
    row = parse_json(line)
    if not isinstance(row, dict) or not {"id", "line", "status", "input"} <= row.keys():
        raise Unreadable("has no id, line, status or input")
    id = row["id"]
    status = row["status"]
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise Unreadable(f"has the id {shown(id)}")
    if status not in (SAID, LOST) or (
        status == SAID and not isinstance(row.get("finish_reason"), str)
    ):
        raise Unreadable("has no status or finish_reason of a row")
    if not isinstance(row["line"], int) or not 0 < row["line"] < 1 << 63:
        raise Unreadable(f"has the line {shown(row['line'])}")
    return row
