"""`--server`: a running server speaks the items, several at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stentor.audio import Reference
from stentor.batch.item import BatchItem, ItemOutcome, Run, failed
from stentor.batch.speaker import READ_HERE, text_of, written
from stentor.config import path_of
from stentor.errors import EngineError, InvalidRequest, ModelNotFound, StentorError
from stentor.flags import OPTIONS
from stentor.output.marks import Marks
from stentor.say.speakers import ServerSpeaker, joined, request_body
from stentor.speech.result import Speech

AT_ONCE = 8
"""Requests that are open at a time."""
TRIES = 3
PAUSE_SECONDS = 2.0
"""Before a request is sent again that a server has not answered."""
TIMES = "vtt"
"""A format of times, without which a server reports no segments."""


class ServerPool:
    """Sends items to a server. An unreachable server ends the run, which can be resumed."""

    options = frozenset(OPTIONS)
    at_once = 2 * AT_ONCE

    def __init__(self, run: Run, work: Path, url: str) -> None:
        """work: the folder for audio on its way."""
        self._run = run
        self._work = work
        self._url = url
        self._marks = Marks.of(run.provenance, run.watermark, run.load.get("model"))
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stentor-batch")

    def check(self, defaults: Mapping[str, Any]) -> None:
        """Have a word spoken with the defaults of a run. InvalidRequest names one that the model
        does not take."""
        self._spoken("Hello.", defaults)

    def submit(self, item: BatchItem) -> Future[ItemOutcome]:
        """Have an item spoken in a thread. The future raises what ends the run."""
        return self._threads.submit(self._speak, item)

    def close(self) -> None:
        """Send no more requests."""
        self._threads.shutdown(cancel_futures=True)

    def _speak(self, item: BatchItem) -> ItemOutcome:
        try:
            text = text_of(self._run, item.fields)
            speech = self._spoken(text, item.fields)
        except InvalidRequest as e:
            return failed(item, e.param, e.message)
        return written(self._run, self._work, self._marks, item, text, speech)

    def _spoken(self, text: str, fields: Mapping[str, Any]) -> Speech:
        """The speech of a text. EngineError where the server does not answer."""
        options = {name: value for name, value in fields.items() if name not in READ_HERE}
        for name in ("reference", "prompt"):
            if name in fields:
                path = self._run.inputs / path_of(name, fields[name])
                options[name] = Reference(path, fields.get(f"{name}_text"))
        body = request_body(text, self._run.load.get("model"), options, TIMES, False)
        for num_left in reversed(range(TRIES)):
            try:
                return joined(ServerSpeaker(self._url, body).speech())
            except (InvalidRequest, ModelNotFound):
                raise
            except StentorError as e:
                if not num_left:
                    raise EngineError(f"{e}; --resume continues") from e
            time.sleep(PAUSE_SECONDS)
        raise AssertionError
