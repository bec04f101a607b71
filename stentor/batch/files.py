"""Where audio goes: one file per item, or shards of many items that are packed from such files.

`stentor.batch` has the order of writes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stentor.batch import disk
from stentor.batch.item import ItemOutcome, Row
from stentor.batch.manifest import encoded, rows
from stentor.errors import InvalidRequest

SHARD_NAME = re.compile(r"(\d{6,})\.(?:tar|parquet)")
NUMBER = re.compile(r"\d{6,}")
# of a shard that is being filled: a line of the manifest per item, with its text
LIST = "rows.jsonl"


class OutputFiles:
    """audio/ID.FORMAT in a folder."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / "audio"
        self._place.mkdir(exist_ok=True)

    def recover(self) -> tuple[list[Row], list[Row]]:
        """Take up what a run left that was killed, before anything is placed. Returns the rows of
        audio that stands at its place, of which the manifest may lack some, and rows of audio that
        is kept and will get to its place."""
        return [], []

    def place(self, outcomes: Sequence[ItemOutcome]) -> Iterator[list[Row]]:
        """Take outcomes, whose audio is complete. Yields rows of audio that is in place now, and of
        items that failed. List each before you take the next."""
        for outcome in outcomes:
            if outcome.path is not None:
                outcome.row["path"] = f"audio/{outcome.path.name}"
                disk.move(outcome.path, self._place / outcome.path.name)
        if any(outcome.path is not None for outcome in outcomes):
            disk.sync_folder(self._place)
        yield [outcome.row for outcome in outcomes]

    def finish(self) -> Iterator[list[Row]]:
        """No outcome follows: place what is kept."""
        return iter(())


@dataclass(frozen=True)
class Sample:
    """One item of a shard."""

    row: Row
    text: str
    audio: bytes


Pack = Callable[[Iterator[Sample], int], None]
"""Writes samples into an open file."""


class Shards(OutputFiles):
    """shards/000000.tar or .parquet in a folder, each of `size` items, which are files in
    work/000000/ until then.

    format: of the audio, as files are named. suffix: of a shard, which `pack` writes.
    """

    def __init__(
        self, folder: Path, work: Path, size: int, format: str, suffix: str, pack: Pack
    ) -> None:
        self._shards = folder / "shards"
        self._work = work
        self._size = size
        self._format = format
        self._suffix = suffix
        self._pack = pack
        self._shards.mkdir(exist_ok=True)
        self._number = self._count = 0  # of the shard that is being filled, and its items

    def recover(self) -> tuple[list[Row], list[Row]]:
        closed = {
            int(match[1]) for p in self._shards.iterdir() if (match := SHARD_NAME.fullmatch(p.name))
        }
        self._number = 1 + max(closed, default=-1)
        placed: list[Row] = []
        for folder in self._folders():
            if int(folder.name) in closed:
                placed += [row for row, _ in _listed(folder)]
            else:
                self._number = int(folder.name)
        if self._open.is_dir():
            unpacked = [(row, text) for row, text in _listed(self._open) if self._is_whole(row)]
        else:
            unpacked = []
        if unpacked:
            with disk.replaced(self._open / LIST) as handle:
                disk.write_all(
                    handle, b"".join(encoded({**row, "text": text}) for row, text in unpacked)
                )
        elif self._open.is_dir():
            shutil.rmtree(self._open)
        self._count = len(unpacked)
        return placed, [row for row, _ in unpacked]

    def place(self, outcomes: Sequence[ItemOutcome]) -> Iterator[list[Row]]:
        yield [outcome.row for outcome in outcomes if outcome.path is None]
        spoken = [outcome for outcome in outcomes if outcome.path is not None]
        while True:
            # at once, where a run that was killed has left a full one
            if self._count >= self._size:
                yield from self._closed()
            if not spoken:
                return
            room = self._size - self._count
            self._keep(spoken[:room])
            spoken = spoken[room:]

    def finish(self) -> Iterator[list[Row]]:
        if self._count:
            yield from self._closed()
        for folder in self._folders():  # of shards that a run has placed, which was killed then
            shutil.rmtree(folder)

    @property
    def _open(self) -> Path:
        """The folder of the shard that is being filled."""
        return self._work / f"{self._number:06}"

    def _folders(self) -> list[Path]:
        return sorted(p for p in self._work.iterdir() if NUMBER.fullmatch(p.name) and p.is_dir())

    def _is_whole(self, row: Row) -> bool:
        """Whether an item of the open shard has its audio."""
        try:
            return hashlib.sha256(self._audio(row).read_bytes()).hexdigest() == row.get("sha256")
        except OSError:
            return False

    def _audio(self, row: Row) -> Path:
        return self._open / f"{row['id']}.{self._format}"

    def _keep(self, outcomes: Sequence[ItemOutcome]) -> None:
        """Add items to the open shard. They last when it is closed."""
        self._open.mkdir(exist_ok=True)
        lines = []
        for outcome in outcomes:
            assert outcome.path is not None
            disk.move(outcome.path, self._open / outcome.path.name)
            outcome.row["path"] = f"shards/{self._number:06}{self._suffix}"
            outcome.row["member"] = outcome.path.name
            lines.append(encoded({**outcome.row, "text": outcome.text}))
        disk.append(self._open / LIST, b"".join(lines))
        self._count += len(outcomes)

    def _closed(self) -> Iterator[list[Row]]:
        """Pack the open shard and put it to its place."""
        folder = self._open
        name = f"{self._number:06}{self._suffix}"
        with (folder / LIST).open("rb") as file:
            os.fsync(file.fileno())
        disk.sync_folder(folder)
        listed = list(_listed(folder))
        with disk.replaced(self._shards / name, self._work / name) as handle:
            self._pack(
                (Sample(row, text, self._audio(row).read_bytes()) for row, text in listed), handle
            )
        self._number = self._number + 1
        self._count = 0
        yield [row for row, _ in listed]
        shutil.rmtree(folder)


def _listed(folder: Path) -> Iterator[tuple[Row, str]]:
    """The rows of a shard's folder, each with its text, up to what a lost block of the disk has
    spoilt."""
    try:
        for row in rows(folder / LIST):
            text = str(row.pop("text", ""))
            yield row, text
    except InvalidRequest:
        return


def pack_tar(samples: Iterator[Sample], handle: int) -> None:
    """Write samples as WebDataset reads them: each is ID.FORMAT (audio), ID.txt (its text) and
    ID.json (its row)."""
    for sample in samples:
        id = sample.row["id"]
        members = (
            (sample.row["member"], sample.audio),
            (f"{id}.txt", sample.text.encode()),
            (f"{id}.json", encoded(sample.row)),
        )
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            disk.write_all(handle, info.tobuf() + data + bytes(-len(data) % tarfile.BLOCKSIZE))
    disk.write_all(handle, bytes(2 * tarfile.BLOCKSIZE))
