"""ElevenLabs' stream-input and multi-stream-input: flushes, schedules, contexts, mistakes, limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from stentor.server import sessions
from stentor.server.doors.elevenlabs.contexts import SDK_HEADER, Schedule
from stentor.server.limits import LIMITS
from tests.helpers.door_talk import Message, audio_of, json_talk
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, held, pcm, serving
from tests.helpers.ws_talk import IdleClock

ONE = "/v1/text-to-speech/default/stream-input?output_format=pcm_24000&seed=5"
MULTI = "/v1/text-to-speech/default/multi-stream-input?output_format=pcm_24000&seed=5"
TEXT = "Good morning. How are you?"


def final(message: Message) -> object:
    return message.get("isFinal")


def aligned(message: Message) -> object:
    return message.get("alignment")


def written(messages: list[Message]) -> str:
    return "".join(c for m in messages if m.get("alignment") for c in m["alignment"]["chars"])


def of(messages: list[Message], context: str) -> list[Message]:
    return [m for m in messages if m["contextId"] == context]


# -- one text --


def test_text_is_spoken_as_over_our_own_socket(live: Live) -> None:
    ours = live.speech(
        input=TEXT, seed=5, response_format="pcm", sample_rate=24000, guard=False, stream=False
    )
    with json_talk(live, ONE) as t:
        t.send(
            text=" ",
            voice_settings={"stability": 0.5},
            generation_config={"chunk_length_schedule": [500]},
        )
        t.send(text=TEXT + " ")
        t.send(text="")
        code, messages = t.close_code()
    assert code == 1000
    assert written(messages) == TEXT
    assert messages[-1] == {
        "audio": None,
        "isFinal": True,
        "ignored": [{"param": "voice_settings.stability"}],
    }
    spoken = pcm(audio_of(messages, "audio"))
    assert len(spoken) == pytest.approx(len(pcm(ours.content)), abs=200)


def test_the_first_sentence_is_spoken_while_the_second_is_written(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(text="Good morning. How ")
        first = t.until(aligned)
        assert written(first) == "Good morning."
        t.send(text="are you? ")
        t.send(text="")
        _, rest = t.close_code()
    assert written(rest) == " How are you?"


def test_a_flush_speaks_what_is_there_and_the_text_goes_on(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(text="No mark at the end ", flush=True)
        assert written(t.until(aligned)) == "No mark at the end"
        t.send(text="", flush=True)  # says nothing new
        t.send(text="of it ", flush=True)
        assert written(t.until(aligned)) == " of it"
        t.send(text="")
        assert t.close_code()[0] == 1000


def test_a_schedule_holds_text_until_there_is_enough(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(text=" ", generation_config={"chunk_length_schedule": [60, 500]})
        t.send(text="One is here. Two is here. ")
        t.send(text="Three is here. Four is here. And then some more. ")
        first = written(t.until(aligned))
        assert first.startswith("One is here. Two is here. Three")
        t.send(text="Five is here. ")
        t.send(text="Six is here. ", flush=True)
        t.send(text="")
        _, rest = t.close_code()
    assert (
        first + written(rest)
        == "One is here. Two is here. Three is here. Four is here. And then some more. Five is here. Six is here."
    )


def test_a_schedule_counts_characters_and_a_trigger_needs_fewer() -> None:
    schedule = Schedule([60, 20])
    assert schedule.write("x" * 59, trigger=False) == ""
    assert len(schedule.write("x", trigger=False)) == 60
    assert schedule.write("x" * 19, trigger=False) == ""
    assert schedule.size == 19
    assert len(schedule.write("x", trigger=True)) == 20
    assert schedule.take() == ""
    triggered = Schedule([120])
    assert triggered.write("x" * 49, trigger=True) == ""
    assert len(triggered.write("x", trigger=True)) == 50
    assert Schedule(None).write("a", trigger=False) == "a"


def test_in_auto_mode_each_message_is_spoken_at_once(live: Live) -> None:
    with json_talk(live, ONE + "&auto_mode=true") as t:
        t.send(text="No mark at the end ", generation_config={"chunk_length_schedule": [500]})
        assert written(t.until(aligned)) == "No mark at the end"
        t.send(text="")
        assert t.close_code()[0] == 1000


def test_times_count_from_the_end_of_the_characters_before(live: Live) -> None:
    with json_talk(live, ONE) as t:
        for word in ("One is here. ", "Two is here. ", "Three is here."):
            t.send(text=word, flush=True)
        t.send(text="")
        _, messages = t.close_code()
    total = 0
    for alignment in (m["alignment"] for m in messages if m.get("alignment")):
        assert alignment["charStartTimesMs"][0] == 0
        total += alignment["charStartTimesMs"][-1] + alignment["charDurationsMs"][-1]
    seconds = len(audio_of(messages, "audio")) / 2 / 24000
    assert total == pytest.approx(1000 * seconds, abs=30)


def test_what_later_messages_may_not_set_is_named(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(text="Hello. ", xi_api_key="not read here")
        t.send(text="You. ", voice_settings={"speed": 2.0}, pronunciation_dictionary_locators=[])
        t.send(text="")
        _, messages = t.close_code()
    assert [i["param"] for i in messages[-1]["ignored"]] == [
        "pronunciation_dictionary_locators",
        "voice_settings",
    ]


@pytest.mark.parametrize(
    "query", ["&output_format=x", "&model_id=x", "&seed=x", "&apply_text_normalization=x"]
)
def test_a_wrong_query_ends_the_socket_with_its_reason(live: Live, query: str) -> None:
    path = "/v1/text-to-speech/default/stream-input?" + query
    with json_talk(live, path) as t:
        t.send(text="Hello. ")
        code, messages = t.close_code()
    assert code == 1008
    assert query.strip("&").partition("=")[0] in messages[-1]["message"]
    assert live.idle()


def test_an_unknown_voice_ends_the_socket(live: Live) -> None:
    with json_talk(live, ONE.replace("default", "nobody")) as t:
        t.send(text="Hello. ")
        code, (message,) = t.close_code()
    assert (code, message["error"], message["code"]) == (1008, "voice_not_found", 1008)


HOSTILE = [
    ("{", "invalid_json"),
    ("[]", None),
    ("null", None),
    ("[" * 90_000, "invalid_json"),
    ('{"text": ' + "[" * 900 + "]" * 900 + "}", None),
    (b"\x00\x01", "invalid_message"),
    ('{"text": "Hi.", "context_id": 5}', None),
    ('{"text": "Hi.", "context_id": "%s"}' % ("x" * 501), None),
    ('{"text": "Hi.", "generation_config": {"chunk_length_schedule": []}}', None),
    ('{"text": "Hi.", "generation_config": {"chunk_length_schedule": [1e999]}}', None),
    ('{"text": "Hi.", "voice_settings": {"speed": "fast"}}', None),
]


@pytest.mark.parametrize("path", [ONE, MULTI])
def test_mistakes_are_refused_and_the_socket_goes_on(live: Live, path: str) -> None:
    with json_talk(live, path) as t:
        for raw, code in HOSTILE:
            t.socket.send(raw)
            told = t.get()
            assert told["message"], raw
            assert code is None or told["error"] == code
        t.send(text="Hello. ", flush=True)
        assert written(t.until(aligned)) == "Hello."


@pytest.mark.parametrize("path", [ONE, MULTI])
def test_a_message_or_a_text_that_is_too_long(live: Live, path: str) -> None:
    with json_talk(live, path) as t:
        t.send(text="x" * 20_001)
        assert t.get()["error"] == "text_too_long"
        t.send(text="x" * 140_000)
        code, messages = t.close_code()
        assert (code, messages[-1]["error"]) == (1009, "message_too_large")
    assert live.idle()


def test_a_flood_of_mistakes_ends_the_socket(live: Live) -> None:
    with json_talk(live, ONE) as t:
        for _ in range(LIMITS.ws_errors + 1):
            t.socket.send("{")
        code, messages = t.close_code()
    assert (code, messages[-1]["error"]) == (1008, "too_many_errors")


def test_text_after_the_end_is_refused(live: Live) -> None:
    with json_talk(live, ONE + "&max_frames=16") as t:
        t.send(text="A long text. " * 30)
        t.send(text="")
        t.send(text="more ")
        told = t.until(lambda m: m.get("error"))[-1]
        assert told["error"] == "text_ended"


# -- contexts --


def test_contexts_are_spoken_side_by_side_and_end_when_they_are_closed(live: Live) -> None:
    with json_talk(live, MULTI) as t:
        t.send(text=" ", context_id="a")
        t.send(text=" ", context_id="b")
        t.send(text="Good morning. ", context_id="a")
        t.send(text="How are you? ", context_id="b", flush=True)
        t.send(text="", context_id="a", flush=True)
        t.send(context_id="a", close_context=True)
        t.send(context_id="b", close_context=True)
        messages = t.until(final)
        messages += t.until(final)
        assert written(of(messages, "a")) == "Good morning."
        assert written(of(messages, "b")) == "How are you?"
        assert audio_of(of(messages, "a"), "audio")
        t.send(text="Again. ", context_id="a", flush=True)  # its name may begin another
        t.send(context_id="a", close_context=True)
        assert written(t.until(final)) == "Again."
        t.send(close_socket=True)
        assert t.close_code()[0] == 1000
    assert live.idle()


def test_a_text_without_a_context_has_one_and_an_empty_one_begins_none(live: Live) -> None:
    with json_talk(live, MULTI) as t:
        t.send(text="")
        t.send(text="", context_id="a")
        t.send(context_id="a", close_context=True)
        t.send(text="Hello. ", flush=True)
        assert {m["contextId"] for m in t.until(aligned)} == {"default"}
        t.send(close_socket=True)
        code, messages = t.close_code()
        assert (code, [m["contextId"] for m in messages if final(m)]) == (1000, ["default"])


def test_a_closed_context_takes_no_more(live: Live) -> None:
    with json_talk(live, MULTI) as t:
        t.send(text="A long text. " * 30, context_id="a", close_context=True)
        t.send(text="more ", context_id="a")
        told = t.until(lambda m: m.get("error"))[-1]
        assert (told["error"], told["contextId"]) == ("context_closed", "a")


def test_a_wrong_context_does_not_disturb_another(live: Live) -> None:
    with json_talk(live, MULTI) as t:
        t.send(text=" ", context_id="a")
        t.send(text=" ", context_id="b", voice_settings={"speed": 99})
        told = t.get()
        assert told["contextId"] == "b"
        assert "speed" in told["message"] or "voice_settings" in told["message"]
        t.send(text="Hello. ", context_id="a", flush=True)
        assert {m["contextId"] for m in t.until(aligned)} == {"a"}


def test_nested_fields_that_are_not_known_are_named(live: Live) -> None:
    nested: list[Any] = []
    for _ in range(300):
        nested = [nested]
    with json_talk(live, MULTI) as t:
        for name in "ab":
            t.send(
                text="Hello. ",
                context_id=name,
                close_context=True,
                pronunciation_dictionary_locators=nested,
            )
            ignored = t.until(final)[-1]["ignored"]
            assert ignored == [{"param": "pronunciation_dictionary_locators"}]


def test_open_contexts_are_limited(live: Live) -> None:
    with json_talk(live, MULTI) as t:
        for i in range(LIMITS.contexts + 1):
            t.send(text=" ", context_id=str(i))
        told = t.get()
        assert (told["error"], told["contextId"]) == ("too_many_contexts", str(LIMITS.contexts))
        t.send(context_id="0", close_context=True)
        t.until(final)
        t.send(text="Hello. ", context_id="last", flush=True)
        t.until(aligned)


CLOSES = {
    "as Pipecat does, which flushes no sentence": ("", ({"text": "A long text. " * 30},)),
    "as LiveKit does, which flushes each sentence in auto mode": (
        "&auto_mode=true",
        ({"text": "A long text. " * 30, "flush": True},),
    ),
    "when the rest was flushed and closed": (
        "",
        ({"text": "A long text. " * 30}, {"flush": True}, {"close_context": True}),
    ),
}


@pytest.mark.parametrize("close", CLOSES)
def test_an_interrupted_context_frees_its_places_at_once(live: Live, close: str) -> None:
    """The engine stands with most of the text unspoken when the client closes the context."""
    query, messages = CLOSES[close]
    aborted = live.sum_of("speech_stream_aborted_total", 'reason="cancelled"')
    with held(live, frames=[5]) as hold, json_talk(live, MULTI + query) as t:
        for message in messages:
            t.send(context_id="a", **message)
        hold.wait()
        t.send(context_id="a", close_context=True)
        hold.go()
        assert t.until(final)[-1]["interrupted"] is True
        assert live.idle()
        assert live.sum_of("speech_stream_aborted_total", 'reason="cancelled"') == aborted + 1
        t.send(text="Fine. ", context_id="b", flush=True)
        assert {m["contextId"] for m in t.until(aligned)} == {"b"}


@pytest.mark.parametrize("query", ["", "&auto_mode=true"])
def test_a_text_that_was_flushed_is_spoken_when_its_context_is_closed(
    live: Live, query: str
) -> None:
    with json_talk(live, MULTI + query) as t:
        t.send(text="Good morning. ", context_id="a")
        t.send(text="", context_id="a", flush=True)
        t.send(context_id="a", close_context=True)
        messages = t.until(final)
    assert written(messages) == "Good morning."
    assert "interrupted" not in messages[-1]


def test_numbers_that_elevenlabs_sdk_has_broken_are_joined(live: Live) -> None:
    pieces = (
        "Pi is 3. ",
        "14 ",
        "at 10: ",
        "30 ",
        "for 1, ",
        "000 ",
        "in 1999. ",
        " ",
        "12 came. ",
    )
    with json_talk(live, ONE, {SDK_HEADER: "elevenlabs"}) as t:
        for text in pieces:
            t.send(text=text, try_trigger_generation=True)
        t.send(text="")
        _, messages = t.close_code()
    assert written(messages) == "Pi is 3.14 at 10:30 for 1,000 in 1999.  12 came."


def test_text_of_other_clients_is_taken_as_it_is(live: Live) -> None:
    with json_talk(live, ONE) as t:
        for text in ("It was 1999. ", "12 came. ", ""):
            t.send(text=text)
        _, messages = t.close_code()
    assert written(messages) == "It was 1999. 12 came."


def test_times_of_a_client_that_asks_for_sync_count_from_the_beginning(live: Live) -> None:
    with json_talk(live, MULTI + "&sync_alignment=true") as t:
        for word in ("One is here. ", "Two is here. ", "Three is here."):
            t.send(text=word, context_id="a", flush=True)
        t.send(text="", context_id="a", flush=True)
        t.send(context_id="a", close_context=True)
        messages = t.until(final)
    starts = [s for m in messages if m.get("alignment") for s in m["alignment"]["charStartTimesMs"]]
    assert starts == sorted(starts)
    seconds = len(audio_of(messages, "audio")) / 2 / 24000
    assert 1000 * seconds * 0.9 < starts[-1] < 1000 * seconds


def test_a_client_that_leaves_frees_its_slots(live: Live) -> None:
    aborted = live.sum_of("speech_stream_aborted_total")
    with json_talk(live, MULTI) as t:
        for name in "ab":
            t.send(text="A long text. " * 200, context_id=name, flush=True)
        t.get()
    assert until(lambda: live.sum_of("speech_stream_aborted_total") == aborted + 2)
    assert live.idle()


# -- limits --


@pytest.mark.parametrize("path", [ONE, MULTI])
def test_silence_ends_the_socket(live: Live, idle_clock: IdleClock, path: str) -> None:
    with json_talk(live, path) as t:
        t.send(text="Hello. ", flush=True)
        t.until(aligned)
        idle_clock.passes = True
        code, messages = t.close_code()
    assert (code, messages[-1]["error"]) == (1008, "idle_timeout")
    assert live.idle()


def test_a_client_may_ask_for_more_patience_up_to_a_limit(live: Live) -> None:
    for asked, seconds in (
        ("60", 60),
        ("99999", LIMITS.client_idle_seconds),
        ("x", 30),
        ("0", 30),
        ("5", 5),
    ):
        assert patience(live, f"&inactivity_timeout={asked}") == seconds


def patience(live: Live, query: str) -> float:
    """Idle seconds of the session of this query."""
    with json_talk(live, ONE + query) as t:
        assert until(lambda: live.server.metrics.sessions)
        (session,) = live.server.metrics.sessions
        found: float = session.patience[0]  # type: ignore[attr-defined]
        t.socket.close()
    assert until(lambda: not live.server.metrics.sessions)
    return found


@pytest.fixture
def idle_clock(live: Live, monkeypatch: pytest.MonkeyPatch) -> IdleClock:
    """The clock of sessions that begin now. They look at it every 0.3 s and are closed after as long."""
    clock = IdleClock()
    monkeypatch.setattr(sessions, "time", clock)
    monkeypatch.setattr(live.server, "config", replace(live.server.config, ws_idle_seconds=0.3))
    return clock


KEY = {"xi-api-key": "of-a-client"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("strict") / "voices"
    with serving(
        folder,
        api_key=("of-a-client",),
        ws_max_sessions=2,
        max_buffered_mb=0.2,
        request_timeout=STUCK_S,
        send_buffer=4096,
    ) as live:
        yield live


def refused(live: Live, path: str, headers: dict[str, str]) -> int:
    with pytest.raises(InvalidStatus) as e, json_talk(live, path, headers):
        pass
    return e.value.response.status_code


@pytest.mark.parametrize("path", [ONE, MULTI])
def test_keys_origins_and_room_are_asked_for_at_the_handshake(strict: Live, path: str) -> None:
    assert refused(strict, path, {}) == 401
    assert refused(strict, path, {"xi-api-key": "wrong"}) == 401
    assert refused(strict, path, {**KEY, "Origin": "https://evil.example"}) == 403
    with json_talk(strict, path, KEY), json_talk(strict, path, KEY):
        assert refused(strict, path, KEY) == 503
    assert until(lambda: not strict.server.metrics.sessions)
    with json_talk(strict, path, {"Authorization": "Bearer of-a-client"}) as t:
        t.send(text="Hello. ", flush=True)
        t.until(aligned)


def test_a_client_that_does_not_read_is_cut_off(
    strict: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FLUSH_SECONDS", STUCK_S)
    with json_talk(strict, MULTI.replace("24000", "48000"), KEY, receive_buffer=4096) as t:
        t.send(
            text="A long sentence. " * 200,
            flush=True,
            voice_settings={"speed": 0.25},
            min_frames=60,
            max_frames=60,
        )
        assert until(lambda: strict.sum_of("speech_stream_aborted_total", 'reason="slow_client"'))
        code, messages = t.close_code()
    assert (code, messages[-1]["error"]) == (1008, "slow_client")
    assert strict.idle()


def test_a_server_that_drains_lets_a_text_end(tmp_path: Path) -> None:
    with serving(tmp_path / "voices") as live:
        with json_talk(live, MULTI) as idle, json_talk(live, MULTI) as busy:
            busy.send(text="A long sentence. " * 20, flush=True, close_context=True)
            busy.get()
            live.drain()
            assert idle.close_code()[0] == 1001
            code, messages = busy.close_code()
        assert code == 1001
        assert any(final(m) for m in messages)


def test_its_requests_are_counted_and_found(live: Live) -> None:
    before = live.sum_of("requests_success_total")
    with json_talk(live, ONE, {"X-Request-Id": "one-socket"}) as t:
        t.send(text="Hello. ")
        t.send(text="")
        assert t.close_code()[0] == 1000
    assert live.sum_of("requests_success_total") == before + 1
    assert live.http.get("/v1/audio/speech/one-socket-0").json()["status"] == "completed"


def test_audio_is_the_same_however_its_text_arrives(live: Live) -> None:
    def heard(*texts: str) -> np.ndarray:
        with json_talk(live, ONE) as t:
            for text in texts:
                t.send(text=text)
            t.send(text="")
            return pcm(audio_of(t.close_code()[1], "audio"))

    whole, parts = heard("One is here. Two is here. "), heard("One is ", "here. Two", " is here. ")
    assert len(whole) == len(parts) > 0
    assert np.abs(whole - parts).max() < 0.01
