"""ElevenLabs' text-to-dialogue over its sockets: turns, times, voices, mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from elevenlabs.types import (
    TextToDialogueWebsocketAudioChunkMulti,
    TextToDialogueWebsocketClientMessageMulti,
    TextToDialogueWebsocketError,
    TextToDialogueWebsocketFinalMulti,
)

from tests.helpers.door_talk import Message, audio_of, json_talk
from tests.helpers.server_live import Live, held

QUERY = "?output_format=pcm_24000&seed=3&sync_alignment=true"
ONE = "/v1/text-to-dialogue/stream-input" + QUERY
MULTI = "/v1/text-to-dialogue/multi-stream-input" + QUERY
LINES = (
    ("low", "Did you hear that? "),
    ("high", "What did you hear?"),
    ("low", " Nothing at all."),
)
TEXT = "".join(text for _, text in LINES)


def line(voice: str, text: str, **more: Any) -> Message:
    return {"inputs": [{"voice_id": voice, "text": text, **more}]}


def final(message: Message) -> object:
    return message.get("is_final")


def written(messages: list[Message]) -> str:
    return "".join(c for m in messages if m.get("alignment") for c in m["alignment"]["chars"])


def spoken(live: Live, query: str = "") -> list[Message]:
    """Messages of the server for LINES, each of which arrives in two parts."""
    with json_talk(live, ONE + query) as t:
        t.send(voices=["low", "high"])
        for voice, text in LINES:
            t.send(**line(voice, text[:6]))
            t.send(**line(voice, text[6:]))
        t.send(close_socket=True)
        code, messages = t.close_code()
    assert code == 1000
    return messages


def test_lines_that_arrive_sound_like_those_of_a_whole_dialogue(live: Live) -> None:
    body = {
        "inputs": [{"voice_id": voice, "text": text} for voice, text in LINES],
        "seed": 3,
        "guard": False,
    }
    whole = live.http.post("/v1/text-to-dialogue/stream?output_format=pcm_24000", json=body)
    messages = spoken(live)
    assert written(messages) == TEXT
    audio = np.frombuffer(audio_of(messages, "audio"), "<i2").astype(int)
    wanted = np.frombuffer(whole.content, "<i2").astype(int)
    assert len(audio) == pytest.approx(len(wanted), abs=2)
    size = min(len(audio), len(wanted))
    assert np.abs(audio[:size] - wanted[:size]).max() <= 1


def test_each_turn_is_ended_and_the_dialogue_once(live: Live) -> None:
    messages = spoken(live)
    assert sum(bool(m.get("is_final_audio_for_turn")) for m in messages) == len(LINES)
    assert [bool(final(m)) for m in messages] == [False] * (len(messages) - 1) + [True]


def test_times_count_from_the_audio_of_their_message(live: Live) -> None:
    """A client that adds the audio of the messages before to them has when each character is spoken."""
    seconds = 0.0
    starts = []
    for message in spoken(live):
        if message.get("alignment"):
            starts += [1000 * seconds + s for s in message["alignment"]["char_start_times_ms"]]
        seconds += len(audio_of([message], "audio")) / 2 / 24000
    assert len(starts) == len(TEXT)
    assert starts == sorted(starts)
    assert starts[0] == pytest.approx(0, abs=1)
    assert 800 * seconds < starts[-1] < 1000 * seconds


def test_without_sync_alignment_there_are_no_times(live: Live) -> None:
    assert written(spoken(live, "&sync_alignment=false")) == ""


def test_a_voice_may_begin_a_new_turn(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(voices=["low"], **line("low", "Who"))
        t.send(**line("low", "is there?", new_turn=True))
        t.send(close_socket=True)
        _, messages = t.close_code()
    assert sum(bool(m.get("is_final_audio_for_turn")) for m in messages) == 2


def test_a_flush_speaks_what_is_there(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(voices=["low"], **line("low", "No mark at the end "), flush=True)
        assert written(t.until(written_one)) == "No mark at the end"
        t.send(keep_alive=True)
        t.send(close_socket=True)
        assert t.close_code()[0] == 1000


def written_one(message: Message) -> object:
    return message.get("alignment")


def test_contexts_are_spoken_side_by_side(live: Live) -> None:
    with json_talk(live, MULTI) as t:
        for name, voice in (("a", "low"), ("b", "high")):
            t.send(context_id=name, voices=[voice])
            t.send(context_id=name, **line(voice, f"This is {name}. "), flush=True)
            t.send(context_id=name, **line(voice, ""), flush=True)
            t.send(context_id=name, close_context=True)
        messages = t.until(final)
        messages += t.until(final)
        for name in "ab":
            assert written([m for m in messages if m["context_id"] == name]) == f"This is {name}."
        t.send(close_socket=True)
        assert t.close_code()[0] == 1000


def test_a_dialogue_that_is_closed_twice_frees_its_places(live: Live) -> None:
    with held(live, frames=[5]) as hold, json_talk(live, MULTI) as t:
        t.send(context_id="a", voices=["low"], **line("low", "A long text. " * 30))
        t.send(context_id="a", close_context=True)
        hold.wait()
        t.send(context_id="a", close_context=True)
        hold.go()
        assert t.until(final)[-1]["interrupted"] is True
        assert live.idle()


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (line("low", "Hi."), "voices"),
        ({"voices": ["low", "nobody"]}, "voices.1"),
        ({"voices": []}, "voices"),
    ],
)
def test_a_wrong_first_message_ends_the_socket(live: Live, message: Message, param: str) -> None:
    with json_talk(live, ONE) as t:
        t.send(**message)
        code, messages = t.close_code()
    assert code == 1008
    assert messages[-1]["param"] == param


def test_too_many_voices_are_refused_and_the_socket_goes_on(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(voices=["low"] * 17)
        assert "voices" in t.get()["message"]
        t.send(voices=["low"], **line("low", "Hello. "), flush=True)
        assert written(t.until(written_one)) == "Hello."


def test_a_voice_that_was_not_named_is_refused_and_the_context_goes_on(live: Live) -> None:
    with json_talk(live, MULTI) as t:
        t.send(context_id="a", voices=["low"])
        t.send(context_id="a", **line("high", "Hi. "))
        told = t.get()
        assert (told["param"], told["context_id"]) == ("inputs.0.voice_id", "a")
        t.send(context_id="a", **line("low", "Hello. "), flush=True)
        assert written(t.until(written_one)) == "Hello."


def test_what_a_dialogue_does_not_use_is_named(live: Live) -> None:
    with json_talk(live, ONE) as t:
        t.send(
            voices=["low"],
            voice_settings={"stability": 0.5},
            pronunciation_dictionary_locators=[],
            xi_api_key="any",
        )
        t.send(**line("low", "Hello.", mood="sad"))
        t.send(close_socket=True)
        _, messages = t.close_code()
    assert {i["param"] for i in messages[-1]["ignored"]} == {
        "voice_settings.stability",
        "pronunciation_dictionary_locators",
        "inputs.0.mood",
    }


def test_messages_are_those_of_elevenlabs_sdk(live: Live) -> None:
    """Its types describe the protocol: nothing reads another field, and none that is needed lacks."""
    begin = TextToDialogueWebsocketClientMessageMulti(
        context_id="a", voices=["low"], inputs=[{"text": "Hello.", "voice_id": "low"}]
    )
    with json_talk(live, MULTI) as t:
        t.send(**begin.model_dump(exclude_none=True))
        t.send(context_id="b", voices=["nobody"])
        error = TextToDialogueWebsocketError(**t.get())
        assert error.param == "voices.0"
        t.send(context_id="a", close_context=True)
        messages = t.until(final)
    TextToDialogueWebsocketFinalMulti(**messages[-1])
    chunks = [TextToDialogueWebsocketAudioChunkMulti(**m) for m in messages if "audio" in m]
    assert any(chunk.audio for chunk in chunks)
    assert {chunk.context_id for chunk in chunks} == {"a"}
