"""Count what an engine keeps of requests that have ended."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

import stentor
from stentor.engine.preparation import Preparation
from stentor.errors import InvalidRequest
from stentor.models.info import SpeechRequest
from stentor.server.engines import messages as m
from stentor.server.engines import service as services
from stentor.server.engines.service import EngineService
from tests.helpers.local_engine import local_engine
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, held, raw

LONG = {"input": "A long text, said slowly.", "min_frames": 900, "max_frames": 900, "guard": False}


@pytest.fixture
def service(live: Live) -> EngineService:
    engine = local_engine(live.server.hosts.all[0])
    assert engine._service is not None
    return engine._service


@pytest.fixture
def requests(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[weakref.ref[Preparation]]]:
    """Preparations of the engine, each with its request. Nothing is collected meanwhile."""
    prepare, found = live.tts.prepare, []

    def noting(request: SpeechRequest) -> Preparation:
        made = prepare(request)
        found.append(weakref.ref(made))
        return made

    monkeypatch.setattr(live.tts, "prepare", noting)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


def gone(requests: list[weakref.ref[Preparation]]) -> bool:
    return len(requests) > 0 and all(request() is None for request in requests)


def test_an_answered_request_is_let_go_of_at_once(
    live: Live, requests: list[weakref.ref[Preparation]]
) -> None:
    for how in ({}, {"stream_format": "audio"}):
        assert live.speech(input="Hello there.", **how).status_code == 200
    assert until(lambda: gone(requests))
    assert len(requests) == 2


def test_a_request_that_was_cancelled_is_let_go_of(
    live: Live, requests: list[weakref.ref[Preparation]]
) -> None:
    with held(live, steps=[5]) as engine:
        client = raw(live, LONG)
        engine.wait()
        client.close()
    assert until(lambda: gone(requests))


def test_a_request_that_failed_is_let_go_of(
    live: Live, requests: list[weakref.ref[Preparation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise InvalidRequest(
            "input", "cannot be read"
        )  # what is logged has its traceback kept by pytest

    monkeypatch.setattr(live.tts._model, "prompt", broken)
    assert live.speech(input="Hello there.").status_code == 400
    assert until(lambda: gone(requests))


def test_a_request_that_was_cancelled_while_its_prompt_was_made_is_let_go_of(
    live: Live,
    requests: list[weakref.ref[Preparation]],
    service: EngineService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, going = threading.Event(), threading.Event()
    plain = live.tts._model.prompt

    def slow(request: SpeechRequest, voices: Any) -> Any:
        began.set()
        assert going.wait(STUCK_S)
        return plain(request, voices)

    monkeypatch.setattr(services, "QUICK_CHARS", 0)
    monkeypatch.setattr(live.tts._model, "prompt", slow)
    client = raw(live, LONG)
    assert began.wait(STUCK_S)
    client.close()
    assert until(lambda: not service._open)
    going.set()
    assert until(lambda: gone(requests))
    assert live.idle()


def test_text_for_a_request_that_has_ended_is_passed_over(
    live: Live, service: EngineService
) -> None:
    """It was on its way."""
    for command in (m.Append(12345, "more", True), m.Cancel(12345)):
        service.handle(command, m.Reader(memoryview(b"")))
    assert live.speech(input="Hello there.").status_code == 200


def test_text_that_comes_while_a_recording_is_asked_for_again_reaches_the_request() -> None:
    """The toy takes none, and says so: lost text would say nothing."""
    said: list[m.Event] = []
    samples = 0.1 * np.sin(np.arange(1200, dtype=np.float32))
    gone_by = m.SentRecording("k 600", 600, "k", True, 0)

    def command(recording: m.SentRecording) -> m.Submit:
        return m.Submit(
            id=7,
            text="Hello ",
            voice=None,
            language="auto",
            instructions=None,
            recordings=[recording],
            references=[m.SentReference(0, None)],
            prompt=None,
            speaker_embedding=None,
            live=True,
            seed=1,
            options={name: option.default for name, option in tts.spec.options.items()},
            adapter=None,
            streaming=True,
            place="new",
            check_only=False,
        )

    with stentor.TTS("dummy:toy", memory_gb=0.01, max_num_seqs=2, threads=1) as tts:
        service = EngineService(tts, lambda api, events, arrays: said.extend(events), 1e9)
        service.connect(0)
        service.handle(command(gone_by), m.Reader(memoryview(b"")))
        assert [type(event) for event in said] == [m.Resend]
        service.handle(m.Append(7, "there, you.", True), m.Reader(memoryview(b"")))
        sent = msgspec.structs.replace(gone_by, size=len(samples))
        service.handle(command(sent), m.Reader(memoryview(samples.tobytes())))
        assert until(
            lambda: any(isinstance(e, m.Ended) or getattr(e, "finish", None) for e in said)
        )
        assert [e.error.param for e in said if isinstance(e, m.Ended)] == ["live"]
        service.close(stentor.EngineError("over"))
