"""Under load and in trouble: full queues, slow and vanished clients, crashes, signals, keys."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest

import stentor
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.http import middleware
from stentor.server.http.middleware import authorized
from tests.server.server_live import Live, pcm, process, serving, toy

TEXT = "Hello there, you."
LONG = {"input": "A long text, said slowly.", "min_frames": 900, "max_frames": 900, "guard": False}


def until(true: Callable[[], object], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False


def count(live: Live, start: str) -> float:
    lines = live.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("stentor:" + start))


def raw(live: Live, body: dict, buffer: int | None = None) -> socket.socket:
    """A request by a client of our own, which need not read."""
    host, port = live.url.removeprefix("http://").split(":")
    s = socket.socket()
    if buffer is not None:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    s.settimeout(20)
    s.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    s.sendall(head.encode() + b"\r\n\r\n" + data)
    return s


@pytest.mark.parametrize("how", [{}, {"stream_format": "audio"}, {"stream_format": "sse"}])
def test_a_client_that_leaves_frees_everything_at_once(live: Live, how: dict) -> None:
    assert live.idle()
    before = count(live, "speech_stream_aborted_total")
    s = raw(live, {**LONG, **how})
    assert until(lambda: live.tts.engine.health().running == 1)
    s.close()
    began = time.monotonic()
    assert live.idle()
    assert time.monotonic() - began < 1.5  # the speech would have gone on for longer
    assert until(lambda: count(live, "speech_stream_aborted_total") == before + 1)


def test_a_client_that_leaves_a_batch_frees_all_of_it(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    data = json.dumps({"items": [TEXT] * 6, "min_frames": 900, "max_frames": 900, "guard": False}).encode()
    s = socket.create_connection((host, int(port)), 10)
    s.sendall(
        b"POST /v1/audio/speech/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        + str(len(data)).encode() + b"\r\n\r\n" + data
    )  # fmt: skip
    assert until(lambda: live.tts.engine.health().running == 6)
    s.close()
    assert live.idle(2.0)


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


def test_too_many_requests_are_429_before_their_bodies_are_read(tight: Live) -> None:
    host, port = tight.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:

        def full() -> bool:
            """Whether one more is refused, with another whose body never comes."""
            s = stack.enter_context(socket.create_connection((host, int(port)), 10))
            s.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
            return tight.speech(input=TEXT).status_code == 429

        assert until(full)
        answer = tight.speech(input=TEXT)
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "too_many_requests"
        assert tight.http.get("/health").status_code == 200
    assert until(lambda: tight.speech(input=TEXT).status_code == 200)


def test_a_body_that_does_not_come_is_a_408_and_frees_its_place(tight: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.2)
    host, port = tight.url.removeprefix("http://").split(":")
    with contextlib.closing(socket.create_connection((host, int(port)), 10)) as s:
        s.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert s.recv(1000).startswith(b"HTTP/1.1 408")
    monkeypatch.undo()
    assert tight.speech(input=TEXT).status_code == 200


def test_a_client_that_reads_too_slowly_is_cut_off(tight: Live) -> None:
    """16 MB of audio for a client that takes none of it."""
    body = {"input": "A sentence to be said slowly. " * 12, "min_frames": 900, "max_frames": 900, "guard": False}
    shape = {"speed": 0.25, "sample_rate": 48_000, "response_format": "pcm", "stream_format": "audio"}
    with contextlib.closing(raw(tight, {**body, **shape}, buffer=4096)) as s:
        assert s.recv(64).startswith(b"HTTP/1.1 200")
        assert until(lambda: count(tight, "speech_stream_aborted_total") and tight.idle(0.1), 30)
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
        assert b"event: speech.audio.error" in broken.content or broken.content.endswith(b"\n\n")
        assert live.idle()


def crash(live: Live) -> None:
    """A fault in the engine's own thread."""

    def fault(now: float) -> None:
        raise RuntimeError("the device is gone")

    live.tts.engine.scheduler.plan = fault  # type: ignore[method-assign, assignment]
    live.tts.engine._inbox.put(lambda: None)


def test_a_crashed_engine_is_seen_in_health_and_restarted(tmp_path: Path) -> None:
    with serving(tmp_path) as live:
        s = raw(live, {**LONG, "stream_format": "audio"})
        assert until(lambda: live.tts.engine.health().running == 1)
        crash(live)
        seen = []

        def unhealthy() -> bool:
            seen.append(live.http.get("/health"))
            return seen[-1].status_code == 503

        assert until(unhealthy)
        assert "the device is gone" in seen[-1].text
        data = b""
        with contextlib.suppress(ConnectionResetError):
            data = b"".join(iter(lambda: s.recv(1 << 16), b""))
        assert b" 500 " in data[:20] or not data.endswith(b"0\r\n\r\n")
        s.close()
        assert until(lambda: live.http.get("/health").status_code == 200)
        assert until(lambda: live.http.get("/ready").status_code == 200)
        assert live.speech(input=TEXT).status_code == 200
        assert live.http.get("/health").json()["models"]["dummy:toy"]["restarts"] == 1
        assert count(live, "engine_restarts_total") == 1


def test_where_a_crash_poisons_the_process_it_ends(tmp_path: Path) -> None:
    given_up: list[bool] = []
    with serving(tmp_path, give_up=lambda: given_up.append(True), on_crash="exit") as live:
        crash(live)
        assert until(lambda: given_up == [True])
        assert live.http.get("/ready").status_code == 503
        answer = live.speech(input=TEXT)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "not_ready"


def test_a_model_that_cannot_be_loaded_gives_up_and_says_why(tmp_path: Path) -> None:
    def broken(name: str, model: str | None) -> object:
        def load() -> stentor.TTS:
            raise stentor.StentorError("no such checkpoint")

        return load

    given_up: list[bool] = []
    app = create_app(ServerConfig(voices_dir=str(tmp_path)), lambda: given_up.append(True), broken)  # type: ignore[arg-type]

    async def check() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http,
        ):
            await asyncio.sleep(0.1)
            ready = await http.get("/ready")
            assert ready.status_code == 503
            assert ready.json()["reason"] == "no such checkpoint"

    asyncio.run(check())
    assert given_up == [True]


def test_readiness_names_the_phase_until_the_model_has_spoken(tmp_path: Path) -> None:
    made = toy()

    def slow(name: str, model: str | None) -> object:
        def load() -> stentor.TTS:
            time.sleep(0.5)
            return made(name, model)()

        return load

    app = create_app(ServerConfig(voices_dir=str(tmp_path)), load=slow)  # type: ignore[arg-type]

    async def check() -> None:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http,
        ):
            early = await http.get("/ready")
            assert early.status_code == 503
            assert early.json()["phase"] == "loading"
            assert "retry-after" in early.headers
            assert (await http.get("/health")).status_code == 200  # alive, though not ready
            assert (await http.post("/v1/audio/speech", json={"input": TEXT})).status_code == 503
            for _ in range(500):
                if (await http.get("/ready")).status_code == 200:
                    break
                await asyncio.sleep(0.02)
            assert (await http.get("/ready")).json() == {"ready": True, "phase": "ready"}
            assert gc.get_freeze_count() > 0  # a full collection does not walk over the model

    asyncio.run(check())
    assert gc.get_freeze_count() == 0


def test_keys_guard_what_is_under_v1_and_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=("one", "schlüssel")) as live:
        for key in ("", "Bearer", "Bearer ", "Bearer wrong", "Bearer one2", "Bearer on", "Basic one"):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/audio/speech"), ("GET", "/v1/audio/voices")):
                answer = live.http.request(method, path, headers={"Authorization": key.strip()})
                assert answer.status_code == 401, key
                assert answer.json()["error"]["code"] == "invalid_api_key"
        assert live.speech(input=TEXT).status_code == 200
        assert live.http.get("/v1/models", headers={b"Authorization": "Bearer schlüssel".encode()}).status_code == 200
        with httpx.Client(base_url=live.url, trust_env=False) as anyone:
            for path in ("/health", "/ready", "/metrics", "/version"):
                assert anyone.get(path).status_code == 200


def test_keys_are_compared_whole() -> None:
    assert authorized("Bearer b", ("a", "b"))
    assert not authorized("Bearer ab", ("a", "b"))
    assert not authorized("", ("a",))


def test_other_origins_may_read_our_headers_if_they_are_allowed(tmp_path: Path) -> None:
    with serving(tmp_path, allowed_origins=("https://app.example",)) as live:
        answer = live.http.post("/v1/audio/speech", json={"input": TEXT}, headers={"Origin": "https://app.example"})
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "X-Seed" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        other = live.http.post("/v1/audio/speech", json={"input": TEXT}, headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


LONG_TEXT = (
    "Dr. Smith paid 3.50 for it. That was on Monday, the 1. of May! Was it? "
    "第一句话。第二句话！ A new paragraph follows.\n\nAnd here it is, with J. R. R. Tolkien in it. The end."
)


def test_long_input_is_spoken_in_pieces_joined_without_clicks_and_timed(live: Live) -> None:
    ask = {"input": LONG_TEXT, "seed": 5, "split_granularity": "sentence", "guard": False, "voice": "low"}
    told = live.speech(**ask, timestamps="json", response_format="pcm").json()
    samples = pcm(base64.b64decode(told["audio"]))
    texts = [s["text"] for s in told["segments"]]
    assert texts == [
        "Dr. Smith paid 3.50 for it.", "That was on Monday, the 1. of May!", "Was it?", "第一句话。", "第二句话！",
        "A new paragraph follows.", "And here it is, with J. R. R. Tolkien in it.", "The end.",
    ]  # fmt: skip
    for s in told["segments"]:
        assert LONG_TEXT[s["start_char"] : s["end_char"]] == s["text"]
    gaps = [b["start"] - a["end"] for a, b in pairwise(told["segments"])]
    assert gaps == pytest.approx([0.15] * 5 + [0.4, 0.15], abs=0.005)
    for before, after in pairwise(told["segments"]):
        silence = samples[round(before["end"] * 600) : round(after["start"] * 600)]
        assert np.abs(silence).max() == 0
        for edge in (samples[round(before["end"] * 600) - 1], samples[round(after["start"] * 600)]):
            assert abs(edge) < 0.02  # faded, not cut
    assert told["segments"][-1]["end"] * 600 == pytest.approx(len(samples), abs=2)
    streamed = pcm(live.speech(**ask, stream_format="audio", response_format="pcm").content)
    assert len(streamed) == len(samples)
    assert np.abs(streamed - samples).max() < 2.1 / 32768


def test_pieces_continue_the_voice_of_the_one_before(live: Live) -> None:
    ask = {"seed": 5, "response_format": "pcm", "guard": False, "min_frames": 40}
    both = pcm(live.speech(**ask, input="One is here. Two is here.", split_granularity="sentence").content)
    alone = pcm(live.speech(**ask, input="Two is here.").content)
    second = both[-len(alone) :]
    assert np.abs(second[3:] - alone[3:]).max() > 0.01  # it has taken up the first one's sound


def test_subtitles_come_in_the_answer_and_afterwards(live: Live) -> None:
    ask = {"input": "One is here. Two is <here>.", "seed": 5, "response_format": "pcm"}
    answer = live.speech(**ask, timestamps="srt")
    assert answer.json()["subtitles"].startswith("1\n00:00:00,000 --> 00:00:")
    id = answer.headers["x-request-id"]
    vtt = live.http.get(f"/v1/audio/speech/{id}/timestamps", params={"format": "vtt"})
    assert vtt.text.startswith("WEBVTT\n\n00:00:00.000 --> ")
    assert "&lt;here&gt;" in vtt.text
    assert live.http.get(f"/v1/audio/speech/{id}/timestamps").text == answer.json()["subtitles"]
    sse = live.speech(**ask, stream=True, timestamps="json").text
    assert sse.count("event: speech.audio.segment") >= 1
    assert '"segments"' in sse.split("event: speech.audio.done")[1]


def test_sigterm_lets_running_answers_end(tmp_path: Path) -> None:
    with process("--voices-dir", str(tmp_path)) as (running, url), httpx.Client(base_url=url, trust_env=False) as http:
        ask = {**LONG, "stream_format": "audio", "response_format": "pcm", "seed": 5}
        with http.stream("POST", "/v1/audio/speech", json=ask) as answer:
            parts = answer.iter_raw()
            data = next(parts)
            running.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{url}/health", trust_env=False)
            data += b"".join(parts)
        assert len(data) == 900 * 6 * 2
        assert running.wait(15) == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the test's certificate, is not here")
def test_tls_is_spoken_with_a_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run([*make.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    flags = ("--ssl-keyfile", str(key), "--ssl-certfile", str(certificate), "--voices-dir", str(tmp_path / "v"))
    with process(*flags) as (_, url):
        assert url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=trust, base_url=url, trust_env=False) as http:
            assert http.post("/v1/audio/speech", json={"input": TEXT}).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", trust_env=False)


def test_a_config_file_and_a_unix_socket_do(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text(
        "default-response-format: mp3\nvoice-alias: [alloy=low]\ndefault-sample-rate: 24000\nmax_input_chars: 50\n"
    )
    sock = tmp_path / "s"
    flags = ("--config", str(tmp_path / "server.yaml"), "--uds", str(sock), "--voices-dir", str(tmp_path / "v"))
    with (
        process(*flags) as (running, _),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://x") as http,
    ):
        answer = http.post("/v1/audio/speech", json={"input": TEXT, "voice": "alloy"})
        assert answer.headers["content-type"] == "audio/mpeg"
        assert answer.headers["x-sample-rate"] == "24000"
        assert http.post("/v1/audio/speech", json={"input": "x" * 51}).status_code == 400
        running.send_signal(signal.SIGTERM)
        assert running.wait(15) == 0
