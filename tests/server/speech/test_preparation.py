"""A request that nobody waits for stops its preparation, and frees the thread that did it."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from stentor.models.base import Prompt
from stentor.models.info import SpeechRequest
from stentor.server.engines import service
from stentor.server.engines.service import _Abandoned
from stentor.server.limits import LIMITS
from stentor.text.front_end import Check
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, raw, serving
from tests.helpers.ws_talk import talk

ENDLESS = "Endless text."


@pytest.fixture(autouse=True)
def every_prompt_has_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give short texts a thread too, although they take no time otherwise."""
    monkeypatch.setattr(service, "QUICK_CHARS", 0)


class EndlessReading:
    """Stands for a family whose front end reads on and on. It ends only where the request's check raises."""

    def __init__(self, live: Live) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        self.raised: list[BaseException] = []
        self._prompt = live.tts._model.prompt

    def prompt(self, request: SpeechRequest, encode: Any) -> Prompt:
        if request.text != ENDLESS:
            return self._prompt(request, encode)
        self.began.set()
        try:
            for _ in range(int(100 * STUCK_S)):
                request.check()
                self.ended.wait(0.01)
        except BaseException as e:
            self.raised.append(e)
            raise
        finally:
            self.ended.set()
        raise AssertionError("nobody stopped the reading")

    def stopped(self) -> bool:
        return self.ended.wait(STUCK_S) and [type(e) for e in self.raised] == [_Abandoned]


@pytest.fixture
def reading(live: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[EndlessReading]:
    made = EndlessReading(live)
    monkeypatch.setattr(live.tts._model, "prompt", made.prompt)
    yield made
    made.ended.set()


def test_a_disconnect_stops_the_preparation(live: Live, reading: EndlessReading) -> None:
    client = raw(live, {"input": ENDLESS})
    assert reading.began.wait(STUCK_S)
    client.close()
    assert reading.stopped()
    assert live.speech(input="Others are served.").status_code == 200


def test_a_cancel_over_a_websocket_stops_the_preparation(
    live: Live, reading: EndlessReading
) -> None:
    with talk(live) as t:
        t.send("input.text", text=ENDLESS)
        t.send("input.done")
        assert reading.began.wait(STUCK_S)
        t.send("response.cancel")
        assert reading.stopped()
        t.until("response.cancelled")


def test_a_timeout_stops_the_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, request_timeout=0.5) as live:
        reading = EndlessReading(live)
        monkeypatch.setattr(live.tts._model, "prompt", reading.prompt)
        while not reading.began.is_set():  # on a busy machine the time may be over before
            assert live.speech(input=ENDLESS).status_code == 504
        assert reading.stopped()


def test_work_that_has_not_begun_never_does(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of abandoned requests costs nothing."""
    begun: list[str] = []
    going, entered = threading.Event(), threading.Semaphore(0)
    (client,) = live.server.hosts.all[0].pool.clients
    plain = live.tts._model.speakable

    def speakable(text: str, check: Check) -> bool:
        begun.append(text)
        entered.release()
        assert going.wait(STUCK_S)
        return plain(text, check)

    monkeypatch.setattr(live.tts._model, "speakable", speakable)
    first = [raw(live, {"input": f"First {i}."}) for i in range(LIMITS.prepare_threads)]
    try:
        for _ in first:
            assert entered.acquire(timeout=STUCK_S)
        waiting = [raw(live, {"input": f"Waiting {i}."}) for i in range(3)]
        assert until(lambda: client.open == len(first) + len(waiting))
        for one in waiting:
            one.close()
        assert until(lambda: client.open == len(first))
    finally:
        going.set()
        for one in first:
            one.close()
    assert live.speech(input="Others are served.").status_code == 200
    assert [text for text in begun if text.startswith("Waiting")] == []


def test_references_that_are_being_encoded_hold_up_neither_plain_requests_nor_known_voices(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the server has threads."""
    encode, going, entered = live.tts._model.encode, threading.Event(), threading.Semaphore(0)

    def blocking(wav: Any, *rest: Any) -> Any:
        if float(wav.abs().max()) < KNOWN_PEAK / 2:
            entered.release()
            assert going.wait(STUCK_S)
        return encode(wav, *rest)

    monkeypatch.setattr(live.tts._model, "encode", blocking)
    known = {"input": "Hello there.", "ref_audio": reference(KNOWN_PEAK)}
    assert live.speech(**known).status_code == 200
    clients = [
        raw(live, {"input": "Hi.", "ref_audio": reference(0.1 + 0.02 * i)}) for i in range(12)
    ]
    try:
        assert entered.acquire(timeout=STUCK_S)
        assert live.speech(input="Nothing to encode.").status_code == 200
        assert live.speech(**known).status_code == 200
    finally:
        going.set()
        for client in clients:
            client.close()
    assert live.idle()


KNOWN_PEAK = 0.9


def reference(peak: float) -> str:
    """A tone of this peak as base64 of a wav file."""
    out = io.BytesIO()
    soundfile.write(out, peak * np.sin(np.arange(12_000) / 7), 8000, format="WAV")
    return base64.b64encode(out.getvalue()).decode()
