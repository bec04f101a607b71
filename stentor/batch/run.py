"""The loop of a run: items go to a pool of speakers, and what becomes of them is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from stentor.batch.files import OutputFiles
from stentor.batch.item import BatchItem, ItemOutcome, failed
from stentor.batch.manifest import Manifest
from stentor.batch.pool import Pool
from stentor.say.progress import SpeakingBar

WRONG_AT_ONCE = 1024  # rows of items that cannot be spoken, for which the disk is waited once


@dataclass
class Tally:
    """Report of a run. before: items of earlier runs. seconds: of audio. load, speaking: seconds of
    work. failures: the first items that failed. partial: the first that were spoken without a part
    of their text. complete: it was not interrupted."""

    before: int
    seconds: float = 0.0
    load: float = 0.0
    speaking: float = 0.0
    failures: list[ItemOutcome] = field(default_factory=list)
    partial: list[ItemOutcome] = field(default_factory=list)
    complete: bool = True


class Results:
    """Keeps what becomes of items: audio at its place, then its row in the manifest."""

    def __init__(
        self,
        output: OutputFiles,
        manifest: Manifest,
        bar: SpeakingBar,
        chars: int,
        tally: Tally,
        max_failures: int,
    ) -> None:
        """chars: spoken by earlier runs. max_failures: items that the tally names of each kind."""
        self._output = output
        self._manifest = manifest
        self._bar = bar
        self._chars = chars
        self._tally = tally
        self._shown = max_failures

    def keep(self, outcomes: Sequence[ItemOutcome], reported: bool = False) -> None:
        """Keep outcomes and show how far the run is. reported: their failures were shown before."""
        for rows in self._output.place(outcomes):
            self._manifest.append(rows)
        for outcome in outcomes:
            self._tally.seconds += outcome.row.get("seconds", 0.0)
            self._chars += outcome.chars
            if outcome.path is None and not reported and len(self._tally.failures) < self._shown:
                self._tally.failures.append(outcome)
            if outcome.row.get("ignored") and len(self._tally.partial) < self._shown:
                self._tally.partial.append(outcome)
        self._bar.at(self._chars, self._tally.seconds)

    def finish(self) -> None:
        """No outcome follows."""
        for rows in self._output.finish():
            self._manifest.append(rows)
        self._manifest.sort()


def without_wrong(items: Iterator[BatchItem], results: Results) -> Iterator[BatchItem]:
    """Yield items that a speaker can take. The others have failed, and are written many at a time,
    as each write waits for the disk."""
    wrong: list[ItemOutcome] = []
    for item in items:
        if item.error is None:
            yield item
            continue
        wrong.append(failed(item, *item.error))
        if len(wrong) == WRONG_AT_ONCE:
            results.keep(wrong, reported=True)
            wrong = []
    results.keep(wrong, reported=True)


def speak_all(items: Iterator[BatchItem], pool: Pool, results: Results, stop: Future[None]) -> bool:
    """Speak items until there are none, or until `stop` is set: then False. Raises what ended the
    run."""
    pending: set[Future[ItemOutcome]] = set()
    while not stop.done():
        while len(pending) < pool.at_once and (item := next(items, None)) is not None:
            pending.add(pool.submit(item))
        if not pending:
            return True
        waited: list[Future[Any]] = [*pending, stop]
        wait(waited, return_when=FIRST_COMPLETED)
        ended = {future for future in pending if future.done()}
        pending -= ended
        results.keep([future.result() for future in ended])
    return False
