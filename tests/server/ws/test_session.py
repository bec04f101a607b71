"""A session: text in, audio out, several utterances, cancel, close."""

from __future__ import annotations

import base64
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from tests.helpers.patience import until
from tests.helpers.server_live import (
    LAWS,
    Live,
    decoded,
    either_engine,
    held,
    pcm,
    serving,
    tone_wav,
)
from tests.helpers.ws_talk import talk


@either_engine
def test_a_sentence_is_spoken_as_over_http(live: Live) -> None:
    with talk(live) as t:
        events, audio = t.say("Hello there, you.")
    kinds = [e["type"] for e in events]
    assert kinds == ["audio.start", "audio.done", "session.done"]
    whole = pcm(
        live.speech(input="Hello there, you.", seed=5, guard=False, response_format="pcm").content
    )
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


@either_engine
def test_text_that_comes_by_letters_is_spoken_by_sentences_before_it_is_complete(
    live: Live,
) -> None:
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


@either_engine
def test_the_first_words_may_be_a_clause(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="If you would like to know, ask ")
        events, _ = t.until("audio.done")
        assert events[0]["sentence_text"] == "If you would like to know,"


@either_engine
def test_how_text_is_cut_does_not_depend_on_how_fast_it_is_spoken(live: Live) -> None:
    texts = ["One is here. Two is ", "here. Three."]
    heard = []
    for _ in range(2):
        with talk(live) as t:
            heard.append(t.say(*texts)[1])
    with talk(live) as t:
        t.send("input.text", text=texts[0])
        _, first = t.until("audio.start")  # the first sentence is spoken before the second is whole
        heard.append(first + t.say(texts[1])[1])
    assert heard[0] == heard[1] == heard[2]


@either_engine
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
        assert (
            np.abs(samples[round(before["end"] * 600) + 1 : round(after["start"] * 600) - 1]).max()
            == 0
        )


@either_engine
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


@either_engine
def test_commit_speaks_what_is_there_and_the_utterance_goes_on(live: Live) -> None:
    with talk(live, split_granularity="none") as t:
        t.send("input.text", text="No mark at the end")
        t.send("input.commit")
        events, _ = t.until("audio.done")
        assert [e["type"] for e in events] == ["input.committed", "audio.start", "audio.done"]
        events, _ = t.say("of it")
        assert events[-1]["total_sentences"] == 2


@either_engine
def test_numbered_text_is_acknowledged(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="a", sequence=7)
        assert t.get() == {"type": "input.ack", "sequence": 7, "utterance_index": 0}


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "ulaw", "alaw"])
def test_every_format_streams_as_one_file_per_utterance(live: Live, format: str) -> None:
    settings = (
        {"response_format": format}
        if format in LAWS
        else {"response_format": format, "sample_rate": 24000}
    )
    with talk(live, **settings, **({} if format in LAWS else {"stream_audio": True})) as t:
        events, audio = t.say("One is here. ", "Two is here.")
    assert events[-1]["sample_rate"] == (8000 if format in LAWS else 24000)
    samples, rate = decoded(audio, format)
    assert len(samples) / rate == pytest.approx(events[-1]["duration"], abs=0.15)


@either_engine
def test_whole_files_per_sentence_and_base64_are_there_for_those_who_want_them(live: Live) -> None:
    with talk(
        live,
        response_format="wav",
        stream_audio=False,
        encoding="base64",
        split_granularity="sentence",
    ) as t:
        events, audio = t.say("One is here. Two is here.")
    assert not audio
    files = [base64.b64decode(e["audio"]) for e in events if e["type"] == "audio.chunk"]
    assert len(files) == 2
    for data in files:
        assert int.from_bytes(data[4:8], "little") == len(data) - 8


def test_files_of_pieces_have_the_pauses_that_the_text_asks_for(live: Live) -> None:
    def seconds(text: str) -> tuple[list[float], dict]:
        how = {"response_format": "wav", "encoding": "base64", "split_granularity": "sentence"}
        with talk(live, **how) as t:
            events, _ = t.say(text)
        files = [base64.b64decode(e["audio"]) for e in events if e["type"] == "audio.chunk"]
        return [(len(data) - 44) / 2 / 600 for data in files], events[-1]

    plain, _ = seconds("One is here. Two is here.")
    paused, done = seconds("One is here. [pause 2s] Two is here.")
    assert sum(paused) - sum(plain) == pytest.approx(2.0, abs=0.01)
    assert "ignored" not in done
    _, done = seconds("One is here. Two is here.\n\n [pause 2s]")
    assert done["ignored"] == [{"param": "input", "text": "[pause 2s]"}]  # no file has room for it


@either_engine
def test_the_bytes_of_a_session_are_those_of_the_text_whenever_it_ends(live: Live) -> None:
    """The last 5 ms of a piece wait for what follows it, if anything does."""
    whole = pcm(
        live.speech(
            input="Hello there, you.", seed=5, guard=False, response_format="pcm", stream=False
        ).content
    )
    with talk(live) as t:
        t.send("input.text", text="Hello there, you.")
        t.send("input.commit")
        _, first = t.until("audio.done")
        t.send("input.done")
        events, rest = t.until("session.done")
    assert 0 < len(rest) < len(first)
    assert np.abs(pcm(first + rest) - whole).max() < 2.1 / 32768
    assert events[-1]["total_bytes"] == len(first) + len(rest)


def test_words_count_as_played_once_the_pause_before_them_is(live: Live) -> None:
    text = "Here it is. [pause 2s] There it was, and is, and is."
    long = {"min_frames": 120, "max_frames": 120, "split_granularity": "sentence"}
    # 1.2 s, a pause, and most of the second sentence
    with talk(live, word_timestamps=True, **long) as t, held(live, frames=[230]):
        t.send("input.text", text=text)
        t.send("input.done")
        t.until("audio.done")
        t.send("response.cancel", played_ms=2_500.0)
        events, _ = t.until("response.cancelled")
    assert events[-1]["heard_text"].rstrip() == "Here it is."


@either_engine
def test_speed_holds_over_websocket_too(live: Live) -> None:
    with talk(live) as t:
        plain = t.say("Hello there.")[1]
    with talk(live, speed=2.0) as t:
        events, fast = t.say("Hello there.")
    assert len(fast) == pytest.approx(len(plain) / 2, abs=8)
    assert events[-1]["duration"] == pytest.approx(len(fast) / 2 / 600, abs=0.01)


LONG = {"min_frames": 120, "max_frames": 120}  # 1.2 s of audio


def test_cancel_stops_at_once_and_says_what_was_heard(live: Live) -> None:
    text = "A long sentence that goes on."
    with talk(live, **LONG) as t:
        with held(live, frames=[20]):
            t.send("input.text", text=text)
            t.send("input.done")
            first = t.until("audio.start")[0]
            assert first[-1]["sentence_text"] == text
            while not isinstance(t.get(), bytes):
                pass
            t.send("response.cancel")
            events, _ = t.until("response.cancelled")
        cancelled = events[-1]
        assert 0 < cancelled["spoken_ms"] < 1200
        assert 0 <= cancelled["heard_ms"] <= cancelled["spoken_ms"]
        assert text.startswith(cancelled["heard_text"])
        assert len(cancelled["heard_text"]) == cancelled["text_index"] < len(text)
        assert live.idle()
        assert (
            live.http.get(f"/v1/audio/speech/{cancelled['request_id']}").json()["status"]
            == "cancelled"
        )
        events, audio = t.say("Still here.")  # the session goes on
        assert events[-1]["type"] == "session.done"
        assert len(audio)


@either_engine
def test_cancel_after_the_last_audio_tells_how_far_the_listener_is(live: Live) -> None:
    with talk(live, split_granularity="sentence", **LONG) as t:  # made faster than it is heard
        began = time.monotonic()
        _, audio = t.say("One is here. Two is here.")
        assert len(audio) / 2 / 600 > 2.4
        t.send("response.cancel")
        cancelled = t.until("response.cancelled")[0][-1]
        assert cancelled["spoken_ms"] > 2_400
        listened = (time.monotonic() - began) * 1000  # nobody can have heard more than that
        assert 0 < cancelled["heard_ms"] < min(listened, cancelled["spoken_ms"]) + 1
        t.send("response.cancel", played_ms=1_200.0)
        assert t.until("response.cancelled")[0][-1]["heard_text"] == "One is here."
        t.send("response.cancel", played_ms=1_950.0)
        assert t.until("response.cancelled")[0][-1]["heard_text"].startswith("One is here. Two")
        t.send("response.cancel", played_ms=1e9)
        assert t.until("response.cancelled")[0][-1]["heard_text"] == "One is here. Two is here."


@either_engine
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
    with held(live, frames=[20]), talk(live, **LONG) as t:
        t.send("input.text", text="A long sentence. And another.")
        while not isinstance(t.get(), bytes):
            pass
        assert live.tts.engine.health().running
    assert live.idle()
    assert until(lambda: not live.server.metrics.sessions)
    assert "stentor:websocket_sessions 0.0" in live.http.get("/metrics").text


@either_engine
def test_close_ends_after_what_was_written_has_been_spoken(live: Live) -> None:
    with talk(live) as t:
        t.send("input.text", text="Good bye")
        t.send("session.close")
        _, audio = t.until("session.done")
        assert len(audio)
        assert t.close_code()[0] == 1000


def test_a_cancel_after_close_still_closes(live: Live) -> None:
    with talk(live, **LONG) as t:
        with held(live, frames=[20]):
            t.send("input.text", text="A long sentence.")
            t.send("input.done")
            t.until("audio.start")
            t.send("session.close")
            t.send("response.cancel")
            t.until("response.cancelled")
        assert t.close_code()[0] == 1000


@either_engine
def test_a_reference_is_taken_like_over_http(live: Live) -> None:
    sound = "data:audio/wav;base64," + base64.b64encode(tone_wav()).decode()
    with talk(live, ref_audio=sound, ref_text="tone") as t:
        cloned = t.say("Hello there.")[1]
    with talk(live) as t:
        assert cloned != t.say("Hello there.")[1]


@either_engine
def test_nothing_to_say_is_answered_too(live: Live) -> None:
    with talk(live) as t:
        events, audio = t.say(" \n ")
        assert events[-1]["total_sentences"] == 0
        assert not audio
        t.send("input.done")
        assert t.get()["type"] == "session.done"


def test_sessions_end_in_order_when_the_server_does(tmp_path: Path) -> None:
    with serving(tmp_path) as live, talk(live, **LONG) as busy, talk(live) as idle:
        with held(live, frames=[20]):
            busy.send("input.text", text="A long sentence.")
            busy.send("input.done")
            busy.until("audio.start")
            live.drain()
            assert idle.close_code()[0] == 1001
        _, audio = busy.until("session.done")
        assert len(audio) / 2 / 600 > 1
        assert busy.close_code()[0] == 1001
        with pytest.raises(InvalidStatus), talk(live):
            pass


def test_a_session_that_still_speaks_when_the_server_ends_is_told_so(tmp_path: Path) -> None:
    with serving(tmp_path) as live, talk(live, **LONG) as busy, held(live, frames=[20]):
        busy.send("input.text", text="A long sentence.")
        busy.send("input.done")
        busy.until("audio.start")
        live.end()
        events, _ = busy.until("error")
        assert events[-1]["code"] == "shutting_down"
        assert busy.close_code()[0] == 1001
