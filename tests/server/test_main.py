"""A server process: signals, TLS, a configuration file, a unix socket."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
import uvicorn

from stentor.errors import InvalidRequest
from stentor.server.config import ServerConfig
from stentor.server.http.connections import Connection
from stentor.server.main import _run, _sockets, _Uvicorn
from stentor.server.stop_signals import StopSignals
from tests.helpers import certificate, numpy_threads
from tests.helpers.certificate import NEEDS_OPENSSL
from tests.helpers.patience import STUCK_S, until
from tests.helpers.planted import LOADS_FOR_EVER, planted, serve_command
from tests.helpers.server_live import process
from tests.helpers.virtual_time import VirtualTimeLoop, run

TEXT = "Hello there, you."


LONG = {"input": "A long text, said slowly.", "min_frames": 300, "max_frames": 300, "guard": False}


def refuses(url: str) -> bool:
    """Whether the server takes no connection any more."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), STUCK_S).close()
    except ConnectionError:
        return True
    return False


def ending() -> _Uvicorn:
    """A server that ends within 10 s, and has something that runs for longer."""
    state: Any = SimpleNamespace(drain=asyncio.Event(), ended=asyncio.Event())
    config = uvicorn.Config(lambda: None, lifespan="off", timeout_graceful_shutdown=10)
    server = _Uvicorn(config, state, StopSignals())
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    server.servers = []
    server.server_state.tasks.add(asyncio.create_task(asyncio.sleep(1000)))
    return server


def test_products_of_numpy_take_one_thread_in_a_server() -> None:
    """Each API process has an aligner."""
    seen: list[int] = []
    server = SimpleNamespace(
        run=lambda sockets: seen.extend(numpy_threads.counts()),
        stop=StopSignals(),
        exit_code=None,
        started=True,
    )
    with numpy_threads.two_before():
        assert _run(server) == 0  # type: ignore[arg-type]
    assert set(seen) == {1}


def test_http_and_websockets_have_one_time_to_end() -> None:
    async def main(loop: VirtualTimeLoop) -> float:
        server, began = ending(), loop.time()
        await server.shutdown()
        assert server.state.ended.is_set()
        return loop.time() - began

    assert 10 <= run(main) < 13


def test_an_idle_connection_is_closed_while_others_are_served() -> None:
    """Its client would go on to ask."""

    async def main(loop: VirtualTimeLoop) -> None:
        server, transport = ending(), MagicMock(asyncio.Transport)
        connection = Connection(server.config, server.server_state, {})
        connection.connection_made(transport)
        over = loop.create_task(server.shutdown())
        await asyncio.sleep(1)
        assert transport.close.called
        assert not server.state.ended.is_set()
        connection.connection_lost(None)
        await over

    run(main)


def test_sigterm_lets_running_answers_end(tmp_path: Path) -> None:
    with (
        process("--voices-dir", str(tmp_path), "--drain-seconds", "300") as (running, url),
        httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False) as http,
    ):
        ask = {**LONG, "stream_format": "audio", "response_format": "pcm", "seed": 5}
        with http.stream("POST", "/v1/audio/speech", json=ask) as answer:
            parts = answer.iter_raw()
            data = next(parts)
            running.send_signal(signal.SIGTERM)
            assert until(partial(refuses, url))
            data += b"".join(parts)
        assert len(data) == 300 * 6 * 2
        assert running.wait(STUCK_S) == 0


def test_a_second_sigint_ends_what_runs_with_an_answer(tmp_path: Path) -> None:
    log: list[str] = []
    with (
        process("--voices-dir", str(tmp_path), "--drain-seconds", "300", log=log) as (running, url),
        httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False) as http,
    ):
        ask = {**LONG, "min_frames": 4000, "max_frames": 4000, "stream_format": "sse"}
        with http.stream("POST", "/v1/audio/speech", json=ask) as answer:
            parts = answer.iter_raw()
            data = next(parts)
            running.send_signal(signal.SIGINT)
            assert until(partial(refuses, url))
            running.send_signal(signal.SIGINT)
            rest: list[bytes] = []
            with pytest.raises(httpx.RemoteProtocolError):  # a failed answer has no last chunk
                rest.extend(parts)
            data += b"".join(rest)
        assert b"shutting_down" in data.split(b"event:")[-1]
        assert running.wait(STUCK_S) == 0
    assert not [line for line in log if "Traceback" in line or " ERROR " in line]


def test_sigterm_does_not_wait_for_a_load(tmp_path: Path) -> None:
    words = serve_command(tmp_path / "v")
    env = planted(tmp_path, LOADS_FOR_EVER)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env) as running:
        try:
            assert running.stderr is not None
            left = {"running on", "loads in process"}
            for line in running.stderr:
                left -= {words for words in left if words in line}
                if "loads in process" in line:
                    engine = int(line.split()[-1])
                if not left:
                    break
            assert not left
            running.send_signal(signal.SIGTERM)
            assert running.wait(STUCK_S) == 0
        finally:
            running.kill()
    assert not Path(f"/proc/{engine}").exists()


@NEEDS_OPENSSL
def test_tls_is_spoken_with_a_certificate(tmp_path: Path) -> None:
    made = certificate.make(tmp_path)
    with process(*made.flags, "--voices-dir", str(tmp_path / "v")) as (_, url):
        assert url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(made.certificate))
        with httpx.Client(verify=trust, base_url=url, timeout=STUCK_S, trust_env=False) as http:
            assert http.post("/v1/audio/speech", json={"input": TEXT}).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health", timeout=STUCK_S, trust_env=False)


def test_a_config_file_and_a_unix_socket_do(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text(
        "default-response-format: wav\nvoice-alias: [alloy=low]\ndefault-sample-rate: 24000\nmax_input_chars: 50\n"
    )
    sock = tmp_path / "s"
    flags = (
        "--config",
        str(tmp_path / "server.yaml"),
        "--uds",
        str(sock),
        "--voices-dir",
        str(tmp_path / "v"),
    )
    log: list[str] = []
    with (
        process(*flags, "--log-format", "json", log=log) as (running, _),
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://x", timeout=STUCK_S
        ) as http,
    ):
        answer = http.post("/v1/audio/speech", json={"input": TEXT, "voice": "alloy"})
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.headers["x-sample-rate"] == "24000"
        assert http.post("/v1/audio/speech", json={"input": "x" * 51}).status_code == 400
        running.send_signal(signal.SIGTERM)
        assert running.wait(STUCK_S) == 0
    lines = [json.loads(line) for line in log]
    assert {line["logger"] for line in lines} == {
        "stentor.server",
        "stentor.engine",
        "stentor.access",
    }
    access = sorted(line["status"] for line in lines if line["logger"] == "stentor.access")
    assert access == [200, 400]  # a line is written after its client has read the answer


def test_an_address_in_use_is_told_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        flags = ("serve", "dummy:toy", "--port", str(other.getsockname()[1]))
        run = subprocess.run(
            [sys.executable, "-m", "stentor", *flags],
            capture_output=True,
            text=True,
            timeout=STUCK_S,
            check=False,
        )
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1
    assert "Address already in use" in run.stderr


def test_a_name_with_an_address_that_this_machine_lacks_is_listened_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`localhost` is ::1 too, which a container may not have."""
    addresses = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ("203.0.113.9", "127.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **how: addresses)
    [found] = _sockets(ServerConfig(), 0)
    with found:
        assert found.getsockname()[0] == "127.0.0.1"
    addresses.pop()
    with pytest.raises(OSError, match="Cannot assign requested address"):
        _sockets(ServerConfig(), 0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"voices_dir": "~nobody-of-this-name/voices"},
            "voices_dir: '~nobody-of-this-name/voices' is no path",
        ),
        ({"allowed_local_media_path": ""}, "allowed_local_media_path: '' is no path"),
        ({"allowed_lora_path": ""}, "allowed_lora_path: '' is no path"),
        ({"uds": "/nowhere/at/all/a.sock"}, "uds: folder '/nowhere/at/all' does not exist"),
        ({"uds": __file__}, f"uds: {__file__!r} exists and is no socket"),
        ({"served_model_name": ("",)}, "served_model_name: must be names"),
        ({"models": ("dummy:toy", "dummy:toy")}, "served_model_name: must be names that differ"),
    ],
)
def test_paths_and_names_that_cannot_be_are_refused_before_a_model_is_loaded(
    settings: dict, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        ServerConfig(**settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_timeout", float("nan")),
        ("ws_idle_seconds", float("inf")),
        ("drain_seconds", -1),
        ("guard_retries", -1),
    ],
)
def test_numbers_that_no_server_could_keep_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ServerConfig(**{name: value})
