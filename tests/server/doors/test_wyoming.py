"""Wyoming over TCP: what its package does is in tests/server/clients."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stentor.errors import InvalidRequest
from stentor.server import sessions
from stentor.server.config import ServerConfig
from stentor.server.doors import wyoming
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from tests.helpers.door_talk import WyomingTalk
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, pcm, process, serving, toy
from tests.helpers.ws_talk import IdleClock

TEXT = "Good morning. How are you?"
LONG = "A long text. " * 200


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("home") / "voices"
    with serving(
        folder, wyoming_port=0, request_timeout=STUCK_S, voice_alias=("alloy=low",)
    ) as live:
        yield live


def audio(events: list[dict]) -> bytes:
    return b"".join(e["payload"] for e in events if e["type"] == "audio-chunk")


def kinds(events: list[dict]) -> list[str]:
    return list(dict.fromkeys(e["type"] for e in events))


def speaks(live: Live) -> bool:
    with WyomingTalk(live) as t:
        t.send("synthesize", text="Hello.")
        return bool(audio(t.until("audio-stop")))


def test_a_text_is_spoken_as_over_http(home: Live) -> None:
    http = home.speech(input=TEXT, response_format="pcm", stream=False, voice="high", guard=False)
    with WyomingTalk(home) as t:
        t.send("synthesize", text=TEXT, voice={"name": "high"})
        events = t.until("audio-stop")
    assert kinds(events) == ["audio-start", "audio-chunk", "audio-stop"]
    assert {k: events[0][k] for k in ("rate", "width", "channels")} == {
        "rate": 600,
        "width": 2,
        "channels": 1,
    }
    assert len(pcm(audio(events))) == len(pcm(http.content)) > 0


def test_what_is_written_bit_by_bit_is_spoken_before_it_is_complete(home: Live) -> None:
    with WyomingTalk(home) as t:
        t.send("synthesize-start")
        t.send("synthesize-chunk", text="Good morning. How ")
        first = t.until("audio-chunk")
        t.send("synthesize-chunk", text="are you?")
        t.send("synthesize", text=TEXT)  # repeats it, for servers that take no pieces
        t.send("synthesize-stop")
        rest = t.until("synthesize-stopped")
        assert kinds(first + rest) == [
            "audio-start",
            "audio-chunk",
            "audio-stop",
            "synthesize-stopped",
        ]
        t.send("synthesize-start", voice={"language": "en"})
        t.send("synthesize-stop")  # nothing was written
        assert kinds(t.until("synthesize-stopped")) == [
            "audio-start",
            "audio-stop",
            "synthesize-stopped",
        ]


def test_texts_are_spoken_in_their_order(home: Live) -> None:
    with WyomingTalk(home) as t:
        for text in ("One.", "Two is longer than one.", "Three."):
            t.send("synthesize", text=text)
        sizes = [len(audio(t.until("audio-stop"))) for _ in range(3)]
    assert all(sizes)


def test_what_there_is(home: Live) -> None:
    with WyomingTalk(home) as t:
        t.send("describe")
        info = t.get()
    assert info is not None
    (program,) = info["tts"]
    assert program["supports_synthesize_streaming"]
    assert [v["name"] for v in program["voices"]] == ["default", "low", "high", "alloy"]
    assert program["voices"][0]["languages"] == ["en"]
    assert (info["asr"], info["wake"]) == ([], [])


@pytest.fixture(scope="module")
def polyglot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A model of two languages."""
    folder = tmp_path_factory.mktemp("polyglot") / "voices"
    with serving(folder, toy(languages=("english", "german")), wyoming_port=0, strict=True) as live:
        yield live


def test_a_voice_of_several_languages_is_listed_for_each(polyglot: Live) -> None:
    """Home Assistant shows the voices of the language that its user has chosen, and sends the name alone."""
    with WyomingTalk(polyglot) as t:
        t.send("describe")
        (program,) = t.get()["tts"]
    german = [v for v in program["voices"] if v["languages"] == ["de"]]
    assert [v["name"] for v in german] == ["default@de", "low@de", "high@de"]
    assert [v["description"] for v in german] == ["default", "low", "high"]
    assert len(program["voices"]) == 2 * len(german)


@pytest.mark.parametrize(
    ("voice", "language"),
    [
        ({"name": "low@de"}, "german"),
        ({"name": "low"}, "auto"),
        ({"language": "de"}, "german"),
        ({"name": "default@en"}, "english"),
    ],
)
def test_a_named_voice_keeps_its_language(
    polyglot: Live, voice: dict[str, str], language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    live = polyglot.server.planner.live

    async def noted(*given: Any) -> Any:
        plans.append(await live(*given))
        return plans[-1]

    monkeypatch.setattr(polyglot.server.planner, "live", noted)
    with WyomingTalk(polyglot) as t:
        t.send("synthesize", text="Hello.", voice=voice)
        t.until("audio-stop")
    assert plans[0].request.language == language


def test_a_voice_of_a_language_that_there_is_not_is_refused(polyglot: Live) -> None:
    with WyomingTalk(polyglot) as t:
        t.send("synthesize", text="Hello.", voice={"name": "low@xx"})
        told = t.get()
    assert told["type"] == "error"
    assert "language" in told["text"]


def test_what_means_nothing_is_named_at_the_end(home: Live) -> None:
    with WyomingTalk(home) as t:
        t.send(
            "synthesize",
            text=TEXT,
            voice={"language": "xx"},
            context={"a": 1},
            tone="happy",
            text_format="ssml",
        )
        (stop,) = [e for e in t.until("audio-stop") if e["type"] == "audio-stop"]
    assert [i["param"] for i in stop["ignored"]] == ["language", "tone", "context"]


def test_data_and_payload_may_follow_the_line(home: Live) -> None:
    data = json.dumps({"text": TEXT}).encode()
    with WyomingTalk(home) as t:
        head = {
            "type": "synthesize",
            "version": "1.0",
            "data_length": len(data),
            "payload_length": 5,
        }
        for part in (json.dumps(head).encode() + b"\n" + data[:3], data[3:], b"01234"):
            t.raw(part)
        assert audio(t.until("audio-stop"))
        t.send("transcribe", language="en")  # of another service
        t.send("ping", text="it")
        assert t.get() == {"type": "pong", "text": "it", "payload": b""}


REFUSED = [
    ("synthesize", {"text": "x", "voice": {"name": "nobody"}}, "voice_not_found"),
    ("synthesize", {"text": "x" * 20_001}, "text_too_long"),
    ("synthesize", {}, None),
    ("synthesize", {"text": 5}, None),
    ("synthesize", {"text": "x", "voice": []}, None),
    ("synthesize", {"text": "x", "text_format": "html"}, None),
    ("synthesize-chunk", {"text": "x"}, None),
    ("select-program", {"name": "another"}, "model_not_found"),
    ("select-program", {"name": [1]}, "model_not_found"),
]


@pytest.mark.parametrize(("kind", "data", "code"), REFUSED, ids=str)
def test_what_is_refused_ends_the_connection_with_its_reason(
    home: Live, kind: str, data: dict, code: str
) -> None:
    with WyomingTalk(home) as t:
        t.send(kind, **data)
        error = t.get()
        assert error is not None
        assert (error["type"], t.get()) == ("error", None)
        assert error["text"]
        assert code is None or error["code"] == code
    assert home.idle()


HOSTILE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"{\n",
    b"[]\n",
    b"null\n",
    b"\n",
    b"\x00\xff\n",
    b"[" * 100_000 + b"\n",
    b'{"data": {}}\n',
    b'{"type": 5}\n',
    b'{"type": "ping", "data": []}\n' + b'{"type": "ping", "data": [1]}\n',
    b'{"type": "ping", "data_length": -1}\n',
    b'{"type": "ping", "data_length": 1e3}\n',
    b'{"type": "ping", "data_length": 99999999999}\n',
    b'{"type": "ping", "payload_length": 99999999999}\n',
    b'{"type": "ping", "data_length": 2}\n[]',
    b'{"type": "ping", "data_length": 2}\n{{',
    b"x" * 300_000,
]


@pytest.mark.parametrize("raw", HOSTILE, ids=lambda raw: repr(raw[:30]))
def test_what_is_no_event_ends_the_connection_with_its_reason(home: Live, raw: bytes) -> None:
    with WyomingTalk(home) as t:
        try:
            t.raw(raw)
            events = t.until("error")
        except ConnectionError:  # it was closed before all of it was sent
            events = []
        assert not events or events[-1]["type"] == "error"
    assert speaks(home)


def test_lengths_are_checked_before_anything_is_read() -> None:
    async def main(raw: bytes) -> None:
        reader = asyncio.StreamReader(limit=wyoming.MAX_BYTES)
        reader.feed_data(raw)
        reader.feed_eof()
        with pytest.raises(ApiError) as e:
            await wyoming.read(reader)
        assert e.value.code == "message_too_large"

    asyncio.run(main(b'{"type": "ping", "payload_length": %d}\n' % (wyoming.MAX_BYTES + 1)))
    asyncio.run(main(b"x" * (wyoming.MAX_BYTES * 2 + 2)))


@pytest.mark.parametrize(
    "half", [b"", b'{"type": "synth', b'{"type": "ping", "data_length": 10}\n{"t']
)
def test_silence_and_half_events_end_the_connection(
    home: Live, monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    clock = IdleClock()
    monkeypatch.setattr(sessions, "time", clock)
    monkeypatch.setattr(wyoming, "FIRST_SECONDS", 0.3)
    monkeypatch.setattr(home.server, "config", replace(home.server.config, ws_idle_seconds=0.3))
    with WyomingTalk(home) as t:
        if half:
            t.send("ping")
            t.get()
        t.raw(half)
        assert until(lambda: home.server.metrics.sessions)
        clock.passes = True
        error = t.get()
        assert error is not None
        assert (error["code"], t.get()) == ("idle_timeout", None)


def test_a_client_that_leaves_frees_its_slot(home: Live) -> None:
    aborted = home.sum_of("speech_stream_aborted_total")
    with WyomingTalk(home) as t:
        t.send("synthesize", text=LONG)
        t.until("audio-chunk")
    assert until(lambda: home.sum_of("speech_stream_aborted_total") > aborted)
    assert until(lambda: not home.server.metrics.sessions)
    assert home.idle()


def test_texts_that_wait_are_limited(home: Live) -> None:
    with WyomingTalk(home) as t:
        for _ in range(LIMITS.ws_waiting + 2):
            t.send("synthesize", text=LONG)
        assert t.until("error")[-1]["code"] == "too_many_utterances"
    assert home.idle()


def test_connections_are_counted_with_the_sessions_and_limited(tmp_path: Path) -> None:
    with serving(tmp_path / "voices", wyoming_port=0, ws_max_sessions=1) as live:
        with WyomingTalk(live) as first, WyomingTalk(live) as second:
            first.send("ping")
            error = second.get()
            assert error is not None
            assert (error["code"], second.get()) == ("too_many_sessions", None)
            assert live.sum_of("rejected_total", "too_many_sessions") == 1
        assert until(lambda: not live.server.metrics.sessions)
        assert speaks(live)


def test_a_client_that_does_not_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = asyncio.start_server

    async def with_small_buffers(*given: Any, **named: Any) -> asyncio.Server:
        made = await listen(*given, **named)
        made.sockets[0].setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
        )  # what it accepts has the same
        return made

    monkeypatch.setattr(asyncio, "start_server", with_small_buffers)
    settings = {"wyoming_port": 0, "max_buffered_mb": 0.001, "default_sample_rate": 48000}
    with (
        serving(tmp_path / "voices", **settings) as live,
        WyomingTalk(live, receive_buffer=4096) as t,
    ):
        for _ in range(LIMITS.ws_waiting):
            t.send("synthesize", text=LONG * 7)
        assert until(lambda: live.sum_of("speech_stream_aborted_total", 'reason="slow_client"'))
        assert t.until("error")[-1]["code"] == "slow_client"
        assert live.idle()


def test_a_server_that_drains_lets_a_text_end_and_takes_no_more(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "voices", wyoming_port=0) as live,
        WyomingTalk(live) as idle,
        WyomingTalk(live) as busy,
    ):
        idle.send("ping")
        idle.get()
        busy.send("synthesize", text="A long sentence. " * 20)
        busy.until("audio-chunk")
        live.drain()
        assert idle.get() is None
        assert busy.until("audio-stop")[-1]["type"] == "audio-stop"
        assert busy.get() is None
        with socket.socket() as late, pytest.raises(ConnectionError):
            late.connect(("127.0.0.1", live.server.wyoming_port))


def test_each_connection_is_a_line_of_the_access_log(
    home: Live, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "stentor.access"):
        assert speaks(home)
        assert until(lambda: any('"WYOMING /" 200' in r.message for r in caplog.records))


WRONG = [
    {"wyoming_port": 65536},
    {"wyoming_port": -1},
    {"wyoming_port": 10200, "api_key": ("x",)},
    {"wyoming_port": 10200, "replicas": 2},
    {"wyoming_port": 0, "api_processes": 2},
]


@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_a_port_that_cannot_be_is_refused(settings: dict) -> None:
    with pytest.raises(InvalidRequest) as e:
        ServerConfig(**settings)
    assert e.value.param == "wyoming_port"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def said(port: int) -> bytes:
    """The audio of a text, of whoever listens there."""
    with socket.create_connection(("127.0.0.1", port), STUCK_S) as s, s.makefile("rb") as file:
        s.sendall(json.dumps({"type": "synthesize", "data": {"text": "Hello."}}).encode() + b"\n")
        data = b""
        while line := file.readline():
            head = json.loads(line)
            file.read(head.get("data_length", 0))
            data += file.read(head.get("payload_length", 0))
            if head["type"] == "audio-stop":
                return data
    return b""  # a process whose engine is not attached yet


@pytest.mark.parametrize("flags", [(), ("--api-processes", "2")], ids=["one process", "two"])
def test_the_command_listens_speaks_and_ends(tmp_path: Path, flags: tuple[str, ...]) -> None:
    port = free_port()
    words = (
        "--wyoming-port",
        str(port),
        "--voices-dir",
        str(tmp_path),
        "--memory-gb",
        "0.05",
        *flags,
    )
    with process(*words) as (running, _):
        for _ in range(4):
            assert until(lambda: said(port))
        running.send_signal(signal.SIGTERM)
        assert running.wait(STUCK_S) == 0


def test_a_port_that_is_taken_is_an_error_before_a_model_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = f"-m stentor serve dummy:toy --port 0 --wyoming-port {port}"
        words = [sys.executable, *flags.split()]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=STUCK_S, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.stderr
