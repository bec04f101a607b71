"""Middleware: body sizes, request ids."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.helpers.server_live import Live

ASK = {"input": "Hello there, you.", "seed": 5, "response_format": "pcm", "guard": False}


def test_bodies_of_100_mb_are_refused_before_they_are_read(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as s:
        s.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n{")
        assert s.recv(100).startswith(b"HTTP/1.1 413")


def test_bodies_that_hide_their_size_are_cut_off(live: Live) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        yield b'{"input": "'
        while sent < 100 << 20:
            sent += 1 << 20
            yield b"x" * (1 << 20)

    try:
        answer = live.http.post("/v1/audio/speech", content=parts(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
    except (httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
        pass  # the server has closed while we were still sending
    assert sent < 100 << 20  # the server has hung up on the way
    assert live.speech(**ASK).status_code == 200


@pytest.mark.parametrize("length", ["-1", "1e9", "99999999999999999999", "0x10"])
def test_lengths_that_are_none_are_refused(live: Live, length: str) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as s:
        s.sendall(f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{".encode())
        assert s.recv(100).split(b" ")[1] in (b"400", b"413")


def test_no_header_of_an_answer_can_be_made_by_a_request(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    body = b'{"input": "x", "voice": "a\\r\\nX-Evil: 1", "model": "m\\r\\nX-Evil: 1"}'
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x0bb\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 60) as s:
        s.sendall(head + body)
        answer = s.recv(10_000)
    assert b"\r\nx-evil" not in answer.lower()
    for id in ("ü", "a" * 5000):
        found = live.http.post("/v1/audio/speech", json=ASK, headers=[(b"X-Request-Id", id.encode())])
        assert found.headers["x-request-id"].startswith("req-")
