"""API keys and origins: who may ask, and for what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from stentor.errors import InvalidRequest
from stentor.server.app import create_app
from stentor.server.config import ServerConfig, build
from stentor.server.http.middleware import authorized, from_own_origin
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, serving

TEXT = "Hello there, you."


def test_keys_guard_what_is_under_v1_and_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path, api_key=("one", "schlüssel")) as live:
        for key in (
            "",
            "Bearer",
            "Bearer ",
            "Bearer wrong",
            "Bearer one2",
            "Bearer on",
            "Basic one",
        ):
            for method, path in (
                ("GET", "/v1/models"),
                ("POST", "/v1/audio/speech"),
                ("GET", "/v1/audio/voices"),
            ):
                answer = live.http.request(method, path, headers={"Authorization": key.strip()})
                assert answer.status_code == 401, key
                assert answer.json()["error"]["code"] == "invalid_api_key"
        assert live.speech(input=TEXT).status_code == 200
        assert (
            live.http.get(
                "/v1/models", headers={b"Authorization": "Bearer schlüssel".encode()}
            ).status_code
            == 200
        )
        with httpx.Client(base_url=live.url, timeout=STUCK_S, trust_env=False) as anyone:
            for path in ("/health", "/ready", "/metrics", "/version"):
                assert anyone.get(path).status_code == 200


@pytest.fixture(scope="module")
def prefixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a key behind a proxy's prefix."""
    with serving(
        tmp_path_factory.mktemp("prefixed"), api_key=("secret",), root_path="/api"
    ) as live:
        yield live


OPEN = {"/", "/docs", "/openapi.json", "/web/{name}", "/health", "/ready", "/version", "/metrics"}
"""Paths without a key. A route that is not among them is guarded."""


SOCKET = "socket"


def routes() -> list[tuple[str, str]]:
    """Methods and paths of all routes. WebSockets have no method."""
    contexts = iter_route_contexts(create_app(ServerConfig()).routes)
    return [
        (method, context.path_format)
        for context in contexts
        for method in sorted(context.methods or {SOCKET})
    ]


GUARDED = sorted({(method, path) for method, path in routes() if path not in OPEN})
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize(("method", "route"), GUARDED, ids=" ".join)
def test_every_route_but_the_open_ones_is_guarded_by_keys(
    prefixed: Live, method: str, route: str
) -> None:
    path = re.sub(r"{\w+}", "x", route)
    upgrade = HANDSHAKE if method == SOCKET else {}
    with httpx.Client(base_url=prefixed.url, timeout=STUCK_S, trust_env=False) as anyone:
        for key in ({}, {"Authorization": "Bearer wrong"}, {"xi-api-key": "wrong"}):
            answer = anyone.request(method.replace(SOCKET, "GET"), path, headers={**key, **upgrade})
            assert answer.status_code == 401, key


def test_the_open_paths_exist() -> None:
    assert {path for _, path in routes()} > OPEN


def test_no_route_under_v1_is_open_by_a_prefix(prefixed: Live) -> None:
    guarded = [(method, path) for method, path in GUARDED if method != SOCKET]
    with httpx.Client(base_url=prefixed.url, timeout=STUCK_S, trust_env=False) as anyone:
        for method, route in guarded:
            path = re.sub(r"{\w+}", "x", route)
            for prefix in ("", "/api", "/api/api", "//api", "/api//api"):
                answer = anyone.request(method, prefix + path)
                assert answer.status_code in (401, 404), (method, prefix + path)
                assert answer.status_code == 401 or prefix not in ("", "/api")
        assert anyone.get("/api/health").status_code == 200
    assert prefixed.http.get("/api/v1/models").status_code == 200
    assert prefixed.http.get("/v1/models").status_code == 200


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(InvalidRequest, match="api_key"):
        ServerConfig(api_key=(key,))
    with pytest.raises(InvalidRequest, match="api_key"):
        ServerConfig(api_key=("good", key))
    with pytest.raises(InvalidRequest, match="api_key"):
        build({}, env={"STENTOR_API_KEY": key})


def test_keys_are_compared_whole() -> None:
    for given in ("Bearer b", "bearer b", "BEARER  b", "b"):
        assert authorized(given, ("a", "b"))
    assert not authorized("Bearer ab", ("a", "b"))
    assert not authorized("", ("a",))


def test_other_origins_may_read_our_headers_if_they_are_allowed(tmp_path: Path) -> None:
    ask = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serving(tmp_path, allowed_origins=("https://app.example",)) as live:
        for origin, status in (("https://app.example", 200), ("https://evil.example", 403)):
            asked = live.http.options("/v1/audio/speech", headers={"Origin": origin, **ask})
            assert asked.status_code == status
            assert asked.headers.get("access-control-allow-origin") == (
                origin if status == 200 else None
            )
        answer = live.http.post(
            "/v1/audio/speech", json={"input": TEXT}, headers={"Origin": "https://app.example"}
        )
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "X-Seed" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        other = live.http.post(
            "/v1/audio/speech", json={"input": TEXT}, headers={"Origin": "https://evil.example"}
        )
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("written", "origins"),
    [
        (("http://app.example,http://b.example",), ("http://app.example", "http://b.example")),
        (("https://App.Example/", " http://localhost:3000 "), ("https://app.example", "http://localhost:3000")),
        (("https://app.example:443", "http://[::1]:80/"), ("https://app.example", "http://[::1]")),
        (("https://bücher.example", "tauri://localhost"), ("https://xn--bcher-kva.example", "tauri://localhost")),
        (("*",), ("*",)),
        ((), ()),
    ],
)  # fmt: skip
def test_origins_are_kept_as_browsers_send_them(
    written: tuple[str, ...], origins: tuple[str, ...]
) -> None:
    assert ServerConfig(allowed_origins=written).allowed_origins == origins


@pytest.mark.parametrize(
    "wrong", ["", ",", "app.example", "https://app.example/page", "https://", "https://u@a.example", "http://["]
)  # fmt: skip
def test_an_origin_that_no_browser_sends_is_refused_at_start(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match="must look like https://app"):
        ServerConfig(allowed_origins=(wrong,))


def test_names_between_commas_are_several() -> None:
    config = ServerConfig(allowed_hosts=("a.example, B.example",), allowed_media_domains=("c.example,d.example",))  # fmt: skip
    assert config.allowed_hosts == ("a.example", "b.example")
    assert config.allowed_media_domains == ("c.example", "d.example")


def test_preflights_for_private_networks_are_answered(tmp_path: Path) -> None:
    ask = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    with serving(tmp_path, allowed_origins=("https://app.example/",)) as live:
        answer = live.http.options("/v1/audio/speech", headers=ask)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-private-network"] == "true"


FOREIGN = ["https://evil.example", "null", "http://[", "http://]", "http://127.0.0.1:1", "x", "//["]


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_origin_cannot_upload(live: Live, origin: str) -> None:
    voice = {"name": "planted", "consent": "none"}
    files = {"audio_sample": b"RIFF"}
    answer = live.http.post("/v1/audio/voices", data=voice, files=files, headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"Origin": origin, "Content-Type": kind}
        assert live.http.post("/v1/audio/speech", content=b"{}", headers=headers).status_code == 403


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_handshake_of_another_origin_is_a_403(live: Live, origin: str) -> None:
    headers = {
        "Origin": origin, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    assert live.http.get("/v1/audio/speech/stream", headers=headers).status_code == 403


def test_what_a_browser_asks_first_is_answered_with_what_to_configure(live: Live) -> None:
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    answer = live.http.options("/v1/audio/speech", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert "--allowed-origins https://app.example" in answer.json()["error"]["message"]


def test_our_own_page_may_ask_for_everything() -> None:
    assert from_own_origin({"host": "a:1", "origin": "http://a:1"}, ())
    assert from_own_origin({"host": "a:1"}, ())  # no browser
    assert from_own_origin(
        {"host": "inner", "origin": "https://a", "sec-fetch-site": "same-origin"}, ()
    )  # a proxy
    assert not from_own_origin(
        {"host": "a", "origin": "https://b", "sec-fetch-site": "same-site"}, ()
    )
    assert not from_own_origin({"host": "", "origin": "null"}, ())
    assert from_own_origin({"host": "a", "origin": "https://b"}, ("https://b",))
    assert from_own_origin({"host": "a", "origin": "null"}, ("*",))
