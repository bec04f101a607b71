"""Several voices in one answer of POST /v1/audio/speech: a script, or marks in the input."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.server.limits import LIMITS
from tests.helpers.server_live import Live, either_engine, pcm, serving, tone_wav

ASK: dict[str, Any] = {"seed": 5, "min_frames": 8, "max_frames": 8, "guard": False}
SCRIPT = [
    {"voice": "low", "text": "Did you hear that?"},
    {"voice": "HIGH", "text": "Hear what? Oh.", "pause": 1.5},
    {"text": "They went on."},
]
SPOKEN = 8 * 6 / 600  # seconds of a turn


def turns(segments: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(s["voice"], s["turn"], s["start_char"], s["end_char"]) for s in segments]


@either_engine
def test_a_script_is_one_answer_in_its_voices(live: Live) -> None:
    body = {"script": SCRIPT, "voice": "high", "response_format": "pcm", **ASK}
    whole, streamed = live.speech(**body, stream=False), live.speech(**body)
    assert int(whole.headers["content-length"]) == len(whole.content)
    assert "content-length" not in streamed.headers
    assert (
        len(pcm(whole.content))
        == round((3 * SPOKEN + 0.25 + 1.5) * 600)
        == len(pcm(streamed.content))
    )
    assert np.abs(pcm(whole.content) - pcm(streamed.content)).max() < 2.1 / 32768
    for text, voice, start in (
        ("Did you hear that?", "low", 0),
        ("Hear what? Oh.", "high", SPOKEN + 0.25),
    ):
        alone = pcm(live.speech(input=text, voice=voice, response_format="pcm", **ASK).content)[
            5:40
        ]
        at = round(start * 600) + 5
        assert np.abs(pcm(whole.content)[at : at + 35] - alone).max() < 2.1 / 32768


@either_engine
def test_times_and_subtitles_say_who_speaks(live: Live) -> None:
    body = {"script": SCRIPT, "response_format": "wav", **ASK}
    answer = live.speech(**body, timestamps="srt").json()
    assert turns(answer["segments"]) == [
        ("low", 0, 0, 18),
        ("HIGH", 1, 0, 10),
        ("HIGH", 1, 11, 14),
        (None, 2, 0, 13),
    ]
    cues = answer["subtitles"].split("\n\n")
    assert [cue.splitlines()[-1] for cue in cues] == [
        "low: Did you hear that?", "HIGH: Hear what? Oh.", "They went on."
    ]  # fmt: skip
    assert "<v low>Did you hear that?" in live.speech(**body, timestamps="vtt").json()["subtitles"]
    events = live.speech(**body, timestamps="json", stream_format="sse").text.splitlines()
    found = [json.loads(line[6:]) for line in events if line.startswith("data: ")]
    assert turns([e for e in found if e["type"] == "speech.audio.segment"]) == turns(
        answer["segments"]
    )
    streamed = live.speech(**body, stream=True)
    at = f"/v1/audio/speech/{streamed.headers['x-request-id']}/timestamps"
    assert live.http.get(at, params={"format": "vtt"}).text.count("<v HIGH>") == 1


def test_marks_in_the_input_are_the_same_dialogue(live: Live) -> None:
    text = "[voice: low] Did you hear that? [voice: HIGH] Hear what? Oh. [pause 1.5s] [voice: low] They went on."
    by_marks = live.speech(
        input=text, response_format="wav", timestamps="json", split_granularity="auto", **ASK
    ).json()
    script = [*SCRIPT[:2], {"voice": "low", "text": "They went on."}]
    by_script = live.speech(script=script, response_format="wav", timestamps="json", **ASK).json()
    assert len(by_marks["audio"]) == len(by_script["audio"])
    for s in by_marks["segments"]:
        assert text[s["start_char"] : s["end_char"]] == s["text"]
    assert [(s["voice"], s["turn"]) for s in by_marks["segments"]] == [
        (s["voice"], s["turn"]) for s in by_script["segments"]
    ]


def test_a_text_without_marks_has_no_turns(live: Live) -> None:
    answer = live.speech(
        input="Hi. [voices: two] You.", response_format="wav", timestamps="json", **ASK
    ).json()
    assert all("turn" not in s and "voice" not in s for s in answer["segments"])


def test_a_batch_takes_scripts(live: Live) -> None:
    items = [
        {"script": SCRIPT},
        {"input": "[voice: low] One."},
        {"script": [{"voice": "nobody", "text": "x"}]},
        "Two.",
    ]
    results = live.http.post(
        "/v1/audio/speech/batch", json={"items": items, "response_format": "pcm", **ASK}
    ).json()["results"]
    assert [r["status"] for r in results] == ["success", "success", "error", "success"]
    assert len(base64.b64decode(results[0]["audio"])) == 2 * round((3 * SPOKEN + 1.75) * 600)
    assert results[2]["error"]["param"] == "script[0].voice"


def test_uploaded_voices_aliases_and_openais_names_are_voices_of_a_dialogue(tmp_path: Path) -> None:
    with serving(tmp_path / "voices", voice_alias=("narrator=low",)) as live:
        form = {"name": "anna", "consent": "yes"}
        sent = live.http.post(
            "/v1/audio/voices",
            data=form,
            files={"audio_sample": ("a.wav", tone_wav(1.0), "audio/wav")},
        )
        assert sent.status_code == 200, sent.text
        script = [
            {"voice": name, "text": "One."}
            for name in ("narrator", "anna", "alloy", "default", "anna")
        ]
        answer = live.speech(script=script, response_format="wav", timestamps="json", **ASK).json()
        assert [s["voice"] for s in answer["segments"]] == [
            "narrator",
            "anna",
            "alloy",
            "default",
            "anna",
        ]
        audio = np.frombuffer(base64.b64decode(answer["audio"])[44:], "<i2").astype(float)
        parts = [audio[round(s["start"] * 600) + 5 :][:30] for s in answer["segments"]]
        assert np.abs(parts[1] - parts[4]).max() < 3
        assert np.abs(parts[1] - parts[0]).max() > 100


def test_what_is_not_used_is_named(live: Live, tmp_path: Path) -> None:
    script = [
        {"voice": "low", "text": "One.", "speed": 2},
        {"voice": "high", "text": "Two.", "pause": None},
    ]
    answer = live.speech(script=script, voice="high", input=None, **ASK)
    assert answer.headers["x-ignored"] == "script[0].speed, voice"
    assert "x-ignored" not in live.speech(script=[*SCRIPT], voice="high", **ASK).headers
    with serving(tmp_path / "voices", strict=True) as strict:
        assert strict.speech(script=script, **ASK).json()["error"]["param"] == "script[0].speed"
        assert (
            strict.speech(script=script[1:], voice="low", **ASK).json()["error"]["param"] == "voice"
        )


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": None, "script": None}, "input"),
    ({"input": "Hi.", "script": SCRIPT}, "script"),
    ({"script": []}, "script"),
    ({"script": "Hi."}, "script"),
    ({"script": {"text": "Hi."}}, "script"),
    ({"script": ["Hi."]}, "script[0]"),
    ({"script": [{"voice": "low"}]}, "script[0].text"),
    ({"script": [{"text": 5}]}, "script[0].text"),
    ({"script": [{"text": "Hi."}, {"text": "  "}]}, "script[1].text"),
    ({"script": [{"text": "[pause 1s]"}]}, "script[0].text"),
    ({"script": [{"text": "Hi.", "voice": 5}]}, "script[0].voice"),
    ({"script": [{"text": "Hi."}, {"text": "Hi.", "voice": "nobody"}]}, "script[1].voice"),
    ({"script": [{"text": "Hi.", "voice": "x" * 5000}]}, "script[0].voice"),
    ({"script": [{"text": "Hi.", "pause": -1}]}, "script[0].pause"),
    ({"script": [{"text": "Hi.", "pause": 11}]}, "script[0].pause"),
    ({"script": [{"text": "Hi.", "pause": "1"}]}, "script[0].pause"),
    ({"script": [{"text": "Hi.", "pause": 10}] * 13}, "script"),
    ({"script": [{"text": "Hi."}] * 1001}, "script"),
    ({"script": [{"text": "Hi.", "voice": f"v{i}"} for i in range(17)]}, "script"),
    ({"script": [{"text": "x" * 15_000}] * 2}, "script"),
    ({"input": "[voice: nobody] Hi."}, "input"),
    ({"input": "[voice: low] [voice: high]"}, "input"),
    ({"script": [{"voice": "low", "text": "Hi."}], "response_format": "ogg"}, "response_format"),
]


@pytest.mark.parametrize(
    ("body", "param"), BAD, ids=[f"{i}-{param}" for i, (_, param) in enumerate(BAD)]
)
def test_what_is_wrong_is_named(live: Live, body: dict[str, Any], param: str) -> None:
    answer = live.speech(**body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len(answer.json()["error"]["message"]) <= LIMITS.error_chars
    assert live.idle()


def test_a_client_that_leaves_ends_all_turns(live: Live) -> None:
    body = {
        "script": [{"voice": "low", "text": "One."}, {"voice": "high", "text": "Two."}] * 20,
        "response_format": "pcm",
    }
    ask = {**body, "min_frames": 400, "max_frames": 400, "guard": False}
    with live.http.stream("POST", "/v1/audio/speech", json=ask) as answer:
        next(answer.iter_raw())
    assert live.idle()
