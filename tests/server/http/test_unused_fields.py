"""Fields that a model does not use: named in an answer, or refused by a strict server."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from stentor.server import cli
from stentor.server.config import ServerConfig, build
from tests.helpers.server_live import Live, serving
from tests.helpers.ws_talk import talk

UNUSED = [
    ({"extra_params": {"nonsense": 1}}, "nonsense"),
    ({"unknown_field": 1}, "unknown_field"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), strict=True) as running:
        yield running


@pytest.mark.parametrize(("body", "param"), UNUSED, ids=[p for _, p in UNUSED])
def test_a_field_without_use_is_named_and_the_request_served(live: Live, strict: Live, body: dict, param: str) -> None:
    for how in ({}, {"stream_format": "audio"}, {"stream_format": "sse"}):
        answer = live.speech(input="Hello.", **how, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored"] == param
    refused = strict.speech(input="Hello.", **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert param in refused.json()["error"]["message"]


def test_what_is_used_is_not_named(live: Live, strict: Live) -> None:
    for server in (live, strict):
        answer = server.speech(input="Hello.", temperature=0.5, user="u", extra_params={"top_k": 3})
        assert answer.status_code == 200
        assert "x-ignored" not in answer.headers


def test_events_and_batch_results_name_them_too(live: Live) -> None:
    named = [{"param": "unknown_field"}]
    done = live.speech(input="Hello.", stream_format="sse", unknown_field=1).text.split("event: speech.audio.done")[1]
    assert '"ignored":[{"param":"unknown_field"}]' in done
    results = live.http.post("/v1/audio/speech/batch", json={"items": ["Hello."], "unknown_field": 1}).json()["results"]
    assert results[0]["ignored"] == named
    with talk(live, configure=False) as t:
        t.send("session.config", unknown_field=1)
        assert t.get()["ignored"] == named
        events, _ = t.say("Hello.")
    assert events[-1]["ignored"] == named


def test_the_flag_that_ignored_unknown_fields_still_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    top = argparse.ArgumentParser()
    cli.add_parser(top.add_subparsers())
    assert cli.run(top.parse_args(["serve", "--ignore-unknown-fields", "--port", "70000"])) == 2
    assert "--ignore-unknown-fields is the default" in capsys.readouterr().err
    assert top.parse_args(["serve", "--no-ignore-unknown-fields"]).strict
    file = tmp_path / "server.yaml"
    for value in (True, False):
        file.write_text(f"ignore-unknown-fields: {value}\n".lower())
        assert build({}, file, {}).strict is not value
    assert not ServerConfig().strict
