"""OpenAI's batch files, and `input` as well as `text`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stentor
from stentor.batch.fields import unfolded
from stentor.errors import InvalidRequest
from tests.batch.runs import CUT, SOME_FAILED, manifest, speak


def line(id: str = "r-1", **body: Any) -> dict[str, Any]:
    return {
        "custom_id": id,
        "method": "POST",
        "url": "/v1/audio/speech",
        "body": {"model": "tts-1", "input": "Hello.", "voice": "alloy", **body},
    }


def test_a_file_of_openai_is_spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    generate = stentor.TTS.generate

    def heard(self: stentor.TTS, text: str, **options: Any) -> Any:
        asked.append({"text": text, **options})
        return generate(self, text, **options)

    monkeypatch.setattr(stentor.TTS, "generate", heard)
    made = [
        line(),
        line("r-2", voice={"id": "LOW"}, speed=2, response_format="pcm", seed=3),
        {"input": "One."},
    ]
    assert speak(tmp_path, made, "--format", "raw") == CUT
    rows = {row["id"]: row for row in manifest(tmp_path / "out")}
    assert list(rows) == ["r-1", "r-2", "00000003"]
    assert rows["r-2"]["seed"] == 3
    assert rows["r-2"]["seconds"] == pytest.approx(rows["r-1"]["seconds"] / 2)
    by_text = [(a["text"], a.get("voice")) for a in asked]
    expected = [("Hello.", "LOW"), ("Hello.", "alloy"), ("One.", None)]  # the engine resolves names
    assert sorted(by_text, key=str) == expected


def test_input_is_a_column_of_a_table(tmp_path: Path) -> None:
    assert speak(tmp_path, "custom_id,input\n7,12\n", "--input-format", "csv") == CUT
    (row,) = manifest(tmp_path / "out")
    assert (row["id"], row["segments"][0]["text"]) == ("7", "12")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"custom_id": "a", "body": "Hello."}, "body: must be an object, got str"),
    ({"body": {"input": "Hello."}}, "custom_id: is needed with body"),
    ({**line(), "method": "GET"}, "method: must be POST, got 'GET'"),
    ({**line(), "url": "/v1/embeddings"}, "url: must be /v1/audio/speech, got '/v1/embeddings'"),
    ({**line(), "text": "Hello."}, "text: is not known with body"),
    (
        line(model="kokoro-82m"),
        "body.model: is 'kokoro-82m', and this run speaks with dummy:toy (--model)",
    ),
    (line(model=["tts-1"]), "body.model: is"),
    (
        line(response_format="mp3"),
        "body.response_format: is 'mp3', and this run writes wav (--format)",
    ),
    (line(text="Hello."), "body.input: is another name for text: give one of them"),
    (line(id="two words"), "custom_id: 'two words' is no file name"),
    (
        {**line(), "body": {"id": "x", "input": "Hello."}},
        "body.id: is not known: custom_id names the item",
    ),
    (line(input="  "), "body.input: must not be empty"),
    (line(input=5), "body.input: must be a string, got int"),
    (line(voice={"name": "x"}, speed="fast"), "body.speed: must be a number"),
    ({"custom_id": "a", "body": {}}, "text: give text or text_file"),
    ({"input": "One.", "text": "Two."}, "input: is another name for text: give one of them"),
    (
        {"custom_id": {}, "body": {"input": "Hello."}},
        "custom_id: must be a string or a whole number",
    ),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[says[:32] for _, says in WRONG])
def test_a_wrong_line_is_named_by_its_own_words_and_the_others_are_spoken(
    wrong: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speak(tmp_path, [wrong, line("good")]) == SOME_FAILED
    assert f"line 1: {says}" in capsys.readouterr().err
    assert {row["id"]: row["status"] for row in manifest(tmp_path / "out")}["good"] == "ok"


def test_the_run_may_be_named_by_the_body() -> None:
    body = {"model": "mine", "input": "x", "response_format": "flac"}
    assert unfolded({"custom_id": 1, "body": body}, "mine", "flac")[0] == {"text": "x", "id": 1}
    with pytest.raises(InvalidRequest, match="the built-in voice"):
        unfolded({"custom_id": 1, "body": {"model": "mine", "input": "x"}}, None, "wav")
