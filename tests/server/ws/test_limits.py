"""Refusals of a session, and when it is closed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from stentor.models.toy.model import BROKEN
from stentor.server import sessions
from stentor.server.sessions import MAX_AHEAD_BYTES, CloseSession, MessageReader
from stentor.server.speech.plan import SpeechPlan
from stentor.server.ws import session as ws_module
from stentor.server.ws.session import parse
from stentor.server.ws.utterance import MessageSender
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, held, serving
from tests.helpers.ws_talk import IdleClock, talk

MOST_LETTERS = 19_000  # the server takes 20,000 characters
LONG = {"min_frames": 300, "max_frames": 300}


BAD_CONFIGS = [
    ({"voice": "nobody"}, "voice"),
    ({"voice": []}, "voice: must be a string or an object"),
    ({"speed": 9}, "speed"),
    ({"response_format": "ogg"}, "response_format"),
    ({"temperature": 7}, "temperature"),
    ({"encoding": "morse"}, "encoding"),
    ({"session": {"speed": 9}}, "speed"),
    ({"session": "nobody", "stream_audio": "yes"}, "stream_audio"),
    ({"split_granularity": "word"}, "split_granularity"),
    ({"ref_audio": "http://127.0.0.1/x.wav"}, "ref_audio"),
    ({"model": "another"}, "model"),
]


def test_a_wrong_configuration_is_refused_by_field_and_may_be_sent_again(live: Live) -> None:
    with talk(live, configure=False) as t:
        for body, param in BAD_CONFIGS:
            t.send("session.config", **body)
            error = t.get()
            assert error["type"] == "error"
            assert error["param"] == param.partition(":")[0]
            assert param in error["message"]
        t.send("session.config", response_format="pcm")
        assert t.get()["type"] == "session.configured"


def test_wrong_messages_are_refused_and_the_session_goes_on(live: Live) -> None:
    with talk(live) as t:
        for raw, code in (
            ("{", "invalid_json"),
            ("[]", "invalid_message"),
            ("null", "invalid_message"),
            ('{"type": "sing"}', "invalid_message"),
            ('{"type": 5}', "invalid_message"),
            ("[" * 90_000, "invalid_json"),
            (b"\x00\x01", "invalid_message"),
        ):
            t.socket.send(raw)
            assert t.get()["code"] == code
        t.send("input.text")
        assert t.get()["param"] == "text"
        t.send("input.text", text="x" * 20_001)
        assert t.get()["code"] == "text_too_long"


def test_messages_during_a_configuration_are_read_up_to_a_limit_and_kept_in_order() -> None:
    texts = [str(i) for i in range(MAX_AHEAD_BYTES // 1024 + 1)]

    class Client:
        receive = AsyncMock(
            side_effect=[{"type": "websocket.receive", "text": text} for text in texts]
        )

    async def main() -> None:
        reader = MessageReader(cast(WebSocket, Client()))
        for _ in texts[1:]:
            await reader.ahead()
        more = asyncio.create_task(reader.ahead())
        await asyncio.sleep(0)
        assert not more.done()
        more.cancel()
        assert [(await reader.next())["text"] for _ in texts] == texts

    asyncio.run(main())


def test_the_session_must_be_configured_first(live: Live) -> None:
    with talk(live, configure=False) as t:
        t.send("input.text", text="Hello.")
        code, events = t.close_code()
        assert (code, events[-1]["code"]) == (1008, "no_config")


def test_a_message_that_is_too_large_ends_the_session(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="x" * 140_000)
        code, events = t.close_code()
        assert (code, events[-1]["code"]) == (1009, "message_too_large")
    with talk(live, configure=False) as t:
        with suppress(ConnectionClosed):  # the server may hang up before all of it is sent
            t.send("session.config", ref_audio="A" * (5 << 20))
        assert t.close_code()[0] in (
            1009,
            None,
        )  # None: what is not read resets the connection, with the code on its way


def test_the_size_of_a_message_is_checked_whoever_received_it() -> None:
    """uvicorn closes the connection before that, but not the one that Ray starts in a replica."""
    text = json.dumps({"type": "session.config", "ref_audio": "A" * (4 << 20)})
    with pytest.raises(CloseSession) as e:
        parse({"text": text})
    assert e.value.code == 1009
    assert e.value.error is not None
    assert e.value.error.code == "message_too_large"


def test_a_flood_of_mistakes_ends_the_session_and_disturbs_nobody(live: Live) -> None:
    with talk(live) as t:
        try:
            for _ in range(200):
                t.socket.send("{")
        except ConnectionClosed:
            pass
        code, _ = t.close_code()
        assert code == 1008
    assert live.speech(input="Hello.").status_code == 200


def test_a_flood_of_letters_is_only_text(live: Live) -> None:
    """It ends when another client, who asked in the middle of it, was answered."""
    with talk(live) as t, ThreadPoolExecutor(1) as pool:
        end, aside = time.monotonic() + STUCK_S, None
        for i in count(1):
            t.send("input.text", text="x")
            if i % MOST_LETTERS == 0:
                t.send("response.cancel")  # what follows is another utterance
            if i == 1000:
                aside = pool.submit(live.http.get, "/health")
            if i > 3000 and aside.done():
                break
            assert time.monotonic() < end
        t.send("response.cancel")
        t.until("response.cancelled")
        assert aside.result().status_code == 200


def test_a_failure_in_the_engine_ends_the_utterance_not_the_session(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text=f"Good one. {BROKEN}. And ")
        events, _ = t.until("error")
        assert events[-1]["code"] == "engine_error"
        assert events[-1]["action"] == "discard"
        t.send("input.text", text="Not spoken any more.")
        t.send("input.done")
        assert t.until("session.done")[0][-1]["finish_reason"] == "error"
        assert t.say("Hello.")[0][-1]["type"] == "session.done"
    assert live.idle()


def test_too_many_utterances_ahead_are_refused(live: Live) -> None:
    with held(live, steps=[1]), talk(live, **LONG) as t:
        for _ in range(10):
            t.send("input.text", text="A long sentence.")
            t.send("input.done")
        events, _ = t.until("error")
        assert events[-1]["code"] == "too_many_utterances"
    assert live.idle()


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a key and tight limits."""
    folder = tmp_path_factory.mktemp("strict")
    settings = {"ws_max_sessions": 2, "max_buffered_mb": 0.002, "send_buffer": 1 << 14}
    with serving(folder, api_key=("secret",), **settings) as live:
        yield live


@pytest.fixture
def strict(strict_server: Live) -> Live:
    """A server once it has let go of the sessions of the test before: it takes two at once."""
    assert until(lambda: not strict_server.server.metrics.sessions)
    return strict_server


KEY = {"Authorization": "Bearer secret"}


def test_a_client_that_sends_no_configuration_is_hung_up_on(
    strict: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ws_module, "CONFIG_SECONDS", 0.3)
    with talk(strict, configure=False, headers=KEY) as t:
        code, events = t.close_code()
        assert (code, events[-1]["code"]) == (1008, "config_timeout")


@pytest.mark.parametrize("left_open", ["", "Once upon a time there", f"Good one. {BROKEN}. And "])
def test_a_silent_client_is_hung_up_on(live: Live, idle_clock: IdleClock, left_open: str) -> None:
    """Also one that leaves an utterance open, and one whose text failed and was never completed."""
    with talk(live) as t:
        if left_open:
            t.send("input.text", text=left_open, sequence=1)
            t.until("input.ack")
        if "breaks" in left_open:
            assert t.until("error")[0][-1]["code"] == "engine_error"
        idle_clock.passes = True
        code, events = t.close_code()
        assert (code, events[-1]["code"]) == (1008, "idle_timeout")


def test_a_configuration_that_took_long_is_no_silence_of_the_client(
    live: Live, idle_clock: IdleClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that waits until the model is loaded again."""
    plan = live.server.planner.live

    async def slow(*given: Any) -> SpeechPlan:
        idle_clock.now += 1000
        return await plan(*given)

    monkeypatch.setattr(live.server.planner, "live", slow)
    with talk(live) as t:
        assert t.say("Hello.")[0][-1]["type"] == "session.done"


def test_audio_that_is_dropped_while_a_frame_is_being_sent_is_counted_once() -> None:
    class Client:
        async def send_bytes(self, data: bytes) -> None:
            out.drop_audio()

    out = MessageSender(cast(WebSocket, Client()), max_bytes=100)
    out.audio(b"first")
    out.audio(b"second")
    asyncio.run(out.flush())
    assert out.size == 0


def test_the_key_is_asked_for_at_the_handshake(strict: Live) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as e, talk(strict, headers=headers):
            pass
        assert e.value.response.status_code == 401
    with talk(strict, headers=KEY) as t:
        assert t.say("Hello.")[0][-1]["type"] == "session.done"


def test_another_sites_page_may_not_open_a_session(strict: Live) -> None:
    with (
        pytest.raises(InvalidStatus) as e,
        talk(strict, headers={**KEY, "Origin": "https://evil.example"}),
    ):
        pass
    assert e.value.response.status_code == 403
    own = strict.url
    with talk(strict, headers={**KEY, "Origin": own}) as t:
        assert t.say("Hello.")[0][-1]["type"] == "session.done"


def test_more_sessions_than_allowed_are_refused_with_retry_after(strict: Live) -> None:
    with talk(strict, headers=KEY), talk(strict, headers=KEY):
        with pytest.raises(InvalidStatus) as e, talk(strict, headers=KEY):
            pass
        assert e.value.response.status_code == 503
        assert int(e.value.response.headers["Retry-After"]) > 0


def test_a_client_that_does_not_read_is_cut_off(
    strict: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Audio beyond what sockets hold and the server buffers. It reads again once it has been cut off."""
    monkeypatch.setattr(sessions, "FLUSH_SECONDS", STUCK_S)
    stopped = strict.tts.engine.stats.cancelled
    settings = {"response_format": "wav", "stream_audio": True, "sample_rate": 48000, "speed": 0.25}
    with talk(
        strict, headers=KEY, receive_buffer=4096, **settings, min_frames=900, max_frames=900
    ) as t:
        t.send("input.text", text="A long sentence. " * 8)
        t.send("input.done")
        assert until(lambda: strict.tts.engine.stats.cancelled > stopped)
        code, events = t.close_code()
    assert code == 1008
    assert events[-1]["code"] == "slow_client"
    assert strict.idle()


def test_a_websocket_elsewhere_is_a_404_that_says_where_it_is(live: Live) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(live.url.replace("http", "ws") + "/v1/elsewhere"),
    ):
        pass
    response = refused.value.response
    assert response.status_code == 404
    assert b"/v1/audio/speech/stream" in response.body
