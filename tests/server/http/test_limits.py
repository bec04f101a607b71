"""Limits and clients that leave: full queues, too many requests, slow clients, timeouts."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.once import Claim
from stentor.engine.preparation import Preparation
from stentor.models.base import Prompt, SpeechRequest
from stentor.text.front_end import Check
from tests.helpers.server_live import Live, count, held, raw, serving, toy, until

TEXT = "Hello there, you."


LONG = {"input": "A long text, said slowly.", "min_frames": 900, "max_frames": 900, "guard": False}


@pytest.mark.parametrize("how", [{}, {"stream_format": "audio"}, {"stream_format": "sse"}])
def test_a_client_that_leaves_frees_everything_at_once(live: Live, how: dict) -> None:
    assert live.idle()
    before, stopped = count(live, "speech_stream_aborted_total"), live.tts.engine.stats.cancelled
    with held(live, steps=[20]) as engine:
        s = raw(live, {**LONG, **how})
        engine.wait()
        s.close()
        assert until(lambda: count(live, "speech_stream_aborted_total") == before + 1)
    assert live.idle()
    assert live.tts.engine.stats.cancelled == stopped + 1


def test_a_client_that_leaves_a_batch_frees_all_of_it(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    data = json.dumps({"items": [TEXT] * 6, "min_frames": 900, "max_frames": 900, "guard": False}).encode()
    s = socket.create_connection((host, int(port)), 60)
    s.sendall(
        b"POST /v1/audio/speech/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        + str(len(data)).encode() + b"\r\n\r\n" + data
    )  # fmt: skip
    stopped = live.tts.engine.stats.cancelled
    assert until(lambda: live.tts.engine.health().running == 6)
    s.close()
    assert live.idle()
    assert live.tts.engine.stats.cancelled == stopped + 6


def test_the_outcome_of_a_request_that_was_left_is_cancelled(live: Live) -> None:
    with live.http.stream("POST", "/v1/audio/speech", json={**LONG, "stream_format": "audio"}) as answer:
        next(answer.iter_raw())
        id = answer.headers["x-request-id"]
    assert until(lambda: live.http.get(f"/v1/audio/speech/{id}").json()["status"] == "cancelled")


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One slot, a queue of one, four requests in progress, little patience."""
    settings = {"max_active_requests": 4, "max_buffered_mb": 0.5, "split_chars": 60}
    with serving(tmp_path_factory.mktemp("tight"), toy(slots=1, max_queue=1), **settings) as live:
        yield live


def test_a_full_queue_is_a_503_that_says_when_to_come_back(tight: Live) -> None:
    with contextlib.ExitStack() as stack:
        for n in (1, 2):
            stack.enter_context(contextlib.closing(raw(tight, {**LONG, "stream_format": "audio"})))
            assert until(lambda n=n: tight.tts.engine.health().running + tight.tts.engine.health().queued == n)
        answer = tight.speech(input=TEXT)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "queue_full"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        sse = tight.speech(input=TEXT, stream_format="sse")
        assert sse.status_code == 503  # a status, not a broken stream
    assert tight.idle()
    assert tight.speech(input=TEXT).status_code == 200
    assert count(tight, 'rejected_total{reason="queue_full"}') >= 2


def test_a_long_text_is_not_refused_half_way_by_a_full_queue_and_goes_before_it(
    tight: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    health, prepare = tight.tts.engine.health, tight.tts.prepare
    asked, going = threading.Event(), threading.Event()
    order: list[str] = []

    class Slow(Preparation):
        def advance(self, check: Check) -> Prompt | Claim[Any]:
            asked.set()
            assert going.wait(60)
            return super().advance(check)

    def slow_second(request: SpeechRequest) -> Preparation:
        if request.text != "Two is here.":
            return prepare(request)
        engine = tight.tts.engine
        return Slow(engine.model, engine.reference_encoder, engine.codec.primer, request)

    monkeypatch.setattr(tight.tts, "prepare", slow_second)
    ask = {"input": "One is here. Two is here.", "voice": "low", "split_granularity": "sentence", "seed": 1}

    def speak() -> bytes:
        answer = tight.speech(**ask, max_frames=8, stream_format="sse").text
        order.append("pieces")
        return answer.encode()

    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        pieces = pool.submit(speak)
        assert asked.wait(60)
        running = stack.enter_context(contextlib.closing(raw(tight, {**LONG, "stream_format": "audio"})))
        assert until(lambda: health().running == 1)
        with held(tight, steps=[1]) as engine:
            engine.wait()
            waits = pool.submit(lambda: tight.speech(input=TEXT).status_code and order.append("new"))
            assert until(lambda: health().queued == 1)
            going.set()
            assert until(lambda: health().queued == 2)
            running.close()
        answer = pieces.result(60)
        waits.result(60)
    assert b"speech.audio.error" not in answer
    assert b"speech.audio.done" in answer
    assert order == ["pieces", "new"]
    assert tight.idle()


def test_too_many_requests_are_429_before_their_bodies_are_read(tight: Live) -> None:
    host, port = tight.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:

        def full() -> bool:
            """Whether one more is refused, with another whose body never comes."""
            s = stack.enter_context(socket.create_connection((host, int(port)), 60))
            s.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
            return tight.speech(input=TEXT).status_code == 429

        assert until(full)
        answer = tight.speech(input=TEXT)
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "too_many_requests"
        assert tight.http.get("/health").status_code == 200
    assert until(lambda: tight.speech(input=TEXT).status_code == 200)


def test_a_client_that_reads_too_slowly_is_cut_off(tight: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MB of audio for a client that takes none of it. The server takes it all, so no row waits for its reader."""
    scheduler = tight.tts.engine.scheduler
    monkeypatch.setattr(scheduler, "policy", replace(scheduler.policy, max_unread=0.5))
    body = {"input": "A sentence to be said slowly. " * 12, "min_frames": 900, "max_frames": 900, "guard": False}
    shape = {"speed": 0.25, "sample_rate": 48_000, "response_format": "pcm", "stream_format": "audio"}
    with contextlib.closing(raw(tight, {**body, **shape}, buffer=4096)) as s:
        assert s.recv(64).startswith(b"HTTP/1.1 200")
        assert until(lambda: count(tight, "speech_stream_aborted_total") and tight.idle(0.1), 120)
        assert count(tight, 'speech_stream_aborted_total{model_name="dummy:toy",reason="slow_client"}') == 1
        with contextlib.suppress(ConnectionResetError):
            received = b"".join(iter(lambda: s.recv(1 << 20), b""))
            assert not received.endswith(b"0\r\n\r\n")  # it can tell that this is not the end


def test_a_request_that_takes_too_long_is_a_504(tmp_path: Path) -> None:
    with serving(tmp_path, request_timeout=0.3) as live:
        for how in ({}, {"stream_format": "sse", "initial_codec_chunk_frames": 4000}):
            answer = live.speech(**LONG, **how)
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "request_timeout"
        broken = live.speech(**LONG, stream_format="sse")
        if broken.status_code == 200:  # on a slow machine it may not have begun
            assert b"event: speech.audio.error" in broken.content or broken.content.endswith(b"\n\n")
        else:
            assert broken.status_code == 504
        assert live.idle()
