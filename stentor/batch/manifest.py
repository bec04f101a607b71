"""`manifest.jsonl`: what became of every item, one JSON object per line. Appended to until the run is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stentor.batch import disk
from stentor.batch.catalogue import Catalogue
from stentor.batch.item import Row
from stentor.errors import InvalidRequest

NAME = "manifest.jsonl"


class Manifest:
    """The manifest of a run, open to be appended to. InvalidRequest where it cannot be read.

    keep: whether a row of an earlier run still counts. Others are dropped, and so is a last line that is torn.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, keep: Callable[[Row], bool]) -> None:
        self.path, self._catalogue, self._size = folder / NAME, catalogue, 0
        with self._replaced() as self._handle:
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
        with self._replaced() as handle, self.path.open("rb") as written:
            for at, size in self._catalogue.places():
                written.seek(at)
                disk.write_all(handle, written.read(size))

    def close(self) -> None:
        """Nothing is appended any more."""
        os.close(self._handle)

    @contextmanager
    def _replaced(self) -> Iterator[int]:
        """An open file that takes the place of the manifest when it is complete."""
        aside = self.path.with_name(NAME + ".part")
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            yield handle
            os.fsync(handle)
        except BaseException:
            aside.unlink()
            raise
        finally:
            os.close(handle)
        disk.move(aside, self.path)
        disk.sync_folder(self.path.parent)

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
    """The rows of a manifest, none where there is no file. A last line that was not finished is left out.
    InvalidRequest for any other line that is none."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            row = _row(line)
            if row is None:
                raise InvalidRequest("resume", f"line {number} of {str(path)!r} is not a row of a manifest")
            yield row


def _row(line: bytes) -> Row | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    named = isinstance(found, dict) and {"id", "line", "status", "input"} <= found.keys()
    return found if named else None
