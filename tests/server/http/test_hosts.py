"""Under which names a server may be asked, and whom the access log names as the client."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from stentor.errors import InvalidRequest
from stentor.server.config import ServerConfig
from stentor.server.http.middleware import AccessLog, AllowedHosts, Forwarded, hosts
from tests.helpers.patience import until
from tests.helpers.server_live import Live, serving
from tests.helpers.server_remote import URL

REBOUND = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "203.0.113.9",
    "[",
    "",
]
OURS = [
    "localhost", "LOCALHOST:8000", "localhost.", "tts.localhost:1", "127.0.0.1", "127.0.0.1:8000", "127.8.9.1:8000",
    "host.docker.internal:8000", socket.gethostname(),
]  # fmt: skip
HANDSHAKE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip


@pytest.mark.parametrize("host", REBOUND)
def test_a_page_that_has_its_name_resolve_to_this_machine_gets_nothing(
    live: Live, host: str
) -> None:
    if host == "[" and URL in os.environ:
        pytest.skip("the proxy of replicas refuses what is no host by itself")
    page = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for method, path in (
        ("GET", "/v1/audio/voices"),
        ("DELETE", "/v1/audio/voices/x"),
        ("POST", "/v1/audio/voices"),
    ):
        answer = live.http.request(method, path, headers=page)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "host_not_allowed"
    answer = live.http.get("/v1/audio/speech/stream", headers={**page, **HANDSHAKE})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", OURS)
def test_names_and_addresses_of_this_machine_are_taken(live: Live, host: str) -> None:
    assert live.http.get("/v1/audio/voices", headers={"Host": host}).status_code == 200


def test_allowed_hosts_are_taken_besides(tmp_path: Path) -> None:
    with serving(
        tmp_path, allowed_hosts=("tts.example", "*.home.arpa"), api_key=("secret",)
    ) as live:
        for host in ("tts.example", "TTS.Example:9", "a.home.arpa", "localhost"):
            assert live.http.get("/v1/models", headers={"Host": host}).status_code == 200
        for host in ("a.tts.example", "home.arpa", "evil.example"):
            assert live.http.get("/v1/models", headers={"Host": host}).status_code == 403


def test_only_the_loopback_without_a_key_is_asked_by_its_own_names_alone(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.3.3.3"):
        assert hosts(ServerConfig(host=host)) == ()
        assert hosts(ServerConfig(host=host, api_key=("secret",))) is None
        assert hosts(ServerConfig(host=host, allowed_hosts=("*",))) is None
        assert hosts(ServerConfig(host=host, uds=str(tmp_path / "s"))) is None
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        assert hosts(ServerConfig(host=host)) is None
        assert hosts(ServerConfig(host=host, allowed_hosts=("a.example",))) == ("a.example",)


def test_a_request_without_a_host_is_from_no_browser() -> None:
    assert asyncio.run(answered([])) == "app"
    assert asyncio.run(answered([(b"host", b"localhost")])) == "app"
    assert asyncio.run(answered([(b"host", b"localhost"), (b"host", b"evil.example")])) == "403"


async def answered(headers: list[tuple[bytes, bytes]]) -> str:
    said: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said.append("app")

    async def send(message: Any) -> None:
        said.extend([str(message["status"])] if "status" in message else [])

    await AllowedHosts(app, ())({"type": "http", "headers": headers}, send, send)
    return said[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_hosts", "http://tts.example"),
        ("allowed_hosts", "tts.example/x"),
        ("allowed_hosts", ""),
        ("forwarded_allow_ips", "proxy"),
        ("forwarded_allow_ips", "*"),
        ("forwarded_allow_ips", "10.0.0.1/8"),
    ],
)
def test_what_is_no_name_or_network_is_refused_at_the_start(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ServerConfig(**{name: (value,)})


def test_a_client_that_calls_itself_something_else_is_not_believed(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stentor.access")
    for given in ("8.8.8.8", '1.2.3.4" 200 "x'):
        assert live.http.get("/v1/nothing", headers={"X-Forwarded-For": given}).status_code == 404
    assert until(lambda: len(clients(caplog)) == 2)
    assert all(client.startswith("127.0.0.1:") for client in clients(caplog))


def clients(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(r)["request"]["client"] for r in caplog.records if r.name == "stentor.access"]


@pytest.mark.parametrize(
    ("sent", "logged"),
    [
        (["203.0.113.7"], "203.0.113.7:0"),
        (["203.0.113.7:81, 10.0.0.2"], "203.0.113.7:0"),
        (
            ["9.9.9.9, 203.0.113.7"],
            "203.0.113.7:0",
        ),  # what its client had written stands left of it
        (['x" y, 203.0.113.7'], "203.0.113.7:0"),
        (["[2001:db8::7]:4"], "2001:db8::7:0"),
        (["9.9.9.9", "203.0.113.7"], "203.0.113.7:0"),
        (['203.0.113.7" y'], "10.0.0.1:5"),
        (["203.0.113.7, x"], "10.0.0.1:5"),
        ([""], "10.0.0.1:5"),
        (["a" * 60_000], "10.0.0.1:5"),
    ],
)
def test_a_proxy_is_believed_where_it_tells_an_address(
    caplog: pytest.LogCaptureFixture, sent: list[str], logged: str
) -> None:
    caplog.set_level(logging.INFO, "stentor.access")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert dict(scope["headers"])[b"host"] == b"x"

    headers = [(b"host", b"x"), *((b"x-forwarded-for", value.encode()) for value in sent)]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "client": ("10.0.0.1", 5),
        "headers": headers,
    }
    asyncio.run(Forwarded(AccessLog(app), ["10.0.0.0/8"])(scope, app, app))
    assert clients(caplog) == [logged]
    caplog.clear()
    asyncio.run(
        Forwarded(AccessLog(app), ["192.0.2.1"])({**scope, "client": ("10.0.0.1", 5)}, app, app)
    )
    assert clients(caplog) == ["10.0.0.1:5"]
