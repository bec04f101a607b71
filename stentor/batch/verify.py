"""`--verify`: each item is measured once it is spoken, and spoken again where it is too wrong.

wer: a recogniser writes down the audio, and its words are compared with those of the text.
similarity: how near the voice is to its reference, from -1 to 1. mos: a predicted opinion, from 1
to 5. Measures go into the `verify` field of the item's row.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from stentor.batch.item import SAID, BatchItem, ItemOutcome
from stentor.batch.pool import Pool
from stentor.engine.seeds import next_seed
from stentor.errors import InvalidRequest
from stentor.flags import MEASURES
from stentor.host.installed import pip_install
from stentor.text.cleanup.languages import CODES

FORMATS = ("wav", "flac", "mp3", "ogg", "opus")
"""Formats of audio that are read back."""
NEEDS = {
    "wer": ("faster_whisper", "jiwer", "whisper_normalizer"),
    "similarity": ("resemblyzer",),
    "mos": ("distillmos",),
}
EXTRAS = {"wer": "quality", "similarity": "similarity", "mos": "quality"}
TRIES = 3
"""Times that an item is spoken at most."""
BEST = ".best-"
"""Prefix of the audio of the best try so far. No id begins with a dot."""

Measure = Callable[[BatchItem, ItemOutcome], dict[str, Any]]
"""Measures an item that was spoken. "wer" is what a retry goes by."""


@dataclass(frozen=True)
class Checks:
    """Measures of a run. retry_above: the WER above which an item is spoken again. recogniser: size
    or directory of a faster-whisper model. language: code of the texts, None to detect it."""

    measures: tuple[str, ...]
    retry_above: float | None
    recogniser: str
    language: str | None

    @classmethod
    def of(
        cls,
        names: str | None,
        retry_above: float | None,
        recogniser: str,
        language: str,
        format: str,
    ) -> Checks | None:
        """The checks that flags name, None for none. InvalidRequest for a wrong flag and for a
        missing package."""
        if names is None:
            if retry_above is not None:
                raise InvalidRequest("retry_above", "needs --verify wer")
            return None
        measures = tuple(name.strip() for name in names.split(","))
        for name in measures:
            _check_measure(name)
        if retry_above is not None and (retry_above < 0 or "wer" not in measures):
            raise InvalidRequest("retry_above", "must be a WER of at least 0, with --verify wer")
        if format not in FORMATS:
            raise InvalidRequest("verify", f"cannot read {format}; use {', '.join(FORMATS)}")
        return cls(measures, retry_above, recogniser, code_of(language))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that a resumed run must share."""
        return {
            "verify": ",".join(self.measures),
            "retry_above": self.retry_above,
            "recogniser": self.recogniser,
        }


def code_of(language: str) -> str | None:
    """The code of a language that requests name. None: the recogniser detects it."""
    codes = {"english": "en", **CODES}
    code = codes.get(language.lower(), language.lower().partition("-")[0])
    if code in codes.values():
        return code
    return None


def _check_measure(name: str) -> None:
    if name not in MEASURES:
        raise InvalidRequest("verify", f"must be some of {', '.join(MEASURES)}, got {name[:40]!r}")
    for module in NEEDS[name]:
        if importlib.util.find_spec(module) is None:
            raise InvalidRequest("verify", f"{name} needs {module}: {pip_install(EXTRAS[name])}")


class VerifiedPool:
    """A pool of speakers whose items are measured beside the work, and spoken again with the next
    seed where they are too wrong. The best try is kept."""

    def __init__(self, pool: Pool, measure: Measure, retry_above: float | None) -> None:
        self._pool = pool
        self._measure = measure
        self._retry_above = retry_above
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stentor-verify")

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that the model takes."""
        return self._pool.options

    @property
    def at_once(self) -> int:
        """Items that should be with it at a time."""
        return self._pool.at_once

    def check(self, defaults: Mapping[str, Any]) -> None:
        """InvalidRequest if the model does not take the defaults of a run."""
        self._pool.check(defaults)

    def submit(self, item: BatchItem) -> Future[ItemOutcome]:
        """Have an item spoken and measured."""
        result: Future[ItemOutcome] = Future()
        self._try(_Tries(item, result))
        return result

    def close(self) -> None:
        """Stop the work."""
        self._thread.shutdown(cancel_futures=True)
        self._pool.close()

    def _try(self, tries: _Tries) -> None:
        tries.count += 1
        spoken = self._pool.submit(tries.item)
        spoken.add_done_callback(lambda outcome: self._after(tries, outcome))

    def _after(self, tries: _Tries, spoken: Future[ItemOutcome]) -> None:
        """Hand an outcome to the measuring thread."""
        try:
            self._thread.submit(self._measured, tries, spoken)
        except RuntimeError:  # the pool is closed
            tries.result.cancel()

    def _measured(self, tries: _Tries, spoken: Future[ItemOutcome]) -> None:
        try:
            outcome = spoken.result()
            if outcome.path is None:
                tries.end(outcome)
                return
            measures = self._measure(tries.item, outcome)
            tries.take(outcome, measures)
            if self._is_wrong(tries):
                tries.item = _with_next_seed(tries.item, outcome)
                self._try(tries)
            else:
                tries.end(outcome)
        except BaseException as e:
            tries.result.set_exception(e)

    def _is_wrong(self, tries: _Tries) -> bool:
        if self._retry_above is None or tries.count == TRIES:
            return False
        return bool(tries.lowest > self._retry_above)


class _Tries:
    """The tries of one item, of which the audio of the best is kept beside."""

    def __init__(self, item: BatchItem, result: Future[ItemOutcome]) -> None:
        self.item = item
        self.result = result
        self.count = 0
        self.lowest = float("inf")  # WER
        self._best: ItemOutcome | None = None

    def take(self, outcome: ItemOutcome, measures: dict[str, Any]) -> None:
        """Keep a try if it is the best so far."""
        assert outcome.path is not None
        wer = measures.get("wer", 0.0)
        if wer >= self.lowest:
            return
        self.lowest = wer
        aside = outcome.path.with_name(f"{BEST}{outcome.path.name}")
        outcome.path.replace(aside)
        row = {**outcome.row, "verify": measures}
        self._best = replace(outcome, row=row, path=aside)

    def end(self, last: ItemOutcome) -> None:
        """Report the best try, or the last if none was spoken."""
        best = self._best
        if best is None or best.path is None:
            self.result.set_result(last)
            return
        path = best.path.with_name(best.path.name.removeprefix(BEST))
        best.path.replace(path)
        best.row["verify"]["tries"] = self.count
        self.result.set_result(replace(best, path=path))


def _with_next_seed(item: BatchItem, outcome: ItemOutcome) -> BatchItem:
    assert outcome.row["status"] == SAID
    return replace(item, fields={**item.fields, "seed": next_seed(int(item.fields["seed"]))})
