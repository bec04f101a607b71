"""Errors are short, say nothing of the inside, and are counted by a fixed set of reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from stentor.errors import EngineError, Overloaded
from stentor.server.errors import ApiError, translate
from stentor.server.limits import LIMITS
from tests.helpers.server_live import Live, serving

TEXT = "Hello there, you."


def post(live: Live, text: str, path: str = "/v1/audio/speech") -> httpx.Response:
    return live.http.post(path, content=text.encode(), headers={"Content-Type": "application/json"})


LARGE = "[" + "[]," * 40_000 + "[]]"
HOSTILE = [
    f'{{"input": "x", "temperature": {LARGE}}}',
    f'{{"input": "x", "extra_params": {{"temperature": {LARGE}}}}}',
    f'{{"input": "x", "extra_params": {{"{"k" * 40_000}": 1}}}}',
    f'{{"input": "x", "{"k" * 40_000}": 1}}',
    f'{{"input": "x", "model": "{"m" * 499}"}}',
    f'{{"input": "x", "voice": "{"v" * 40_000}"}}',
    f'{{"input": "x", "language": {LARGE}}}',
    f'{{"input": "x", "references": [{{"{"k" * 40_000}": 1}}]}}',
    f'{{"input": "x", "seed": {"9" * 4000}}}',
    f'{{"input": "x", "temperature": {"9" * 400}}}',
    f'{{"input": "x", "temperature": -{"9" * 4000}}}',
    f'{{"input": "x", "temperature": {"9" * 9000}}}',
    f'{{"input": "x", "speed": {"9" * 16}}}',
    '{"input": "x", "extra_params": {"\\ud800": 1}}',
    '{"input": "x", "\\ud800\\ud800": 1}',
    '{"input": "x", "voice": "\\udfff"}',
]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that refuses fields by the names that clients chose."""
    with serving(tmp_path_factory.mktemp("voices"), strict=True) as running:
        yield running


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_an_error_is_short_whatever_was_sent(strict: Live, body: str) -> None:
    answer = post(strict, body)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 4 * LIMITS.error_chars
    assert len(answer.json()["error"]["message"]) <= LIMITS.error_chars


def test_names_that_clients_choose_never_become_metrics(strict: Live) -> None:
    for name in ("surrogate \\ud800", "name 1", "name 2", "x" * 40):
        assert post(strict, f'{{"input": "x", "extra_params": {{"{name}": 1}}}}').status_code == 400
    assert strict.speech(input=TEXT, speed=9).status_code == 400
    metrics = strict.http.get("/metrics")
    assert metrics.status_code == 200
    reasons = [
        line for line in metrics.text.splitlines() if line.startswith("stentor:rejected_total")
    ]
    assert any('reason="invalid"' in line for line in reasons)
    assert not [line for line in reasons if "surrogate" in line or "name" in line or "xxx" in line]


@pytest.mark.parametrize(
    "error", [EngineError("CUDA error in /root/x.py"), Overloaded("/root"), KeyError("/root")]
)
def test_texts_of_exceptions_stay_inside(error: Exception) -> None:
    assert "root" not in json.dumps(translate(error).body)


def test_a_message_is_valid_unicode() -> None:
    error = ApiError(400, "a \ud800 b", param="\udfff" * 500)
    assert error.message == "a ? b"
    assert error.param is not None
    assert len(error.param) <= 80
    assert error.param.startswith("???")


WRONG = [
    ("stream", "yes"),
    ("stream_format", "flac"),
    ("timestamps", "words"),
    ("word_timestamps", 1),
    ("speed", 9),
    ("seed", -2),
    ("response_format", "exe"),
    ("references", [{"text": 1}]),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_field_in_a_batch_is_said_by_name(live: Live, field: str, value: object) -> None:
    shared = live.http.post("/v1/audio/speech/batch", json={"items": [TEXT], field: value})
    assert shared.status_code == 400
    assert shared.json()["error"]["param"].startswith(field)
    own = live.http.post(
        "/v1/audio/speech/batch", json={"items": [TEXT, {"input": TEXT, field: value}]}
    )
    first, second = own.json()["results"]
    assert first["status"] == "success"
    assert (second["status"], second["error"]["param"]) == ("error", f"items.1.{field}")
