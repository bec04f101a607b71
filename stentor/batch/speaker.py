"""Speaks items: `Speaker`, a model that turns an item into a file of audio. It knows nothing of the
run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stentor.api import TTS
from stentor.arguments.untrusted import Unreadable, read_bytes
from stentor.audio import Reference
from stentor.batch.fields import listed
from stentor.batch.item import SAID, BatchItem, ItemOutcome, Run, failed
from stentor.batch.reader import LINE_BYTES
from stentor.config import Policy, path_of
from stentor.engine.once import CacheCounts, LruCache, OnceCache
from stentor.errors import EngineError, InvalidRequest, StentorError
from stentor.host import machine
from stentor.models.info import ReferenceAudio
from stentor.output.marks import Marks
from stentor.request import Given
from stentor.say.target import Output
from stentor.speech.result import Speech
from stentor.text.files import decoded

READ_HERE = ("text", "text_file", "reference", "reference_text", "prompt", "prompt_text")
KEPT_BYTES = 256 * 2**20  # of samples of references. A file that was dropped is read again
READERS = 2  # threads that read them
AHEAD = 2  # items that are prepared, spoken or written at a time, for each slot of the engine


class Speaker:
    """A loaded model. `speak` is called from many threads, whose items are batched.

    at_once: items that should be with it at a time, so that neither the engine nor a thread waits
    for the caller.
    """

    def __init__(self, run: Run, work: Path) -> None:
        """work: the folder for audio on its way."""
        self._run = run
        self._work = work
        self._marks = Marks.of(run.provenance, run.watermark, run.load.get("model"))
        machine.one_thread_for_numpy()  # each of the threads may have an aligner
        policy = Policy(max_queue=2**20)  # `at_once` bounds what waits
        self._tts = TTS(**run.load, policy=policy)
        self.references = ReferenceFiles(self._tts.load_reference)
        threads = AHEAD * self._tts.engine.sizes.slots
        self.at_once = 2 * threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="stentor-batch")

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that its model takes."""
        return frozenset(self._tts.spec.options)

    def submit(self, item: BatchItem) -> Future[ItemOutcome]:
        """Have an item spoken in a thread. The future raises what ends the run."""
        return self._threads.submit(self.speak, item)

    def speak(self, item: BatchItem) -> ItemOutcome:
        """Speak an item into a file in the folder for audio on its way. What is wrong with the item
        is an outcome.

        EngineError if the engine has stopped, OSError if the file cannot be written.
        """
        try:
            text = text_of(self._run, item.fields)
            speech = self._tts.generate(text, **self._options(item.fields))
        except InvalidRequest as e:
            from_file = e.param == "text" and "text_file" in item.fields
            return failed(item, "text_file" if from_file else e.param, e.message)
        except Exception as e:  # whatever one item raises, the others are spoken
            return self._unforeseen(item, e)
        try:
            return written(self._run, self._work, self._marks, item, text, speech)
        except OSError:
            raise
        except Exception as e:
            return self._unforeseen(item, e)

    def check(self, defaults: Mapping[str, Any]) -> None:
        """InvalidRequest if the model does not take the defaults of a run."""
        options = {
            name: v
            for name, v in self._options(defaults).items()
            if name not in ("retries", "split_granularity", "cleanup", "word_timestamps", "speed")
        }
        self._tts.request("Hello.", **options)

    def close(self) -> None:
        """Stop the engine. What is being spoken fails with EngineError."""
        self._tts.close()
        self.references.close()
        self._threads.shutdown(cancel_futures=True)

    def _unforeseen(self, item: BatchItem, error: Exception) -> ItemOutcome:
        if not self._tts.engine.health().alive:
            raise EngineError(str(error)) from error
        if isinstance(error, StentorError):
            words = str(error)
        else:
            words = f"{type(error).__name__}: {error}"
        return failed(item, None, words)

    def _options(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `TTS.generate`."""
        options = {name: value for name, value in fields.items() if name not in READ_HERE}
        if "reference" in fields:
            paths = listed(fields["reference"])
            texts = (
                listed(fields["reference_text"])
                if "reference_text" in fields
                else [None] * len(paths)
            )
            supported = self._tts.spec.takes_reference
            options["reference"] = [
                self._audio("reference", p, t, supported) for p, t in zip(paths, texts, strict=True)
            ]
        if "prompt" in fields:
            supported = self._tts.spec.takes_prompt
            options["prompt"] = self._audio(
                "prompt", fields["prompt"], fields.get("prompt_text"), supported
            )
        return options

    def _audio(self, param: str, path: str, text: str | None, supported: bool) -> Given:
        """Return the audio of a file. It stays unread for a model that takes none and refuses
        it."""
        file = self._run.inputs / path_of(param, path)
        if supported:
            return self.references.load(param, file, text)
        return Reference(file, text)


def text_of(run: Run, fields: Mapping[str, Any]) -> str:
    """The text of an item, from its fields or from the file that they name. InvalidRequest where
    that cannot be read."""
    if "text" in fields:
        return str(fields["text"])
    path = run.inputs / path_of("text_file", fields["text_file"])
    try:
        data = read_bytes(path, LINE_BYTES)
    except Unreadable as e:
        raise InvalidRequest("text_file", f"{str(path)!r} {e}") from None
    return decoded(data, repr(str(path)), "text_file")


def written(
    run: Run, work: Path, marks: Marks, item: BatchItem, text: str, speech: Speech
) -> ItemOutcome:
    """Write the audio of an item into a folder, so that it lasts."""
    path = work / f"{item.id}.{run.format}"
    sink = Output(path, run.format, speech.sample_rate, marks)
    try:
        sink.feed(speech.samples)
    finally:
        sink.finish()
    with path.open("r+b") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    row = {
        "line": item.line,
        "id": item.id,
        "status": SAID,
        "seconds": round(speech.duration, 6),
        "sample_rate": sink.rate,
        "finish_reason": speech.finish_reason,
        "seed": speech.seed,
        "sha256": sha256,
        "segments": [asdict(s) for s in speech.segments],
        **({"ignored": list(speech.ignored)} if speech.ignored else {}),
        "input": item.digest,
    }
    return ItemOutcome(row, item.chars, text, path)


class ReferenceFiles:
    """Reference audio by path. For many threads, of which several that want one file wait for one
    reading."""

    def __init__(
        self, load: Callable[[Reference], ReferenceAudio], kept_bytes: int = KEPT_BYTES
    ) -> None:
        """load: `TTS.load_reference`."""
        cache: LruCache[ReferenceAudio] = LruCache(kept_bytes, lambda audio: audio.samples.nbytes)
        self._load = load
        self._files = OnceCache("stentor-batch-reference", READERS, cache, lambda: None)

    def load(self, param: str, path: Path, text: str | None) -> ReferenceAudio:
        """The audio of a file and its transcript. InvalidRequest names `param` and the fault of the
        file."""
        claim = self._files.claim(str(path), lambda: self._load(Reference(path)))
        try:
            return ReferenceAudio(claim.result().recording, text)
        except InvalidRequest as e:
            raise InvalidRequest(param, e.message) from None
        finally:
            claim.cancel()

    def counts(self) -> CacheCounts:
        """`misses`: files that were read. `hits`: lines that took one that was there or being
        read."""
        return self._files.counts()

    def close(self) -> None:
        """End the threads."""
        self._files.close()
