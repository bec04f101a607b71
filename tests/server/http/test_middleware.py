"""Middleware: body sizes, request ids, paths."""

from __future__ import annotations

import gzip
import json
import select
import socket
from pathlib import Path

import pytest

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, serving

ASK = {"input": "Hello there, you.", "seed": 5, "response_format": "pcm", "guard": False}


def test_bodies_of_100_mb_are_refused_before_they_are_read(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), STUCK_S) as s:
        s.sendall(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n{"
        )
        assert s.recv(100).startswith(b"HTTP/1.1 413")


def test_bodies_that_hide_their_size_are_cut_off(live: Live) -> None:
    """The client reads while it sends: a proxy reads no more of a body that was answered, and does not hang up."""
    host, port = live.url.removeprefix("http://").split(":")
    part = b"%x\r\n%s\r\n" % (1 << 20, b"x" * (1 << 20))
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    left, sent, answer = head + b"Transfer-Encoding: chunked\r\n\r\n" + part, 0, b""
    with socket.create_connection((host, int(port)), STUCK_S) as s:
        s.setblocking(False)
        while not answer and sent < 100 << 20:
            readable, writable, _ = select.select([s], [s], [], STUCK_S)
            assert readable or writable
            try:
                if readable:
                    answer = s.recv(100)
                    break
                count = s.send(left) if writable else 0
            except ConnectionError:  # the server has closed while we were still sending
                break
            sent, left = sent + count, left[count:] or part
    assert answer[9:12] in (b"413", b"")
    assert sent < 100 << 20  # the server has hung up on the way
    assert live.speech(**ASK).status_code == 200


@pytest.mark.parametrize("length", ["-1", "1e9", "99999999999999999999", "0x10"])
def test_lengths_that_are_none_are_refused(live: Live, length: str) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), STUCK_S) as s:
        s.sendall(
            f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{{".encode()
        )
        assert s.recv(100).split(b" ")[1] in (b"400", b"413")


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/voices"])
def test_a_compressed_body_is_refused_as_such(live: Live, path: str) -> None:
    """It was told to be no JSON, because of surrogates."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = live.http.post(path, content=gzip.compress(json.dumps(ASK).encode()), headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (415, "invalid_request_error")
    assert (
        answer.json()["error"]["message"]
        == "Content-Encoding: 'gzip' is not read; send the body as it is"
    )
    plain = {"Content-Encoding": "identity"}
    assert live.http.post("/v1/audio/speech", json=ASK, headers=plain).status_code == 200


def test_no_header_of_an_answer_can_be_made_by_a_request(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    body = b'{"input": "x", "voice": "a\\r\\nX-Evil: 1", "model": "m\\r\\nX-Evil: 1"}'
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\x0bb\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), STUCK_S) as s:
        s.sendall(head + body)
        answer = s.recv(10_000)
    assert b"\r\nx-evil" not in answer.lower()
    for id in ("ü", "a" * 5000):
        found = live.http.post(
            "/v1/audio/speech", json=ASK, headers=[(b"X-Request-Id", id.encode())]
        )
        assert found.headers["x-request-id"].startswith("req-")


def test_slashes_in_a_row_are_one(live: Live) -> None:
    """A client that joins a base URL with a slash at its end and a path."""
    for path in ("//v1/models", "/v1//models", "///v1/models///dummy:toy", "//health"):
        assert live.http.get(live.url + path).status_code == 200, path
    assert live.http.post(live.url + "/v1//audio/speech", json=ASK).status_code == 200


def test_a_model_of_a_directory_has_a_name_that_begins_with_a_slash(tmp_path: Path) -> None:
    with serving(tmp_path, served_model_name=("/models/toy",)) as live:
        for path in (
            "/v1/models//models/toy",
            "/v1/models/%2Fmodels%2Ftoy",
            "/v1/models/models/toy",
        ):
            assert live.http.get(live.url + path).json()["id"] == "/models/toy"


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_answers_head(live: Live, path: str) -> None:
    answer = live.http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 0
