"""Clients of HTTP/1.0, such as old players and nginx as a proxy: no chunks, and a body that ends with the connection."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse

import numpy as np
import pytest

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, held, pcm

ASK = {"input": "Hello there, you.", "seed": 5, "response_format": "pcm", "guard": False}


def sent(live: Live, method: str, path: str, body: dict | None = None) -> socket.socket:
    host, port = live.url.removeprefix("http://").split(":")
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    s = socket.create_connection((host, int(port)), STUCK_S)
    s.sendall(head.encode() + data)
    return s


def answered(s: socket.socket, method: str = "POST") -> HTTPResponse:
    answer = HTTPResponse(s, method=method)
    answer.begin()
    return answer


@pytest.mark.parametrize(
    "how", [{}, {"stream_format": "sse"}, {"stream": False}], ids=["stream", "events", "whole"]
)
def test_an_answer_has_no_chunks_and_is_the_same(live: Live, how: dict) -> None:
    with sent(live, "POST", "/v1/audio/speech", {**ASK, **how}) as s, answered(s) as answer:
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert "transfer-encoding" not in answer.headers
        assert ("content-length" in answer.headers) == ("stream" in how)
        data = answer.read()  # to the end of the connection
    if "stream_format" in how:
        assert data.startswith(b"event: speech.audio.delta\n")
        assert b"event: speech.audio.done\n" in data
    else:
        whole = pcm(live.speech(**ASK).content)
        assert len(pcm(data)) == len(whole)
        assert np.abs(pcm(data) - whole).max() < 2.1 / 32768


def test_a_stream_comes_while_it_is_made(live: Live) -> None:
    ask = {**ASK, "stream": True, "min_frames": 60, "max_frames": 60}
    with (
        held(live, frames=[20]) as engine,
        sent(live, "POST", "/v1/audio/speech", ask) as s,
        answered(s) as answer,
    ):
        assert answer.read(2)
        assert live.tts.engine.health().running == 1
        engine.go()
        assert len(answer.read()) == 60 * 6 * 2 - 2


def test_errors_and_lists_have_their_length(live: Live) -> None:
    for method, path, body, status in (
        ("POST", "/v1/audio/speech", {"input": "x", "speed": 9}, 400),
        ("GET", "/v1/models", None, 200),
        ("HEAD", "/health", None, 200),
        ("GET", "/nothing", None, 404),
    ):
        with sent(live, method, path, body) as s, answered(s, method) as answer:
            assert answer.status == status
            assert int(answer.headers["content-length"]) > 0
            assert (answer.read() == b"") == (method == "HEAD")
