"""JSON bodies that are built to take long."""

from __future__ import annotations

import asyncio
import codecs
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from stentor.server.http import bodies
from stentor.server.limits import LIMITS
from tests.helpers.server_live import Live

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("part", [b"[]", b"{}", b"0", b'""', b'{"a":[0]}'])
def test_many_values_are_refused_before_they_are_parsed(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "loads", lambda body: pytest.fail("was parsed"))
    body = b"[" + b",".join([part] * (LIMITS.json_values + 1)) + b"]"
    with ThreadPoolExecutor(1) as pool, pytest.raises(HTTPException) as e:
        asyncio.run(bodies.parse(body, pool))
    assert e.value.status_code == 400


def test_large_bodies_are_parsed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def loads(body: bytes) -> Any:
        threads.append(threading.current_thread())
        return len(body)

    monkeypatch.setattr(bodies, "loads", loads)
    limit = LIMITS.inline_json_kib << 10
    with ThreadPoolExecutor(1) as pool:
        assert asyncio.run(bodies.parse(b" " * limit, pool)) == limit
        assert asyncio.run(bodies.parse(b" " * (limit + 1), pool)) == limit + 1
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


def test_a_large_body_of_empty_lists_gets_a_short_answer(live: Live) -> None:
    body = b'{"input": "x", "temperature": [' + b"[]," * (7 << 20) + b"[]]}"
    answer = live.http.post("/v1/audio/speech", content=body, headers=JSON)
    assert answer.status_code == 400
    assert len(answer.content) < 500
    batch = live.http.post("/v1/audio/speech/batch", content=body, headers=JSON)
    assert batch.status_code == 400


def test_a_large_honest_body_is_heard(live: Live) -> None:
    body = {
        "input": "Hello there, you.",
        "instructions": None,
        "extra_params": {},
        "user": "x" * 200_000,
    }
    assert live.http.post("/v1/audio/speech", json=body).status_code == 200


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
@pytest.mark.parametrize(
    "kind", ["application/json", "application/vnd.api+json; charset=utf-8", "text/plain"]
)
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'"text"', b"1"])
def test_what_is_no_object_is_said(live: Live, path: str, kind: str, body: bytes) -> None:
    answer = live.http.post(path, content=body, headers={"Content-Type": kind})
    assert answer.status_code == 400
    assert "must be a JSON object" in answer.json()["error"]["message"]


def test_what_is_not_json_is_said(live: Live) -> None:
    answer = live.http.post("/v1/audio/speech", content=b'{"input": ', headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"
    unnamed = live.http.post(
        "/v1/audio/speech", content=b'{"input": "Hello."}', headers={"Content-Type": ""}
    )
    assert unnamed.status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/audio/speech", {"input": "Marked."}),
        ("/v1/audio/speech/batch", {"items": [{"input": "Marked."}]}),
        ("/v1/text-to-speech/low", {"text": "Marked, \ud83d."}),
    ],
)
def test_a_byte_order_mark_before_a_body_is_passed_over(
    live: Live, path: str, body: dict[str, Any]
) -> None:
    content = codecs.BOM_UTF8 + json.dumps(body).encode()
    answer = live.http.post(path, content=content, headers=JSON)
    assert answer.status_code == 200, answer.text
    twice = live.http.post(path, content=codecs.BOM_UTF8 + content, headers=JSON)
    assert twice.status_code == 400
