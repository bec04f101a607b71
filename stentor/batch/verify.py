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
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from stentor.batch.fields import listed
from stentor.batch.item import SAID, BatchItem, ItemOutcome
from stentor.batch.pool import Pool
from stentor.config import path_of
from stentor.engine.seeds import next_seed
from stentor.errors import InvalidRequest
from stentor.flags import MEASURES
from stentor.host.installed import pip_install
from stentor.score import measures as score
from stentor.score.measures import AnswerAudio, Transcriber
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
        return cls(measures, retry_above, recogniser, _code(language))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that a resumed run must share."""
        return {
            "verify": ",".join(self.measures),
            "retry_above": self.retry_above,
            "recogniser": self.recogniser,
        }


def _code(language: str) -> str | None:
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


class Meters:
    """The measures of a run. Models are loaded here. inputs: the folder of files that items
    name."""

    def __init__(self, checks: Checks, inputs: Path) -> None:
        self._checks = checks
        self._inputs = inputs
        self._transcribe = None
        if "wer" in checks.measures:
            self._transcribe = _recogniser(checks.recogniser)
        self._opinion = None
        if "mos" in checks.measures:
            self._opinion = score.opinion()
        self._speakers = None
        if "similarity" in checks.measures:
            self._speakers = Speakers()

    def __call__(self, item: BatchItem, outcome: ItemOutcome) -> dict[str, Any]:
        """Measure the audio of an item."""
        assert outcome.path is not None
        samples, rate = soundfile.read(outcome.path, dtype="float32")
        audio = AnswerAudio(0, " ".join(s["text"] for s in outcome.row["segments"]), samples, rate)
        measures: dict[str, Any] = {}
        if self._transcribe is not None:
            measures |= self._words(audio, self._language(item))
        reference = item.fields.get("reference")
        if self._speakers is not None and reference is not None:
            path = self._inputs / path_of("reference", listed(reference)[0])
            measures["similarity"] = self._speakers.similarity(audio, path)
        if self._opinion is not None:
            measures["mos"] = round(self._opinion(audio), 3)
        return measures

    def _language(self, item: BatchItem) -> str | None:
        return _code(item.fields.get("language", "")) or self._checks.language

    def _words(self, audio: AnswerAudio, language: str | None) -> dict[str, Any]:
        assert self._transcribe is not None
        transcript = self._transcribe(score.at_16k(audio), language)
        wrong = score.word_errors(audio.text, transcript, language or "en")
        return {
            "wer": round(wrong.rate, 4),
            "errors": wrong.errors,
            "words": wrong.words,
            "transcript": transcript,
        }


def _recogniser(model: str) -> Transcriber:
    """Load a recogniser. InvalidRequest("recogniser") where that fails, for whatever reason."""
    try:
        return score.whisper(model)
    except Exception as e:  # neither faster-whisper nor the Hub has a class for it
        raise InvalidRequest("recogniser", f"{model!r} cannot be loaded: {e}") from e


class Speakers:
    """Voices as vectors, by Resemblyzer."""

    def __init__(self) -> None:
        from resemblyzer import VoiceEncoder

        self._encoder = VoiceEncoder("cpu", verbose=False)
        self._references: dict[Path, np.ndarray] = {}

    def similarity(self, audio: AnswerAudio, reference: Path) -> float:
        """The cosine between the voice of audio and that of a file."""
        if reference not in self._references:
            samples, rate = soundfile.read(reference, dtype="float32", always_2d=True)
            spoken = AnswerAudio(0, "", samples.mean(axis=1), rate)
            self._references[reference] = self._vector(spoken)
        return round(float(self._references[reference] @ self._vector(audio)), 4)

    def _vector(self, audio: AnswerAudio) -> np.ndarray:
        vector: np.ndarray = self._encoder.embed_utterance(score.at_16k(audio))
        return vector


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
