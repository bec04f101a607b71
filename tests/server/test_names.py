"""OpenAI's names of models and voices, on a server that has others."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.speech.client_names import OPENAI_VOICES, is_usual_model, openai_voice, own_voice
from tests.helpers.server_live import Live, serving

ASK = {"input": "Hello there, you.", "seed": 5, "response_format": "pcm", "guard": False}


@pytest.mark.parametrize(
    "name", ["tts-1", "tts-1-hd", "TTS-1", "tts-1-1106", "gpt-4o-mini-tts-2025-12-15", "kokoro"]
)
def test_a_model_of_openai_is_the_one_that_is_served(live: Live, name: str) -> None:
    assert live.speech(**ASK, model=name).content == live.speech(**ASK).content
    found = live.http.get(f"/v1/models/{name}").json()
    assert (found["id"], found["root"]) == (name, "dummy:toy")


def test_other_models_are_not() -> None:
    for name in ("gpt-4o", "tts-2", "tts-10", "tts-1-large", "whisper-1", "my-tts-1"):
        assert not is_usual_model(name)


def test_every_voice_of_openai_is_one_of_the_models_own(live: Live) -> None:
    low, high = (live.speech(**ASK, voice=v).content for v in ("low", "high"))
    assert (
        live.speech(**ASK, voice="alloy").content
        == live.speech(**ASK, voice={"id": "Ballad"}).content
        == low
    )
    assert live.speech(**ASK, voice="ash").content == high
    assert len(OPENAI_VOICES) == 13
    assert [openai_voice(v, ("a", "b", "c")) for v in OPENAI_VOICES] == ["a", "b", "c"] * 4 + ["a"]
    assert {openai_voice(v, ()) for v in OPENAI_VOICES} == {None}


def test_a_voice_of_kokoro_is_the_models_own_of_that_name(live: Live) -> None:
    assert live.speech(**ASK, voice="af_low").content == live.speech(**ASK, voice="low").content
    assert live.speech(**ASK, voice="af_sky").json()["error"]["code"] == "voice_not_found"
    names = ("heart", "af_heart", "BM_George", "x_heart", "heart2")
    assert [own_voice(n, ("heart", "george")) for n in names] == [
        "heart",
        "heart",
        "george",
        None,
        None,
    ]


def test_names_of_the_server_come_first(tmp_path: Path) -> None:
    with serving(tmp_path, voice_alias=("ash=low",), served_model_name=("tts-1", "mine")) as live:
        assert live.speech(**ASK, voice="ash").content == live.speech(**ASK, voice="alloy").content
        ids = [m["id"] for m in live.http.get("/v1/models").json()["data"]]
        assert ids == ["tts-1", "mine", "tts-1-hd", "gpt-4o-mini-tts"]
        assert {m["root"] for m in live.http.get("/v1/audio/models").json()["models"]} == {"tts-1"}
        assert live.speech(**ASK, model="").status_code == 200
