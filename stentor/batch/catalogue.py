"""All items of a run, on disk, so that memory does not grow with the input.

A temporary SQLite database holds them. It lies where SQLite puts temporary files (SQLITE_TMPDIR,
TMPDIR, /var/tmp), takes about twice the size of the input, and is gone when the process ends,
however that happens.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from stentor.batch.item import LOST, BatchItem, Row
from stentor.errors import EngineError, InvalidRequest

# lines of the input that are in memory at once, and in which the longest is spoken first
WINDOW = 1024
CACHE_MB = 16

# states of an item. CUT: spoken, and cut by max_frames. PARTLY: spoken without a part of its text
TODO, SPOKEN, CUT, FAILED, PARTLY = range(5)

_SCHEMA = """
CREATE TABLE items (line INTEGER PRIMARY KEY, id TEXT, key TEXT UNIQUE, chars INTEGER, digest TEXT, fields TEXT,
                    error TEXT, state INTEGER DEFAULT 0, at INTEGER, size INTEGER)
"""


class Catalogue:
    """The items of the input, and which of them have ended. For one thread.

    What writes raises EngineError if the disk of temporary files is full.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        for words in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_MB * 1024}"):
            self._db.execute(f"PRAGMA {words}")
        self._db.execute(_SCHEMA)
        # one transaction that is never committed: there is nothing to keep
        self._db.execute("BEGIN")
        self.fields: dict[str, int] = {}  # that any item has, and the first line that has it

    def add(self, item: BatchItem) -> None:
        """Take an item. InvalidRequest if another line has its id, also in other case: some file
        systems see no difference."""
        key = item.id.lower()
        other = self._one("SELECT line, id FROM items WHERE key = ?", key)
        if other is not None:
            if other[1] == item.id:
                same = ""
            else:
                same = f" as {other[1]!r}, from which it differs only in case"
            raise InvalidRequest(
                "input", f"line {item.line}: id: {item.id!r} is on line {other[0]} already{same}"
            )
        if item.error is None:
            error = None
        else:
            error = json.dumps(item.error)
        values = (item.line, item.id, key, item.chars, item.digest, json.dumps(item.fields), error)
        self._write(
            item.line,
            "INSERT INTO items (line, id, key, chars, digest, fields, error) VALUES (?,?,?,?,?,?,?)",
            *values,
        )
        for name in item.fields:
            self.fields.setdefault(name, item.line)

    def count(self, *states: int) -> int:
        """How many items there are, or how many are in one of these states."""
        return int(self._scalar(f"SELECT COUNT(*) FROM items{_where(states)}"))

    def chars(self, *states: int) -> int:
        """The characters of their texts."""
        return int(self._scalar(f"SELECT COALESCE(SUM(chars), 0) FROM items{_where(states)}"))

    def wrong(self) -> int:
        """How many items cannot be spoken whatever the model."""
        return int(self._scalar("SELECT COUNT(*) FROM items WHERE error IS NOT NULL"))

    def first_wrong(self, limit: int) -> list[BatchItem]:
        """The first of them, `limit` at most."""
        return self._items("error IS NOT NULL ORDER BY line LIMIT ?", limit)

    def todo(self) -> Iterator[BatchItem]:
        """Yield what is to be spoken: window by window of the input, in each the longest text
        first."""
        last = int(self._scalar("SELECT COALESCE(MAX(line), 0) FROM items"))
        for first in range(0, last + 1, WINDOW):
            yield from self._items(
                "state = 0 AND line >= ? AND line < ? ORDER BY chars DESC, line",
                first,
                first + WINDOW,
            )

    def settle(self, row: Row, retry_failed: bool) -> bool:
        """Take a row of an earlier run, whose item has ended with it. False: its item is to be
        spoken again, and the row to be forgotten. InvalidRequest if it was spoken and the input has
        another line for it, or none."""
        item = self._one(
            "SELECT line, digest, state FROM items WHERE id = ?1 AND key = lower(?1)", row["id"]
        )
        lost = row["status"] == LOST
        if item is None or item[1] != row["input"]:
            if lost:
                return False
            if item is None:
                why = "is not in the input any more"
            else:
                why = f"is on line {item[0]}, which has changed"
            raise InvalidRequest(
                "resume", f"{row['id']!r} has been spoken, and {why}; use another folder"
            )
        if (lost and retry_failed) or item[2]:
            return False
        row["line"] = item[0]
        self.end(row)
        return True

    def end(self, row: Row) -> None:
        """An item has ended with this row."""
        self._write(
            row["line"], "UPDATE items SET state = ? WHERE line = ?", _state(row), row["line"]
        )

    def listed(self, row: Row, at: int, size: int) -> None:
        """An item's row is in the manifest: bytes [at, at + size)."""
        self.end(row)
        self._write(
            row["line"], "UPDATE items SET at = ?, size = ? WHERE line = ?", at, size, row["line"]
        )

    def places(self) -> Iterator[tuple[int, int]]:
        """Where in the manifest the rows are, as (at, size), in the order of the input."""
        with closing(
            self._db.execute("SELECT at, size FROM items WHERE at IS NOT NULL ORDER BY line")
        ) as rows:
            yield from rows

    def close(self) -> None:
        """Forget everything."""
        self._db.close()

    def _write(self, line: int, query: str, *values: Any) -> None:
        """Write what is kept of a line. EngineError if the disk of temporary files is full."""
        try:
            self._db.execute(query, values)
        except sqlite3.OperationalError as e:
            where = "where temporary files are (TMPDIR or /var/tmp)"
            raise EngineError(f"line {line} of the input does not fit {where}: {e}") from None

    def _items(self, which: str, *values: int) -> list[BatchItem]:
        rows = self._db.execute(
            f"SELECT line, id, chars, digest, fields, error FROM items WHERE {which}", values
        )
        return [_item(row) for row in rows.fetchall()]

    def _one(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
        return row

    def _scalar(self, query: str) -> Any:
        row = self._one(query)
        assert row is not None
        return row[0]


def _state(row: Row) -> int:
    if row["status"] == LOST:
        return FAILED
    if row["finish_reason"] == "length":
        return CUT
    if row.get("ignored"):
        return PARTLY
    return SPOKEN


def _where(states: tuple[int, ...]) -> str:
    if states:
        return f" WHERE state IN ({', '.join(map(str, states))})"
    return ""


def _item(row: tuple[Any, ...]) -> BatchItem:
    line, id, chars, digest, fields, error = row
    values: Mapping[str, Any] = json.loads(fields)
    return BatchItem(
        line, id, chars, digest, values, None if error is None else tuple(json.loads(error))
    )
