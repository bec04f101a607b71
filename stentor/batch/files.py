"""Where audio goes: one file per item. `Output` is what every way of keeping audio does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from stentor.batch import disk
from stentor.batch.item import Outcome, Row


class Output(Protocol):
    """Puts complete audio where it stays. `stentor.batch` has the order of writes."""

    def recover(self) -> tuple[list[Row], list[Row]]:
        """Before anything is placed: take up what a run left that was killed. The rows of audio that stands at its
        place, of which the manifest may lack some, and rows of audio that is kept and will get to its place."""
        ...

    def place(self, outcomes: Sequence[Outcome]) -> Iterator[list[Row]]:
        """Take outcomes. Each list of rows is to be listed before the next is asked for: of audio that stands at its
        place now, and of items that failed."""
        ...

    def finish(self) -> Iterator[list[Row]]:
        """No outcome follows: place what is kept."""
        ...


class Files:
    """audio/ID.FORMAT in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "audio").mkdir(exist_ok=True)

    def recover(self) -> tuple[list[Row], list[Row]]:
        return [], []

    def place(self, outcomes: Sequence[Outcome]) -> Iterator[list[Row]]:
        for outcome in outcomes:
            if outcome.path is not None:
                outcome.row["path"] = f"audio/{outcome.path.name}"
                disk.move(outcome.path, self._folder / outcome.row["path"])
        if any(outcome.path is not None for outcome in outcomes):
            disk.sync_folder(self._folder / "audio")
        yield [outcome.row for outcome in outcomes]

    def finish(self) -> Iterator[list[Row]]:
        return iter(())
