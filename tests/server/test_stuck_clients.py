"""Clients that begin and never go on, in all the ways they can, against a server process: nobody else waits for them,
and the server ends in its time, with code 0 and no traceback."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import sys
from pathlib import Path

import httpx
import pytest

from tests.helpers import certificate
from tests.helpers.certificate import NEEDS_OPENSSL
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import process
from tests.helpers.stuck_clients import POST, address, stuck

LONG = {
    "input": "A long text.",
    "min_frames": 4000,
    "max_frames": 4000,
    "guard": False,
    "stream_format": "audio",
}
BODY = json.dumps(LONG).encode()
UNREAD = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
"""A request whose answer is not read."""


FLAGS = ("--drain-seconds", "1", "--max-active-requests", "20", "--max-buffered-mb", "64")


def served(url: str, **how: object) -> bool:
    with httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False, **how) as http:  # type: ignore[arg-type]
        return http.get("/v1/models").status_code == 200


@pytest.mark.parametrize("processes", [1, 2])
def test_a_server_ends_in_its_time_whatever_its_clients_do(tmp_path: Path, processes: int) -> None:
    log: list[str] = []
    flags = (*FLAGS, "--api-processes", str(processes), "--voices-dir", str(tmp_path))
    with process(*flags, log=log) as (running, url), stuck(url, 6, UNREAD):
        assert served(url)
        running.send_signal(signal.SIGTERM)
        assert running.wait(STUCK_S) == 0
    assert "Traceback" not in "".join(log), "".join(log)


FEW = ("bash", "-c", 'ulimit -n 400; exec "$@"', "few", sys.executable, "-m", "stentor")
"""The command with so few descriptors that 320 connections leave none."""


def test_stuck_clients_keep_nobody_out_where_descriptors_are_few(tmp_path: Path) -> None:
    log: list[str] = []
    with process(*FLAGS, "--voices-dir", str(tmp_path), command=FEW, log=log) as (running, url):
        for _ in range(2):
            with stuck(url, 32):
                assert served(url)
                assert speaks(url)
        running.send_signal(signal.SIGTERM)
        assert running.wait(STUCK_S) == 0
    assert "Traceback" not in "".join(log), "".join(log)


def speaks(url: str) -> bool:
    """Whether a request is answered, whatever others have begun."""
    ask = {"input": "Hello there, you.", "response_format": "pcm"}
    return (
        httpx.post(f"{url}/v1/audio/speech", json=ask, timeout=STUCK_S, trust_env=False).status_code
        == 200
    )


def hello() -> bytes:
    """First bytes of a TLS client."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), out, server_hostname="localhost"
        ).do_handshake()
    return out.read()


@NEEDS_OPENSSL
def test_handshakes_of_tls_that_do_not_end_keep_nobody_out(tmp_path: Path) -> None:
    made = certificate.make(tmp_path)
    trust = ssl.create_default_context(cafile=str(made.certificate))
    log: list[str] = []
    with process(
        *FLAGS, *made.flags, "--voices-dir", str(tmp_path / "v"), command=FEW, log=log
    ) as (running, url):
        begun = hello()
        with contextlib.ExitStack() as stack:
            for sent in [
                b"",
                begun[:7],
                begun,
                begun[:-1],
                b"GET / HTTP/1.1\r\n\r\n",
                bytes(range(99)),
            ] * 60:
                s = stack.enter_context(socket.create_connection(address(url), STUCK_S))
                with contextlib.suppress(ConnectionError):
                    s.sendall(sent)
            assert served(url, verify=trust)
            running.send_signal(signal.SIGTERM)
            assert running.wait(STUCK_S) == 0
    assert "Traceback" not in "".join(log), "".join(log)
