"""Where audio goes: many items per file, as tar (WebDataset) or as Parquet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stentor.batch import disk
from stentor.batch.item import Outcome, Row
from stentor.batch.samples import Sample, SampleFile, read

FOLDER = "shards"
SHARD_NAME = re.compile(r"(\d{6,})\.(?:tar|parquet)")


class Shards:
    """shards/000000.tar in a folder, each of `size` items. work: the folder for the shard that is being filled."""

    suffix = ".tar"

    def __init__(self, folder: Path, work: Path, size: int) -> None:
        self._folder, self._work, self._size = folder / FOLDER, work, size
        self._folder.mkdir(exist_ok=True)
        self._open: SampleFile | None = None
        self._number = 0  # of the shard that is being filled

    def recover(self) -> tuple[list[Row], list[Row]]:
        closed = [int(found[1]) for p in self._folder.iterdir() if (found := SHARD_NAME.fullmatch(p.name))]
        placed = self._placed(max(closed)) if closed else []
        self._number = 1 + max(closed, default=-1)
        if not self._filling().exists():
            return placed, []
        self._open = SampleFile(self._filling())
        return placed, list(self._open.rows)

    def place(self, outcomes: Sequence[Outcome]) -> Iterator[list[Row]]:
        yield [outcome.row for outcome in outcomes if outcome.path is None]
        for outcome in outcomes:
            yield from self._closed(self._size)  # a run that was killed may have left a full one
            if outcome.path is not None:
                self._add(outcome, outcome.path)
        yield from self._closed(self._size)

    def finish(self) -> Iterator[list[Row]]:
        yield from self._closed(1)
        for left in self._work.glob("*.tar"):  # of shards that a run has placed, which was killed then
            if SHARD_NAME.fullmatch(left.name):
                left.unlink()

    def _add(self, outcome: Outcome, path: Path) -> None:
        self._open = self._open or SampleFile(self._filling())
        row = outcome.row
        row["path"], row["member"] = f"{FOLDER}/{self._number:06}{self.suffix}", path.name
        self._open.add(Sample(row, outcome.text, path.read_bytes()))
        path.unlink()

    def _filling(self) -> Path:
        return self._work / f"{self._number:06}.tar"

    def _closed(self, least: int) -> Iterator[list[Row]]:
        """Put the open shard to its place if it has at least so many items."""
        full = self._open
        if full is None or len(full.rows) < least:
            return
        full.finish()
        self._put(full.path)
        disk.sync_folder(self._folder)
        self._open, self._number = None, self._number + 1
        yield full.rows
        full.path.unlink(missing_ok=True)

    def _put(self, full: Path) -> None:
        disk.move(full, self._folder / full.name)

    def _placed(self, number: int) -> list[Row]:
        """The rows of a shard at its place."""
        return [sample.row for sample in read(self._folder / f"{number:06}.tar")]
