"""WS /v1/audio/speech/stream: text in as it is written, audio out, cancel, limits, errors."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from stentor.server.speech.live_text import TextFeed, played_characters
from stentor.server.speech.outcomes import SegmentTiming
from stentor.server.speech.sentences import Segment
from stentor.server.ws import session as ws_module
from tests.server.server_live import Live, decoded, pcm, serving, tone_wav
from tests.server.ws_talk import talk


def test_a_sentence_is_spoken_as_over_http(live: Live) -> None:
    with talk(live) as t:
        events, audio = t.say("Hello there, you.")
    kinds = [e["type"] for e in events]
    assert kinds == ["audio.start", "audio.done", "session.done"]
    whole = pcm(live.speech(input="Hello there, you.", seed=5, guard=False, response_format="pcm").content)
    spoken = pcm(audio)
    assert len(spoken) == len(whole)
    fade = 3  # samples: the end of a piece is faded, since another might have followed
    assert np.abs(spoken[:-fade] - whole[:-fade]).max() < 2.1 / 32767
    done = events[-1]
    assert done["total_sentences"] == 1
    assert done["usage"]["input_tokens"] == len("Hello there, you.")
    assert done["finish_reason"] in ("stop", "length")
    assert done["total_bytes"] == len(audio)
    found = live.http.get(f"/v1/audio/speech/{done['request_id']}").json()
    assert found["status"] == "completed"


def test_text_that_comes_by_letters_is_spoken_by_sentences_before_it_is_complete(live: Live) -> None:
    with talk(live) as t:
        for letter in "It costs 3.50 for Dr. Smith. And then ":
            t.send("input.text", text=letter)
        events, _ = t.until("audio.done")  # long before input.done
        assert events[0]["sentence_text"] == "It costs 3.50 for Dr. Smith."
        t.send("input.text", text="nothing more.")
        t.send("input.done")
        events, audio = t.until("session.done")
    assert events[0]["sentence_text"] == "And then nothing more."
    text = "It costs 3.50 for Dr. Smith. And then nothing more."
    assert text[events[0]["start_char"] : events[0]["end_char"]] == "And then nothing more."
    assert events[-1]["total_sentences"] == 2
    assert len(audio) > 0


def test_the_first_words_may_be_a_clause(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="If you would like to know, ask ")
        events, _ = t.until("audio.done")
        assert events[0]["sentence_text"] == "If you would like to know,"


def test_how_text_is_cut_does_not_depend_on_how_fast_it_is_spoken(live: Live) -> None:
    texts = ["One is here. Two is ", "here. Three."]
    heard = []
    for _ in range(2):
        with talk(live) as t:
            heard.append(t.say(*texts)[1])
    with talk(live) as t:
        t.send("input.text", text=texts[0])
        time.sleep(0.3)
        heard.append(t.say(texts[1])[1])
    assert heard[0] == heard[1] == heard[2]


def test_times_and_bytes_add_up_and_joints_have_no_clicks(live: Live) -> None:
    with talk(live, split_granularity="sentence") as t:
        events, audio = t.say("One is here. Two is here. Three is here.")
    done = [e for e in events if e["type"] == "audio.done"]
    assert len(done) == 3
    assert sum(e["total_bytes"] for e in done) == len(audio)
    assert events[-1]["duration"] == pytest.approx(len(audio) / 2 / 600, abs=0.01)
    samples = pcm(audio)
    for before, after in pairwise(done):
        assert after["start"] - before["end"] == pytest.approx(0.15, abs=0.01)
        assert np.abs(samples[round(before["end"] * 600) + 1 : round(after["start"] * 600) - 1]).max() == 0


def test_an_utterance_follows_the_other_in_one_session(live: Live) -> None:
    with talk(live) as t:
        first, a = t.say("Good morning.")
        second, b = t.say("Good morning.")
    assert (first[-1]["utterance_index"], second[-1]["utterance_index"]) == (0, 1)
    assert a == b  # the seed was given
    with talk(live) as t:
        t.send("input.text", text="One.")
        t.send("input.done")
        t.send("input.text", text="Two.")
        t.send("input.done")
        assert t.until("session.done")[0][-1]["utterance_index"] == 0
        assert t.until("session.done")[0][-1]["utterance_index"] == 1


def test_commit_speaks_what_is_there_and_the_utterance_goes_on(live: Live) -> None:
    with talk(live, split_granularity="none") as t:
        t.send("input.text", text="No mark at the end")
        t.send("input.commit")
        events, _ = t.until("audio.done")
        assert [e["type"] for e in events] == ["input.committed", "audio.start", "audio.done"]
        events, _ = t.say("of it")
        assert events[-1]["total_sentences"] == 2


def test_numbered_text_is_acknowledged(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="a", sequence=7)
        assert t.get() == {"type": "input.ack", "sequence": 7, "utterance_index": 0}


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac"])
def test_every_format_streams_as_one_file_per_utterance(live: Live, format: str) -> None:
    settings = {"response_format": format, "sample_rate": 24000}
    with talk(live, **settings) as t:
        events, audio = t.say("One is here. ", "Two is here.")
    assert events[-1]["sample_rate"] == 24000
    samples, rate = decoded(audio)
    assert len(samples) / rate == pytest.approx(events[-1]["duration"], abs=0.15)


def test_whole_files_per_sentence_and_base64_are_there_for_those_who_want_them(live: Live) -> None:
    with talk(live, response_format="wav", stream_audio=False, encoding="base64", split_granularity="sentence") as t:
        events, audio = t.say("One is here. Two is here.")
    assert not audio
    files = [base64.b64decode(e["audio"]) for e in events if e["type"] == "audio.chunk"]
    assert len(files) == 2
    for data in files:
        assert int.from_bytes(data[4:8], "little") == len(data) - 8


def test_speed_holds_over_websocket_too(live: Live) -> None:
    with talk(live) as t:
        plain = t.say("Hello there.")[1]
    with talk(live, speed=2.0) as t:
        events, fast = t.say("Hello there.")
    assert len(fast) == pytest.approx(len(plain) / 2, abs=8)
    assert events[-1]["duration"] == pytest.approx(len(fast) / 2 / 600, abs=0.01)


LONG = {"min_frames": 600, "max_frames": 600}


def test_cancel_stops_at_once_and_says_what_was_heard(live: Live) -> None:
    text = "A long sentence that goes on."
    with talk(live, **LONG) as t:
        t.send("input.text", text=text)
        t.send("input.done")
        first = t.until("audio.start")[0]
        assert first[-1]["sentence_text"] == text
        while not isinstance(t.get(), bytes):
            pass
        t.send("response.cancel")
        events, _ = t.until("response.cancelled")
        cancelled = events[-1]
        assert 0 < cancelled["spoken_ms"] < 6000
        assert 0 <= cancelled["heard_ms"] <= cancelled["spoken_ms"]
        assert text.startswith(cancelled["heard_text"])
        assert len(cancelled["heard_text"]) == cancelled["text_index"] < len(text)
        assert live.idle()
        assert live.http.get(f"/v1/audio/speech/{cancelled['request_id']}").json()["status"] == "cancelled"
        events, audio = t.say("Still here.")  # the session goes on
        assert events[-1]["type"] == "session.done"
        assert len(audio)


def test_cancel_after_the_last_audio_tells_how_far_the_listener_is(live: Live) -> None:
    with talk(live, split_granularity="sentence", **LONG) as t:  # six seconds each, made in a fraction of that
        began = time.monotonic()
        _, audio = t.say("One is here. Two is here.")
        assert len(audio) / 2 / 600 > 12
        t.send("response.cancel")
        cancelled = t.until("response.cancelled")[0][-1]
        assert cancelled["spoken_ms"] > 12_000
        listened = (time.monotonic() - began) * 1000  # nobody can have heard more than that
        assert 0 < cancelled["heard_ms"] < min(listened, cancelled["spoken_ms"]) + 1
        t.send("response.cancel", played_ms=6_000.0)
        assert t.until("response.cancelled")[0][-1]["heard_text"] == "One is here."
        t.send("response.cancel", played_ms=9_150.0)
        assert t.until("response.cancelled")[0][-1]["heard_text"].startswith("One is here. Two")
        t.send("response.cancel", played_ms=1e9)
        assert t.until("response.cancelled")[0][-1]["heard_text"] == "One is here. Two is here."


def test_cancel_forgets_what_waits(live: Live) -> None:
    with talk(live, **LONG) as t:
        for _ in range(3):
            t.send("input.text", text="A long sentence.")
            t.send("input.done")
        t.send("input.text", text="Half a")
        t.send("response.cancel")
        t.until("response.cancelled")
        events, _ = t.say("New.")
        assert [e["type"] for e in events] == ["audio.start", "audio.done", "session.done"]
        assert events[0]["sentence_text"] == "New."
    with talk(live) as t:
        t.send("response.cancel")
        assert t.until("response.cancelled", "error")[0] == [{"type": "response.cancelled"}]


def test_leaving_frees_everything(live: Live) -> None:
    with talk(live, **LONG) as t:
        t.send("input.text", text="A long sentence. And another.")
        while not isinstance(t.get(), bytes):
            pass
        assert live.tts.engine.health().running
    assert live.idle()
    deadline = time.monotonic() + 5
    while live.server.metrics.sessions and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not live.server.metrics.sessions
    assert "stentor:websocket_sessions 0.0" in live.http.get("/metrics").text


def test_close_ends_after_what_was_written_has_been_spoken(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="Good bye")
        t.send("session.close")
        _, audio = t.until("session.done")
        assert len(audio)
        assert t.close_code()[0] == 1000


BAD_CONFIGS = [
    ({"voice": "nobody"}, "voice"),
    ({"speed": 9}, "speed"),
    ({"response_format": "ogg"}, "response_format"),
    ({"unknown_field": 1}, "unknown_field"),
    ({"temperature": 7}, "temperature"),
    ({"encoding": "morse"}, "encoding"),
    ({"word_timestamps": True}, "word_timestamps"),
    ({"split_granularity": "word"}, "split_granularity"),
    ({"ref_audio": "http://127.0.0.1/x.wav"}, "ref_audio"),
    ({"model": "tts-1"}, "model"),
]


def test_a_wrong_configuration_is_refused_by_field_and_may_be_sent_again(live: Live) -> None:
    with talk(live, configure=False) as t:
        for body, param in BAD_CONFIGS:
            t.send("session.config", **body)
            error = t.get()
            assert error["type"] == "error"
            assert error["param"] == param
            assert param in error["message"]
        t.send("session.config", response_format="pcm")
        assert t.get()["type"] == "session.configured"


def test_a_reference_is_taken_like_over_http(live: Live) -> None:
    sound = "data:audio/wav;base64," + base64.b64encode(tone_wav()).decode()
    with talk(live, ref_audio=sound, ref_text="tone") as t:
        cloned = t.say("Hello there.")[1]
    with talk(live) as t:
        assert cloned != t.say("Hello there.")[1]


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
        t.send("input.text", text="x", nonsense=1)
        assert t.get()["param"] == "nonsense"
        t.send("input.text", text="x" * 20_001)
        assert t.get()["code"] == "text_too_long"
        t.send("input.text", text="x\ud800")
        assert t.get()["code"] == "invalid_json"


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
        t.send("session.config", ref_audio="A" * (5 << 20))
        assert t.close_code()[0] == 1009


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
    with talk(live) as t:
        took = []

        def others() -> None:
            began = time.monotonic()
            assert live.http.get("/health").status_code == 200
            took.append(time.monotonic() - began)

        aside = threading.Thread(target=others)
        for i in range(3000):
            t.send("input.text", text="x")
            if i == 1000:
                aside.start()
        t.send("response.cancel")
        t.until("response.cancelled")
        aside.join()
        assert took[0] < 2


def test_a_failure_in_the_engine_ends_the_utterance_not_the_session(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="Good one. \x01 breaks the toy. And ")
        events, _ = t.until("error")
        assert events[-1]["code"] == "engine_error"
        assert events[-1]["action"] == "discard"
        t.send("input.text", text="Not spoken any more.")
        t.send("input.done")
        assert t.until("session.done")[0][-1]["finish_reason"] == "error"
        assert t.say("Hello.")[0][-1]["type"] == "session.done"
    assert live.idle()


def test_nothing_to_say_is_answered_too(live: Live) -> None:
    with talk(live) as t:
        events, audio = t.say("  ...  ")
        assert events[-1]["total_sentences"] == 0
        assert not audio
        t.send("input.done")
        assert t.get()["type"] == "session.done"


def test_too_many_utterances_ahead_are_refused(live: Live) -> None:
    with talk(live, **LONG) as t:
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
    with serving(folder, api_key=("secret",), ws_idle_seconds=0.4, ws_max_sessions=2, max_buffered_mb=0.002) as live:
        yield live


@pytest.fixture
def strict(strict_server: Live) -> Live:
    """The same, once it has let go of the sessions of the test before: it takes two at once."""
    end = time.monotonic() + 10
    while strict_server.server.metrics.sessions and time.monotonic() < end:
        time.sleep(0.01)
    return strict_server


KEY = {"Authorization": "Bearer secret"}


def test_a_silent_client_is_hung_up_on(strict: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_module, "CONFIG_SECONDS", 0.3)
    with talk(strict, configure=False, headers=KEY) as t:
        code, events = t.close_code()
        assert (code, events[-1]["code"]) == (1008, "config_timeout")
    with talk(strict, headers=KEY) as t:
        began = time.monotonic()
        code, events = t.close_code()
        assert (code, events[-1]["code"]) == (1008, "idle_timeout")
        assert 0.2 < time.monotonic() - began < 3
    with talk(strict, headers=KEY) as t:  # also one that leaves an utterance open
        t.send("input.text", text="Once upon a time there")
        assert t.close_code()[1][-1]["code"] == "idle_timeout"


def test_the_key_is_asked_for_at_the_handshake(strict: Live) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as e, talk(strict, headers=headers):
            pass
        assert e.value.response.status_code == 401
    with talk(strict, headers=KEY) as t:
        assert t.say("Hello.")[0][-1]["type"] == "session.done"


def test_another_sites_page_may_not_open_a_session(strict: Live) -> None:
    with pytest.raises(InvalidStatus) as e, talk(strict, headers={**KEY, "Origin": "https://evil.example"}):
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


def test_a_client_that_does_not_read_is_cut_off(strict: Live) -> None:
    """Audio beyond what sockets hold and the server buffers."""
    with talk(strict, headers=KEY, response_format="wav", sample_rate=48000, min_frames=900, max_frames=900) as t:
        t.send("input.text", text="A long sentence. " * 8)
        t.send("input.done")
        code, events = t.close_code()
    assert code == 1008
    assert events[-1]["code"] == "slow_client"
    assert strict.idle()


def test_sessions_end_in_order_when_the_server_does(tmp_path: Path) -> None:
    with serving(tmp_path) as live, talk(live, **LONG) as busy, talk(live) as idle:
        busy.send("input.text", text="A long sentence.")
        busy.send("input.done")
        busy.until("audio.start")
        live.drain()
        assert idle.close_code()[0] == 1001
        _, audio = busy.until("session.done")
        assert len(audio) / 2 / 600 > 3
        assert busy.close_code()[0] == 1001
        with pytest.raises(InvalidStatus), talk(live):
            pass


def test_text_is_cut_the_same_however_it_arrives() -> None:
    text = 'He said: "Stop! Now." Then J. R. Smith paid 3.50 to Dr. Who. 你好。再见！ Bye'

    def segments(step: int) -> list[Segment]:
        feed = TextFeed("sentence", 400, live=False)
        for i in range(0, len(text), step):
            feed.write(text[i : i + step])
        feed.end()
        return [segment for segment, _ in feed._segments]

    assert segments(1) == segments(3) == segments(len(text))
    for p in segments(1):
        assert text[p.start : p.end] == p.text
    assert [p.text for p in segments(1)][-3:] == ["你好。", "再见！", "Bye"]


def test_text_without_marks_is_cut_before_it_grows_beyond_bounds() -> None:
    feed = TextFeed("auto", 40, live=False)
    for _ in range(300):
        feed.write("word ")
    assert all(len(p.text) <= 40 for p, _ in feed._segments)
    assert len(feed.text) - feed._cut <= 80
    feed.end()
    assert " ".join(p.text for p, _ in feed._segments).split() == ["word"] * 300


def test_the_place_that_was_heard_is_exact_at_ends_and_in_proportion_between() -> None:
    segments = [SegmentTiming(0, "", 0.0, 2.0, 0, 20), SegmentTiming(1, "", 2.5, 4.5, 21, 61)]
    assert [played_characters(segments, None, s) for s in (0.0, 1.0, 2.0, 2.2, 3.5, 4.5, 9.0)] == [
        0,
        10,
        20,
        20,
        41,
        61,
        61,
    ]
    assert played_characters(segments, (Segment("x" * 30, 62, 92), 5.0), 6.0) == 62 + 15
    assert played_characters([], (Segment("x" * 30, 0, 30), 0.0), 100.0) == 30
    assert played_characters([], None, 1.0) == 0
