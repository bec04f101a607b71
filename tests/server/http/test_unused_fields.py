"""Fields that a model does not use: named in an answer, or refused by a strict server."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.server import cli
from stentor.server.config import ServerConfig, build
from stentor.server.schemas import BatchBody, SpeechBody
from stentor.server.speech.fields import language_name
from stentor.server.voices import samples
from stentor.server.ws.utterance import Configure
from tests.helpers.server_live import Live, serving, tone_wav
from tests.helpers.ws_talk import talk

TONE = base64.b64encode(tone_wav()).decode()
UNUSED = [
    ({"extra_params": {"nonsense": 1}}, "nonsense"),
    ({"unknown_field": 1}, "unknown_field"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"stage_params": {"talker": {"top_k": 3, "min_p": 0.1}}}, "stage_params.talker.min_p"),
    ({"language": "klingon"}, "language"),
    ({"ref_text": "no audio"}, "ref_text"),
    ({"prompt_audio": "data:,x"}, "prompt_audio"),
    ({"prompt_text": "no audio"}, "prompt_text"),
    ({"speaker_embedding": [0.1, 0.2]}, "speaker_embedding"),
    ({"voice": "low", "speaker": "high"}, "speaker"),
    ({"voice": "clone", "ref_audio": TONE}, "voice"),
    ({"references": [{"audio": TONE, "vq_codes": [1, 2]}]}, "references[0].vq_codes"),
]
OWN_VOICE = {
    "voices": (),
    "takes_reference": False,
    "takes_instructions": False,
}  # a model that only speaks
NULLS = {
    name: None
    for model in (SpeechBody, BatchBody, Configure)
    for name in model.model_fields
    if name not in ("input", "items", "type", "stream_audio", "encoding")
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), strict=True) as running:
        yield running


def as_if(live: Live, monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Let the model say other things of itself."""
    spec = replace(live.tts.spec, **facts)
    monkeypatch.setattr(live.tts._model, "spec", spec)
    (engine,) = live.server.hosts.engines
    assert engine.ready is not None
    monkeypatch.setattr(engine.ready, "info", spec.info)


@pytest.mark.parametrize(("body", "param"), UNUSED, ids=[p for _, p in UNUSED])
def test_a_field_without_use_is_named_and_the_request_served(
    live: Live, strict: Live, body: dict, param: str
) -> None:
    for how in ({}, {"stream_format": "audio"}, {"stream_format": "sse"}):
        answer = live.speech(input="Hello.", **how, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored"] == param
    refused = strict.speech(input="Hello.", **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert param in refused.json()["error"]["message"]


SAMPLE = {"audio_sample": ("a.wav", tone_wav(2.0), "audio/wav")}
DIALOGUE = {"inputs": [{"text": "Hello.", "voice_id": "low"}], "unknown_field": 1}
DESIGN = {"name": "sailor", "type": "prompt", "prompt": "Calm.", "unknown_field": "1"}
UPLOAD = {"name": "quill", "consent": "yes", "unknown_field": "1"}
CONSENT = {"name": "Anna", "language": "en"}
RECORDING = {"recording": SAMPLE["audio_sample"]}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/text-to-speech/low", {"json": {"text": "Hello.", "unknown_field": 1}}),
    ("/v1/text-to-speech/low/stream", {"json": {"text": "Hello.", "unknown_field": 1}}),
    ("/v1/text-to-dialogue", {"json": DIALOGUE}),
    ("/v1/text-to-dialogue/stream", {"json": DIALOGUE}),
    ("/v1/text-to-dialogue/with-timestamps", {"json": DIALOGUE}),
    ("/v1/text-to-dialogue/stream/with-timestamps", {"json": DIALOGUE}),
    ("/v1/audio/voice_consents", {"data": CONSENT | {"unknown_field": "1"}, "files": RECORDING}),
    ("/v1/audio/voice_consents/{id}", {"json": {"name": "Eve", "unknown_field": 1}}),
    ("/v1/audio/voices", {"data": UPLOAD, "files": SAMPLE}),
    ("/v1/audio/voices", {"data": DESIGN}),
    ("/v1/audio/voices", {"json": DESIGN}),
]


def posted(live: Live, path: str, request: dict[str, Any]) -> httpx.Response:
    """The answer to a request. {id} in the path stands for that of a new consent."""
    added = live.http.post("/v1/audio/voice_consents", data=CONSENT, files=RECORDING)
    answer: httpx.Response = live.http.post(path.format(id=added.json()["id"]), **request)
    return answer


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_every_route_names_a_field_that_it_does_not_have(
    live: Live, strict: Live, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(samples, "SECONDS", (0.1, 30.0))  # the toy speaks for 0.16 s
    answer = posted(live, path, body)
    assert answer.status_code == 200, answer.text
    if "x-ignored" in answer.headers:
        assert answer.headers["x-ignored"] == "unknown_field"
    else:
        assert answer.json()["ignored"] == [{"param": "unknown_field"}]
    refused = posted(strict, path, body)
    assert refused.status_code == 400, refused.text
    assert "unknown_field: is not a" in refused.text
    for name in ("quill", "sailor"):  # the servers are those of other tests too
        live.http.delete(f"/v1/audio/voices/{name}")
    for server in (live, strict):
        for consent in server.http.get("/v1/audio/voice_consents").json()["data"]:
            server.http.delete(f"/v1/audio/voice_consents/{consent['id']}")


USED = [
    {"temperature": 0.5, "user": "u", "extra_params": {"top_k": 3}},
    *({"language": name} for name in ("English", "en-US")),
    {"response_format": "WAV", "task_type": "custom_voice", "split_granularity": "Sentence"},
    {"references": [{"ref_audio": TONE, "ref_text": "What is said."}], "task_type": "BASE"},
    {"references": [{"audio_path": TONE, "media_type": "audio/wav"}]},
    {"voice": {"id": "low", "name": None}, "speaker": "low"},
    {"seed": -1},
    NULLS,
]


@pytest.mark.parametrize("body", USED)
def test_what_has_a_meaning_is_used_and_not_named(strict: Live, body: dict) -> None:
    answer = strict.speech(input="Hello.", **body)
    assert answer.status_code == 200, answer.text
    assert "x-ignored" not in answer.headers
    assert body.get("response_format") != "WAV" or answer.content[:4] == b"RIFF"


@pytest.mark.parametrize(
    "name",
    ["English", "en", "en-US", "EN_us", "eng", " english ", "English (UK)", "en-GB-oxendict"],
)
def test_a_language_has_many_names(name: str) -> None:
    assert language_name(name, ("english", "chinese")) == "english"
    assert language_name(name, ("german",)) is None


def test_no_language_is_auto() -> None:
    assert {language_name(name, ()) for name in (None, "", "Auto", " AUTO ")} == {"auto"}
    assert language_name("zh-Hans-CN", ("chinese",)) == "chinese"
    assert language_name("beijing_dialect", ("beijing_dialect",)) == "beijing_dialect"


def test_options_of_stages_are_used(live: Live) -> None:
    ask = {"input": "Hello.", "seed": 3, "response_format": "pcm"}
    one = live.speech(**ask, stage_params={"talker": {"max_new_tokens": 7}, "vocoder": {}})
    assert len(one.content) == len(live.speech(**ask, max_new_tokens=7).content)
    top = live.speech(**ask, stage_params={"talker": {"max_new_tokens": 7}}, max_new_tokens=5)
    assert len(top.content) == len(live.speech(**ask, max_new_tokens=5).content) < len(one.content)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (
            {"voice": "Vivian", "task_type": "CustomVoice", "instructions": "Calm."},
            "task_type, instructions, voice",
        ),
        ({"speaker": "Vivian", "language": "Auto"}, "speaker"),
        (
            {"ref_audio": "http://127.0.0.1:1/x.wav", "ref_text": "x", "task_type": "Base"},
            "task_type, ref_audio, ref_text",
        ),
        ({"references": [{"audio_path": "/etc/passwd"}]}, "references"),
        ({"instruct": "Calm.", "instructions": ""}, "instruct"),
    ],
)
def test_a_model_that_only_speaks_serves_requests_for_others(
    live: Live, monkeypatch: pytest.MonkeyPatch, body: dict, named: str
) -> None:
    """Nothing is fetched or read for it."""
    as_if(live, monkeypatch, **OWN_VOICE)
    answer = live.speech(input="Hello.", **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored"] == named


def test_an_empty_reference_is_none_to_a_model_that_only_speaks(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        live.speech(input="Hello.", ref_audio="").json()["error"]["message"]
        == "ref_audio: is empty"
    )
    as_if(live, monkeypatch, **OWN_VOICE)
    answer = live.speech(input="Hello.", ref_audio="")
    assert (answer.status_code, answer.headers.get("x-ignored")) == (200, None)


def test_a_wrong_voice_of_a_model_with_voices_is_refused(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live.speech(input="Hello.", voice="nobody").json()["error"]["param"] == "voice"
    as_if(live, monkeypatch, voices=())
    # it may be an upload
    assert live.speech(input="Hello.", voice="nobody").json()["error"]["param"] == "voice"
    assert live.speech(input="Hello.", speaker="Vivian").headers["x-ignored"] == "speaker"


def test_instructions_beside_continued_audio(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"input": "Hello.", "instructions": "Calm.", "ref_audio": TONE}
    assert "x-ignored" not in live.speech(**ask, ref_text="x").headers
    as_if(live, monkeypatch, instructs_prompt=False)
    assert live.speech(**ask, ref_text="x").headers["x-ignored"] == "instructions"
    assert "x-ignored" not in live.speech(**ask).headers


def test_a_batch_names_what_only_one_answer_has(live: Live) -> None:
    items = [
        "One.",
        {"input": "Two.", "stream": True, "timestamps": "srt"},
        {"input": "Three.", "speed": None},
    ]
    body = live.http.post(
        "/v1/audio/speech/batch", json={"items": items, "stream": False, "model": None}
    ).json()
    two = [{"param": "stream"}, {"param": "timestamps"}]
    assert [r.get("ignored") for r in body["results"]] == [None, two, None]
    assert all(r["audio_data"] == r["audio"] and r["format"] == "mp3" for r in body["results"])


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"input": "x", "speed": 9}], "items.0.speed"),
        (["x", {"voice": "low"}], "items.1.input"),
        (["x", 5], "items.1"),
        (["x", None], "items.1"),
        (["x", {"input": "x", "voice": "nobody"}], "items.1.voice"),
        (["x", {"input": "x", "cleanup": "nothing"}], "items.1.cleanup"),
        (["x", ""], "items.1.input"),
        ([{"input": "x", "top_k": "x"}], "items.0.top_k"),
        ([{"input": "x", "response_format": "ogg"}], "items.0.response_format"),
        ([{"input": "x", "references": [{"audio": 5}]}], "items.0.references"),
    ],
)
def test_an_error_of_a_batch_names_the_field(live: Live, items: list, param: str) -> None:
    answer = live.http.post("/v1/audio/speech/batch", json={"items": [*items, "Good."]})
    assert answer.status_code == 200
    *_, wrong, good = answer.json()["results"]
    assert (wrong["error"]["param"], good["status"]) == (param, "success")
    assert param in wrong["error"]["message"]


def test_events_and_batch_results_name_them_too(live: Live) -> None:
    named = [{"param": "unknown_field"}]
    done = live.speech(input="Hello.", stream_format="sse", unknown_field=1).text.split(
        "event: speech.audio.done"
    )[1]
    assert '"ignored":[{"param":"unknown_field"}]' in done
    results = live.http.post(
        "/v1/audio/speech/batch", json={"items": ["Hello."], "unknown_field": 1}
    ).json()["results"]
    assert results[0]["ignored"] == named
    with talk(live, configure=False) as t:
        t.send("session.config", unknown_field=1)
        assert t.get()["ignored"] == named
        events, _ = t.say("Hello.")
    assert events[-1]["ignored"] == named


def test_the_flag_that_ignored_unknown_fields_still_works(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    top = argparse.ArgumentParser()
    cli.define(top.add_subparsers().add_parser("serve"))
    assert cli.run(top.parse_args(["serve", "--ignore-unknown-fields", "--port", "70000"])) == 2
    assert "--ignore-unknown-fields is the default" in capsys.readouterr().err
    assert top.parse_args(["serve", "--no-ignore-unknown-fields"]).strict
    file = tmp_path / "server.yaml"
    for value in (True, False):
        file.write_text(f"ignore-unknown-fields: {value}\n".lower())
        assert build({}, file, {}).strict is not value
    assert not ServerConfig().strict


@pytest.mark.parametrize("name", ["instructions", "instruct"])
def test_an_absent_value_that_a_client_has_written_as_text_is_absent(name: str) -> None:
    assert getattr(SpeechBody(input="Hello.", **{name: "None"}), name) is None
    assert getattr(SpeechBody(input="Hello.", **{name: "None at all."}), name) == "None at all."
