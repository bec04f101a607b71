"""OpenAI's Realtime API: what its SDK does is in tests/server/clients."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from stentor.server import sessions
from stentor.server.doors.realtime.response import Given, Settings
from stentor.server.limits import LIMITS
from stentor.server.schemas import Ignored
from tests.helpers.door_talk import JsonTalk, Message, audio_of, json_talk
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, pcm, serving, toy
from tests.helpers.ws_talk import IdleClock

PATH = "/v1/realtime?model=gpt-realtime"
TEXT = "Good morning. How are you?"
BETA = {"OpenAI-Beta": "realtime=v1"}
PCM_600 = {"output": {"format": {"type": "audio/pcm", "rate": 8000}}}
LONG = "A long text. " * 200


def ended(message: Message) -> bool:
    return message["type"] in ("response.done", "error")


def message(text: str, **more: Any) -> Message:
    return {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
        **more,
    }


@contextmanager
def realtime(live: Live, headers: dict[str, str] | None = None, **more: Any) -> Iterator[JsonTalk]:
    with json_talk(live, PATH, headers, **more) as t:
        assert t.get()["type"] == "session.created"
        yield t


def create(t: JsonTalk, text: str, **more: Any) -> str:
    """Add an item. Returns its id."""
    t.send(type="conversation.item.create", item=message(text, **more))
    added = t.until(
        lambda m: m["type"] in ("conversation.item.done", "conversation.item.created", "error")
    )[-1]
    assert added["type"] != "error", added
    id: str = added["item"]["id"]
    return id


def speak(t: JsonTalk, **response: Any) -> list[Message]:
    t.send(type="response.create", **({"response": response} if response else {}))
    return t.until(ended)


def transcript(messages: list[Message]) -> str:
    return "".join(m["delta"] for m in messages if "transcript.delta" in m["type"])


def audio(messages: list[Message]) -> bytes:
    return audio_of([m for m in messages if m["type"].endswith("audio.delta")], "delta")


def error_of(t: JsonTalk, **event: Any) -> Message:
    t.send(**event)
    told = t.get()
    assert told["type"] == "error"
    error: Message = told["error"]
    return error


# -- speech --


def test_a_text_is_spoken_as_over_our_own_api(live: Live) -> None:
    ours = live.speech(
        input=TEXT, response_format="pcm", sample_rate=24000, speed=1.5, stream=False, voice="high"
    )
    with realtime(live) as t:
        output = {"voice": "high", "speed": 1.5, "format": {"type": "audio/pcm", "rate": 24000}}
        t.send(type="session.update", session={"type": "realtime", "audio": {"output": output}})
        assert t.get()["session"]["audio"]["output"] == output
        create(t, TEXT)
        messages = speak(t)
    assert len(audio(messages)) == pytest.approx(len(ours.content), abs=400)
    response = messages[-1]["response"]
    assert (response["status"], response["output"][0]["content"][0]["transcript"]) == (
        "completed",
        TEXT,
    )
    assert (
        response["usage"]["total_tokens"]
        == response["usage"]["input_tokens"] + response["usage"]["output_tokens"]
        > 0
    )
    assert (
        live.http.get(f"/v1/audio/speech/{response['request_id']}").json()["status"] == "completed"
    )
    assert len({m["event_id"] for m in messages}) == len(messages)


def test_a_response_speaks_what_has_not_been_spoken(live: Live) -> None:
    with realtime(live) as t:
        create(t, "One.")
        create(t, "Two.", role="assistant", content=[{"type": "output_text", "text": "Two."}])
        assert transcript(speak(t)) == "One.\nTwo."
        create(t, "Three.")
        assert transcript(speak(t)) == "Three."
        assert speak(t)[-1]["error"]["code"] == "no_text"


def test_a_response_may_have_input_and_settings_of_its_own(live: Live) -> None:
    with realtime(live) as t:
        item = create(t, "One.")
        messages = speak(
            t,
            conversation="none",
            metadata={"for": "me"},
            input=[{"type": "item_reference", "id": item}, message("Two.")],
            audio={"output": {"voice": "low", "format": {"type": "audio/pcmu"}}},
        )
        response = messages[-1]["response"]
        assert transcript(messages) == "One.\nTwo."
        assert (response["conversation_id"], response["metadata"]) == (None, {"for": "me"})
        assert response["audio"]["output"] == {"voice": "low", "format": {"type": "audio/pcmu"}}
        assert not [m for m in messages if m["type"].startswith("conversation.")]
        assert transcript(speak(t)) == "One."  # it has not been spoken in the conversation


@pytest.mark.parametrize(
    ("format", "beta", "law"),
    [("audio/pcmu", "g711_ulaw", "ulaw"), ("audio/pcma", "g711_alaw", "alaw")],
)
def test_g711_is_that_of_our_own_api(live: Live, format: str, beta: str, law: str) -> None:
    size = len(live.speech(input=TEXT, response_format=law, stream=False).content)
    with realtime(live) as t:
        messages = speak(t, input=[message(TEXT)], audio={"output": {"format": {"type": format}}})
        assert len(audio(messages)) == pytest.approx(size, abs=100)
    with realtime(live, BETA) as t:
        t.send(type="session.update", session={"output_audio_format": beta, "voice": "low"})
        assert t.get()["session"]["output_audio_format"] == beta
        create(t, TEXT)
        messages = speak(t)
        assert len(audio(messages)) == pytest.approx(size, abs=100)
    assert "response.audio.delta" in {m["type"] for m in messages}


def test_events_have_the_names_of_the_beta_where_the_client_has(live: Live) -> None:
    with realtime(live, BETA) as t:
        create(t, TEXT)
        kinds = {m["type"] for m in speak(t)}
    assert kinds == {
        "response.created",
        "response.output_item.added",
        "conversation.item.created",
        "response.content_part.added",
        "response.audio_transcript.delta",
        "response.audio.delta",
        "response.audio.done",
        "response.audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    }


def test_what_means_nothing_here_is_named(live: Live) -> None:
    with realtime(live) as t:
        session = {
            "audio": {"input": {"format": {"type": "audio/pcm"}}},
            "truncation": "auto",
            "tools": [],
            "type": "realtime",
        }
        t.send(type="session.update", session=session)
        ignored = t.get()["session"]["ignored"]
        assert [i["param"] for i in ignored] == ["truncation", "audio.input"]
        messages = speak(
            t, input=[message("One.")], max_output_tokens="inf", instructions="Speak slowly."
        )
        assert [i["param"] for i in messages[-1]["response"]["ignored"]] == [
            "max_output_tokens",
            "instructions",
        ]


READ_ALOUD = "You are a text to speech assistant. Read the user's text aloud, word for word. " * 9


def test_a_prompt_for_an_assistant_shapes_no_voice() -> None:
    ignored = Ignored(strict=False)
    plain = Settings().updated(Given(), ignored)
    prompted = Settings().updated(Given(instructions=READ_ALOUD), ignored)
    assert prompted.body() == plain.body()  # of which every family's request is made
    assert ignored.as_json()["ignored"][0]["param"] == "instructions"
    assert Settings().updated(Given(instructions=""), Ignored(strict=True)).body() == plain.body()


@pytest.mark.parametrize("by", ["flag", "session"])
def test_instructions_shape_the_voice_where_a_flag_or_the_session_wants_it(by: str) -> None:
    started = Settings(apply_instructions=by == "flag")
    fields = Given(instructions="Softly.", apply_instructions=True if by == "session" else None)
    assert started.updated(fields, Ignored(strict=True)).body().instructions == "Softly."
    off = started.updated(Given(instructions="No.", apply_instructions=False), Ignored(False))
    assert off.body().instructions is None


def test_a_session_says_whether_it_uses_instructions(live: Live, tmp_path: Path) -> None:
    with realtime(live) as t:
        t.send(type="session.update", session={"instructions": READ_ALOUD})
        session = t.get()["session"]
        assert (session["instructions"], session["apply_instructions"]) == (READ_ALOUD, False)
        messages = speak(t, input=[message("One.")], instructions=READ_ALOUD)
        assert messages[-1]["response"]["status"] == "completed"
    with serving(tmp_path / "voices", realtime_instructions=True) as other, realtime(other) as t:
        t.send(type="session.update", session={"instructions": READ_ALOUD})
        assert t.get()["error"]["param"] == "instructions"  # has more than 500 characters


# -- the conversation --


def test_items_are_kept_in_order_and_can_be_deleted(live: Live) -> None:
    with realtime(live) as t:
        create(t, "Two.", id="two")
        t.send(
            type="conversation.item.create", item=message("One.", id="one"), previous_item_id="root"
        )
        assert (
            t.until(lambda m: m["type"] == "conversation.item.done")[-1]["previous_item_id"] is None
        )
        t.send(
            type="conversation.item.create", item=message("And.", id="and"), previous_item_id="one"
        )
        assert (
            t.until(lambda m: m["type"] == "conversation.item.done")[-1]["previous_item_id"]
            == "one"
        )
        t.send(type="conversation.item.retrieve", item_id="one")
        assert t.get()["item"]["content"] == [{"type": "input_text", "text": "One."}]
        t.send(type="conversation.item.delete", item_id="and")
        event = t.get()
        assert (event["type"], event["item_id"]) == ("conversation.item.deleted", "and")
        assert transcript(speak(t)) == "One.\nTwo."


def test_the_oldest_items_are_forgotten(live: Live) -> None:
    with realtime(live) as t:
        for i in range(LIMITS.conversation_items + 1):
            create(t, "x", id=str(i))
        assert (
            error_of(t, type="conversation.item.retrieve", item_id="0")["code"] == "item_not_found"
        )
        t.send(type="conversation.item.retrieve", item_id="1")
        assert t.get()["item"]["id"] == "1"


def test_a_cancel_stops_speech_and_another_may_follow(live: Live) -> None:
    with realtime(live) as t:
        create(t, LONG)
        t.send(type="response.create")
        t.until(lambda m: m["type"] == "response.output_audio.delta")
        t.send(type="response.cancel")
        messages = t.until(ended)
        response = messages[-1]["response"]
        assert (response["status"], response["status_details"]["reason"]) == (
            "cancelled",
            "client_cancelled",
        )
        assert response["output"][0]["status"] == "incomplete"
        assert LONG.startswith(response["output"][0]["content"][0]["transcript"])
        assert error_of(t, type="response.cancel")["code"] == "response_cancel_not_active"
        create(t, "One.")
        assert transcript(speak(t)) == "One."
    assert live.idle()


def test_one_response_at_a_time(live: Live) -> None:
    with realtime(live) as t:
        create(t, LONG)
        t.send(type="response.create")
        t.until(lambda m: m["type"] == "response.output_audio.delta")
        t.send(type="response.create", response={"input": [message("One.")]})
        event = t.until(lambda m: m["type"] == "error")[-1]
        assert event["error"]["code"] == "conversation_already_has_active_response"
        t.send(type="response.cancel", response_id="another")
        assert (
            t.until(lambda m: m["type"] == "error")[-1]["error"]["code"]
            == "response_cancel_not_active"
        )
        t.send(type="response.cancel")
        assert t.until(ended)[-1]["response"]["status"] == "cancelled"


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """With an aligner of another package, for a language that ours does not know."""
    load = toy(languages=("german",))
    with serving(
        tmp_path_factory.mktemp("voices"), load, aligner="tests.helpers.aligners:even"
    ) as running:
        yield running


def test_truncation_keeps_the_words_that_were_heard(timed: Live) -> None:
    text = "One is here. Two is here. Three is here."
    with realtime(timed) as t:
        create(t, text)
        response = speak(t)[-1]["response"]
        item, transcripts = response["output"][0]["id"], []
        duration = timed.http.get(f"/v1/audio/speech/{response['request_id']}").json()["duration"]
        for ms in (int(1000 * duration), int(500 * duration), 0):
            t.send(
                type="conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=ms
            )
            event = t.get()
            assert (event["type"], event["audio_end_ms"]) == ("conversation.item.truncated", ms)
            transcripts.append(event["transcript"])
        assert transcripts[0] == text
        assert transcripts[1] in [text[: m.end()] for m in re.finditer(r"\S+", text)][2:6]
        assert transcripts[2] == ""
        t.send(type="conversation.item.retrieve", item_id=item)
        assert t.get()["item"]["content"] == []
        wrong = {"type": "conversation.item.truncate", "item_id": item, "content_index": 0}
        for more in (
            {"audio_end_ms": 10**9},
            {"audio_end_ms": -1},
            {"audio_end_ms": "1"},
            {"audio_end_ms": True},
            {},
        ):
            assert error_of(t, **wrong, **more)["param"] == "audio_end_ms"
        assert (
            error_of(t, **{**wrong, "content_index": 1, "audio_end_ms": 0})["param"]
            == "content_index"
        )
        user_item = create(t, "Mine.")
        assert (
            error_of(t, **{**wrong, "item_id": user_item, "audio_end_ms": 0})["param"] == "item_id"
        )


def test_speech_that_fails_ends_its_response_only(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(plan: object) -> None:
        raise TimeoutError

    with realtime(live) as t:
        create(t, "One.")
        with monkeypatch.context() as patch:
            patch.setattr(live.server.planner, "begun", broken)
            response = speak(t)[-1]["response"]
        assert (response["status"], response["status_details"]["error"]["code"]) == (
            "failed",
            "request_timeout",
        )
        create(t, "Two.")
        assert transcript(speak(t)) == "Two."


# -- what it does not do, and mistakes --


ELSEWHERE = [
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "output_audio_buffer.clear"},
    {"type": "session.update", "session": {"tools": [{"type": "function", "name": "f"}]}},
    {"type": "session.update", "session": {"output_modalities": ["text"]}},
    {"type": "response.create", "response": {"modalities": ["text"]}},
    {"type": "response.create", "response": {"tools": [{}]}},
    {"type": "conversation.item.create", "item": {"type": "function_call_output", "output": "x"}},
    {
        "type": "conversation.item.create",
        "item": {"role": "user", "content": [{"type": "input_audio", "audio": "A"}]},
    },
    {
        "type": "conversation.item.create",
        "item": {"role": "system", "content": [{"type": "input_text", "text": "x"}]},
    },
]


def test_other_uses_are_refused_by_their_event_and_the_session_goes_on(live: Live) -> None:
    with realtime(live) as t:
        for i, event in enumerate(ELSEWHERE):
            error = error_of(t, **event, event_id=f"mine-{i}")
            assert (error["code"], error["event_id"]) == ("unsupported", f"mine-{i}")
        create(t, "One.")
        assert transcript(speak(t)) == "One."


def test_a_microphone_that_streams_is_refused_each_time_and_ends_nothing(live: Live) -> None:
    with realtime(live) as t:
        for _ in range(2 * LIMITS.ws_errors):
            assert (
                error_of(t, type="input_audio_buffer.append", audio="A" * 1000)["code"]
                == "unsupported"
            )
        create(t, "One.")
        assert transcript(speak(t)) == "One."


WRONG = [
    ({"type": "session.update"}, "session"),
    ({"type": "session.update", "session": []}, "session"),
    ({"type": "session.update", "session": {"voice": "nobody"}}, "voice"),
    ({"type": "session.update", "session": {"speed": 9}}, "speed"),
    (
        {
            "type": "session.update",
            "session": {"audio": {"output": {"format": {"type": "audio/mp3"}}}},
        },
        "audio",
    ),
    ({"type": "session.update", "session": {"audio": 5}}, "audio"),
    (
        {
            "type": "session.update",
            "session": {"instructions": "x" * 501, "apply_instructions": True},
        },
        "instructions",
    ),
    ({"type": "conversation.item.create"}, "item"),
    ({"type": "conversation.item.create", "item": {"content": [5]}}, "content"),
    ({"type": "conversation.item.create", "item": {"id": "", "content": []}}, "id"),
    ({"type": "conversation.item.create", "item": message("x" * 20_001)}, "text"),
    (
        {"type": "conversation.item.create", "item": message("x"), "previous_item_id": "nobody"},
        "item_id",
    ),
    (
        {"type": "conversation.item.create", "item": message("x"), "previous_item_id": [1]},
        "item_id",
    ),
    ({"type": "conversation.item.truncate", "item_id": {"a": 1}}, "item_id"),
    ({"type": "conversation.item.delete"}, "item_id"),
    ({"type": "response.create", "response": []}, None),
    ({"type": "response.create", "response": {"input": 5}}, "input"),
    (
        {"type": "response.create", "response": {"input": [{"type": "item_reference", "id": "x"}]}},
        "response.input",
    ),
    ({"type": "response.create", "response": {"metadata": {"a": 5}}}, "metadata"),
    (
        {"type": "response.create", "response": {"metadata": {str(i): "" for i in range(17)}}},
        "metadata",
    ),
    ({"type": "response.create", "response": {"conversation": "other"}}, "conversation"),
    ({"type": "sing"}, "type"),
    ({"type": 5}, "type"),
    ({}, "type"),
]


@pytest.mark.parametrize(("event", "param"), WRONG, ids=str)
def test_a_wrong_event_is_refused_by_field_and_the_session_goes_on(
    live: Live, event: Message, param: str | None
) -> None:
    with realtime(live) as t:
        error = error_of(t, **event)
        assert param is None or error["param"] == param
        create(t, "One.")
        assert transcript(speak(t)) == "One."


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_message"),
        ("null", "invalid_message"),
        ("[" * 90_000, "invalid_json"),
        (b"\x00\x01", "invalid_message"),
        ('{"type": "\\ud800"}', "invalid_message"),
        (
            '{"type": "response.create", "response": {"metadata": '
            + '{"a":' * 900
            + "1"
            + "}" * 902,
            None,
        ),
        ('{"type": "session.update", "session": {"x": ' + "[" * 900 + "]" * 900 + "}}", None),
    ],
)
def test_a_hostile_frame_is_refused_and_the_session_goes_on(
    live: Live, raw: str | bytes, code: str | None
) -> None:
    with realtime(live) as t:
        t.socket.send(raw)
        event = t.get()
        assert event["type"] in ("error", "session.updated")
        assert code is None or event["error"]["code"] == code
        create(t, "One.")
        assert transcript(speak(t)) == "One."


def test_a_frame_that_is_too_large_and_a_flood_of_mistakes_end_the_session(live: Live) -> None:
    with realtime(live) as t:
        t.send(type="conversation.item.create", item=message("x" * 140_000))
        code, messages = t.close_code()
        assert (code, messages[-1]["error"]["code"]) == (1009, "message_too_large")
    with realtime(live) as t:
        for _ in range(LIMITS.ws_errors + 1):
            t.socket.send("{")
        code, messages = t.close_code()
        assert (code, messages[-1]["error"]["code"]) == (1008, "too_many_errors")


def test_an_unknown_model_ends_the_session_with_its_reason(live: Live) -> None:
    with json_talk(live, "/v1/realtime?model=another") as t:
        code, messages = t.close_code()
    assert (code, messages[-1]["error"]["code"]) == (1008, "model_not_found")


# -- limits --


def test_silence_ends_the_session(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = IdleClock()
    monkeypatch.setattr(sessions, "time", clock)
    monkeypatch.setattr(live.server, "config", replace(live.server.config, ws_idle_seconds=0.3))
    with realtime(live) as t:
        create(t, "One.")
        speak(t)
        clock.passes = True
        code, messages = t.close_code()
    assert (code, messages[-1]["error"]["code"]) == (1008, "idle_timeout")


def test_a_client_that_leaves_frees_its_slot(live: Live) -> None:
    with realtime(live) as t:
        create(t, LONG)
        t.send(type="response.create")
        t.until(lambda m: m["type"] == "response.output_audio.delta")
    assert until(lambda: not live.server.metrics.sessions)
    assert live.idle()


KEY = "of-a-client"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("strict") / "voices"
    limits = {
        "ws_max_sessions": 2,
        "max_buffered_mb": 0.2,
        "request_timeout": STUCK_S,
        "strict": True,
    }
    with serving(folder, api_key=(KEY,), send_buffer=4096, **limits) as live:
        yield live


def refused(
    live: Live, headers: dict[str, str] | None = None, subprotocols: list[Subprotocol] | None = None
) -> int:
    with pytest.raises(InvalidStatus) as e, realtime(live, headers, subprotocols=subprotocols):
        pass
    return e.value.response.status_code


def test_keys_origins_and_room_are_asked_for_at_the_handshake(strict: Live) -> None:
    bearer = {"Authorization": f"Bearer {KEY}"}
    assert refused(strict) == 401
    assert refused(strict, {"Authorization": "Bearer wrong"}) == 401
    assert refused(strict, subprotocols=[Subprotocol("openai-insecure-api-key.wrong")]) == 401
    assert refused(strict, {**bearer, "Origin": "https://evil.example"}) == 403
    with realtime(strict, bearer), realtime(strict, bearer):
        assert refused(strict, bearer) == 503
    assert until(lambda: not strict.server.metrics.sessions)
    browser = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]
    with realtime(strict, subprotocols=browser) as t:
        assert t.socket.subprotocol == "realtime"
        create(t, "One.")
        assert transcript(speak(t)) == "One."


def test_a_strict_server_refuses_what_means_nothing(strict: Live) -> None:
    with realtime(strict, {"Authorization": f"Bearer {KEY}"}) as t:
        assert (
            error_of(t, type="session.update", session={"truncation": "auto"})["param"]
            == "truncation"
        )


def test_a_client_that_does_not_read_is_cut_off(
    strict: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FLUSH_SECONDS", STUCK_S)
    with realtime(strict, {"Authorization": f"Bearer {KEY}"}, receive_buffer=4096) as t:
        output = {"format": {"type": "audio/pcm", "rate": 48000}, "speed": 0.25}
        t.send(type="session.update", session={"audio": {"output": output}})
        assert t.get()["type"] == "session.updated"
        t.send(type="response.create", response={"input": [message(LONG * 7)]})
        assert until(lambda: strict.sum_of("speech_stream_aborted_total", 'reason="slow_client"'))
        code, messages = t.close_code()
    assert (code, messages[-1]["error"]["code"]) == (1008, "slow_client")
    assert strict.idle()


def test_a_server_that_drains_lets_a_response_end(tmp_path: Path) -> None:
    with serving(tmp_path / "voices") as live:
        with realtime(live) as idle, realtime(live) as busy:
            create(busy, "A long sentence. " * 20)
            busy.send(type="response.create")
            busy.until(lambda m: m["type"] == "response.output_audio.delta")
            live.drain()
            assert idle.close_code()[0] == 1001
            code, messages = busy.close_code()
        assert code == 1001
        assert messages[-1]["response"]["status"] == "completed"


def test_audio_is_valid_pcm(live: Live) -> None:
    with realtime(live) as t:
        messages = speak(t, input=[message(TEXT)], audio=PCM_600)
    samples = pcm(audio(messages))
    assert np.abs(samples).max() > 0.01
    assert all(
        len(base64.b64decode(m["delta"])) % 2 == 0
        for m in messages
        if m["type"].endswith("audio.delta")
    )
