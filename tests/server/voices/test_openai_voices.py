"""OpenAI's voices and consents to them, driven by its SDK."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import openai
import pytest

from stentor.server.voices import samples
from tests.helpers.server_live import Live, serving, tone_wav

PROMPT = "An old sailor, hoarse and slow."


@pytest.fixture
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)


def test_a_consent_is_kept_listed_renamed_and_deleted(client: openai.OpenAI) -> None:
    consents = client.audio.voice_consents
    made = [
        consents.create(name=f"speaker {n}", language="en-US", recording=("a.wav", tone_wav(2.0)))
        for n in range(3)
    ]
    assert [c.object for c in made] == ["audio.voice_consent"] * 3
    pages = list(consents.list(limit=2))
    assert sorted(c.id for c in pages) == sorted(c.id for c in made)
    first = made[0].id
    assert consents.retrieve(first) == made[0]
    assert consents.update(first, name="Anna").name == "Anna"
    assert consents.retrieve(first).name == "Anna"
    voice = client.audio.voices.create(
        name="anna", consent=first, audio_sample=("a.wav", tone_wav(2.0))
    )
    assert (voice.id, voice.object) == ("anna", "audio.voice")
    assert consents.delete(first).deleted
    with pytest.raises(openai.NotFoundError):
        consents.retrieve(first)
    with pytest.raises(openai.NotFoundError):
        consents.delete(first)
    for other in made[1:]:
        consents.delete(other.id)
    assert client.audio.voices.delete("anna").deleted


@pytest.mark.parametrize("id", ["cons_../../../etc/passwd", "cons_" + "0" * 24, "x"])
def test_a_consent_that_is_not_there_is_not_found(live: Live, id: str) -> None:
    for answer in (
        live.http.get(f"/v1/audio/voice_consents/{id}"),
        live.http.delete(f"/v1/audio/voice_consents/{id}"),
        live.http.post(f"/v1/audio/voice_consents/{id}", json={"name": "a"}),
    ):
        assert answer.status_code in (404, 405)


@pytest.mark.parametrize(
    ("form", "recording", "param"),
    [
        ({"name": "a", "language": "en"}, b"no audio", "recording"),
        ({"name": "a", "language": "../en"}, tone_wav(1.0), "language"),
        ({"name": "", "language": "en"}, tone_wav(1.0), "name"),
        ({"language": "en"}, tone_wav(1.0), "name"),
    ],
)
def test_what_is_wrong_with_a_consent_is_named(
    live: Live, form: dict[str, str], recording: bytes, param: str
) -> None:
    answer = live.http.post(
        "/v1/audio/voice_consents", data=form, files={"recording": ("a.wav", recording)}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_consents_need_a_key_where_the_server_has_one_and_have_a_limit(tmp_path: Path) -> None:
    with serving(tmp_path / "voices", api_key=("k",), max_voices=1) as live:
        url = "/v1/audio/voice_consents"
        assert httpx.get(live.url + url).status_code == 401
        key = {"Authorization": "Bearer k"}
        statuses = [
            live.http.post(
                url,
                data={"name": "a", "language": "en"},
                files={"recording": ("a.wav", tone_wav(1.0))},
                headers=key,
            ).status_code
            for _ in range(2)
        ]
        assert statuses == [200, 409]


def test_a_voice_is_designed_and_speaks(
    client: openai.OpenAI, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "SECONDS", (0.1, 30.0))  # the toy speaks for 0.16 s
    voice = client.audio.voices.create(
        name="sailor", type="prompt", prompt=PROMPT, script_hint="Words. " * 60
    )
    assert (voice.id, voice.type, voice.prompt) == ("sailor", "prompt", PROMPT)
    stored = live.http.get("/v1/audio/voices/sailor").json()
    assert (stored["speaker_description"], stored["ref_text"]) == (PROMPT, "Words. " * 60)
    assert live.speech(input="Hello.", voice="sailor", response_format="pcm").status_code == 200
    assert client.audio.voices.delete("sailor").deleted


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": " "}, "prompt"),
        ({"prompt": "x" * 501}, "prompt"),
        ({"script_hint": " "}, "script_hint"),
        ({"script_hint": "Hi."}, "script_hint"),
        ({"name": "../a"}, "name"),
        ({"name": "low"}, "name"),
        ({"type": "other"}, "type"),
        ({"model": "nobody"}, "model"),
    ],
)
def test_what_is_wrong_with_a_description_is_named(
    live: Live, change: dict[str, str], param: str
) -> None:
    body = {"name": "n", "type": "prompt", "prompt": PROMPT, "script_hint": "Words. " * 60}
    answer: httpx.Response = live.http.post("/v1/audio/voices", content=json.dumps(body | change),
        headers={"Content-Type": "application/json"})  # fmt: skip
    assert answer.status_code in (400, 404, 409), answer.text
    assert answer.json()["error"]["param"] == param
