"""Limits and clients that leave: full queues, too many requests, slow clients, timeouts."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.engine.once import Claim
from stentor.engine.preparation import Preparation
from stentor.models.base import Prompt
from stentor.models.info import SpeechRequest
from stentor.server.engines import service
from stentor.server.errors import ApiError
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, connect, count, held, raw, serving, toy

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
    data = json.dumps(
        {"items": [TEXT] * 6, "min_frames": 900, "max_frames": 900, "guard": False}
    ).encode()
    stopped, aborted = live.tts.engine.stats.cancelled, count(live, "speech_stream_aborted_total")
    with held(live, steps=[5]):
        s = socket.create_connection((host, int(port)), STUCK_S)
        s.sendall(
            b"POST /v1/audio/speech/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
            + str(len(data)).encode() + b"\r\n\r\n" + data
        )  # fmt: skip
        assert until(
            lambda: live.tts.engine.health().running + live.tts.engine.health().queued == 6
        )
        s.close()
        assert until(lambda: count(live, "speech_stream_aborted_total") == aborted + 6)
    assert live.idle()
    assert live.tts.engine.stats.cancelled == stopped + 6


def test_the_outcome_of_a_request_that_was_left_is_cancelled(live: Live) -> None:
    ask = {**LONG, "stream_format": "audio", "response_format": "pcm"}
    with held(live, frames=[20]):
        with live.http.stream("POST", "/v1/audio/speech", json=ask) as answer:
            next(answer.iter_raw())
            id = answer.headers["x-request-id"]
        assert until(lambda: not live.server.metrics.live)
    assert live.http.get(f"/v1/audio/speech/{id}").json()["status"] == "cancelled"
    assert live.idle()


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One slot, a queue of one, little patience, and small buffers of the system."""
    settings = {"max_buffered_mb": 0.5, "split_chars": 60, "send_buffer": 1 << 14}
    with serving(tmp_path_factory.mktemp("tight"), toy(slots=1, max_queue=1), **settings) as live:
        yield live


def test_a_full_queue_is_a_503_that_says_when_to_come_back(tight: Live) -> None:
    with held(tight, steps=[1]) as engine, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(raw(tight, {**LONG, "stream_format": "audio"})))
        engine.wait()  # the only slot is taken
        stack.enter_context(contextlib.closing(raw(tight, {**LONG, "stream_format": "audio"})))
        assert until(lambda: tight.tts.engine.health().queued == 1)
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
    health, prepare, spoken = (
        tight.tts.engine.health,
        tight.tts.prepare,
        tight.tts.engine.stats.finished,
    )
    asked, going = threading.Event(), threading.Event()

    class Slow(Preparation):
        def advance(self) -> Prompt | Claim[Any]:
            asked.set()
            assert going.wait(STUCK_S)
            return super().advance()

    def slow_second(request: SpeechRequest) -> Preparation:
        if request.text != "Two is here.":
            return prepare(request)
        engine = tight.tts.engine
        return Slow(engine.model, engine.encoder, engine.primer, request)

    monkeypatch.setattr(service, "QUICK_CHARS", 0)  # the slow prompt holds up no other
    monkeypatch.setattr(tight.tts, "prepare", slow_second)
    ask = {
        "input": "One is here. Two is here.",
        "voice": "low",
        "split_granularity": "sentence",
        "seed": 1,
    }
    with ThreadPoolExecutor(2) as pool:
        pieces = pool.submit(tight.speech, **ask, max_frames=8, stream_format="sse")
        assert asked.wait(STUCK_S)
        assert until(lambda: tight.tts.engine.stats.finished == spoken + 1)  # the first piece
        with (
            held(tight, steps=[1]) as engine,
            contextlib.closing(raw(tight, {**LONG, "stream": True})) as running,
        ):
            engine.wait()
            waits = pool.submit(tight.speech, input=TEXT)
            assert until(lambda: health().queued == 1)
            going.set()
            assert until(lambda: health().queued == 2)
            running.close()
            with held(tight, finished=[1]) as first:
                engine.go()
                first.wait()
                assert until(lambda: pieces.done() or waits.done())
                assert not waits.done()
    answer = pieces.result().text
    assert "speech.audio.error" not in answer
    assert "speech.audio.done" in answer
    assert waits.result().status_code == 200
    assert tight.idle()


def test_a_client_that_reads_too_slowly_is_cut_off(
    tight: Live,
) -> None:
    """Audio for a client that takes none of it."""
    body = {
        "input": "A sentence to be said slowly. " * 12,
        "min_frames": 900,
        "max_frames": 900,
        "guard": False,
    }
    shape = {
        "speed": 0.25,
        "sample_rate": 48_000,
        "response_format": "pcm",
        "stream_format": "audio",
    }
    with contextlib.closing(raw(tight, {**body, **shape}, buffer=4096)) as s:
        assert s.recv(64).startswith(b"HTTP/1.1 200")
        cut_off = 'speech_stream_aborted_total{model_name="dummy:toy",reason="slow_client"}'
        assert until(lambda: count(tight, cut_off) == 1)
        assert tight.idle()
        with contextlib.suppress(ConnectionResetError):
            received = b"".join(iter(lambda: s.recv(1 << 20), b""))
            assert not received.endswith(b"0\r\n\r\n")  # it can tell that this is not the end


def test_a_request_that_takes_too_long_is_a_504(tmp_path: Path) -> None:
    with serving(tmp_path, request_timeout=0.3) as live:
        for how in ({}, {"stream_format": "sse", "initial_codec_chunk_frames": 4000}):
            with held(live, steps=[5]):
                answer = live.speech(**LONG, **how)
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "request_timeout"
            assert live.idle()
        body = {**LONG, "stream_format": "sse"}
        with (
            held(live, frames=[20]),
            live.http.stream("POST", "/v1/audio/speech", json=body) as broken,
        ):
            if broken.status_code == 200:  # on a slow machine it may not have begun
                error = last_event(broken_off(broken))
                assert error == ("speech.audio.error", "request_timeout")
            else:
                assert broken.status_code == 504
        assert live.idle()


def broken_off(answer: httpx.Response) -> str:
    """The text of an answer that ends without its last chunk."""
    parts: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        parts.extend(answer.iter_text())
    return "".join(parts)


def last_event(text: str) -> tuple[str, str]:
    """The name of the last server-sent event, and the code of its error."""
    head, data = text.strip().split("\n\n")[-1].split("\n")
    return head.removeprefix("event: "), json.loads(data.removeprefix("data: "))["error"]["code"]


def test_what_still_runs_when_the_server_ends_is_told_so(tmp_path: Path) -> None:
    """A whole file and a batch get a 503, events an error as the last one, raw audio no last chunk."""
    with (
        serving(tmp_path) as live,
        ThreadPoolExecutor() as pool,
        live.http.stream(
            "POST", "/v1/audio/speech", json={**LONG, "stream_format": "sse"}
        ) as events,
        contextlib.closing(raw(live, {**LONG, "stream": True})) as audio,
    ):
        assert audio.recv(64).startswith(b"HTTP/1.1 200")
        with held(live, steps=[1]):
            whole = pool.submit(live.speech, **LONG)
            batch = pool.submit(
                live.http.post, "/v1/audio/speech/batch", json={**LONG, "items": ["One.", "Two."]}
            )
            live.end()
            assert last_event(broken_off(events)) == ("speech.audio.error", "shutting_down")
            assert not b"".join(iter(lambda: audio.recv(1 << 20), b"")).endswith(b"0\r\n\r\n")
            for answer in (whole.result(), batch.result()):
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "shutting_down"
                assert "retry-after" in answer.headers


@pytest.mark.parametrize("route", ["speech", "voices"])
def test_a_body_that_is_still_coming_when_the_server_ends_gets_a_503(
    tmp_path: Path, route: str
) -> None:
    kind = {"speech": "application/json", "voices": "multipart/form-data; boundary=x"}[route]
    head = f"POST /v1/audio/{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 99\r\n\r\n--x\r\n"
    with serving(tmp_path) as live, contextlib.closing(connect(live)) as s:
        s.sendall(head.encode())
        live.end()
        answer, _, body = b"".join(iter(lambda: s.recv(1 << 20), b"")).partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 5" in answer
    assert json.loads(body)["error"]["code"] == "shutting_down"


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (3.4, "4"), (60.0, "10")])
def test_a_client_is_never_sent_away_for_more_than_ten_seconds(seconds: float, header: str) -> None:
    """OpenAI's SDK sleeps for all of it, twice, in the thread of its caller."""
    assert ApiError(503, "later", retry_after=seconds).headers == {"Retry-After": header}
