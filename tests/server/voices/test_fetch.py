"""Reference audio by URL: nothing inside the network can be reached."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpcore
import pytest

from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.voices.references import Fetcher, is_public
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, raw, serving, tone_wav

ASK = {"input": "Hello there, you.", "seed": 5, "response_format": "pcm", "guard": False}


WAV = tone_wav()


PRIVATE = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0",
    "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1",
    "2002:808:808::1", "2001:0:7f00:1::", "fd00:ec2::254", "fec0::1", "feff::1", "3fff::1", "3fff:fff::1", "5f00::1", "64:ff9b:1::808:808",
    "100::1", "::7f00:1", "::808:808", "4000::1", "192.88.99.1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_inside_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700:4700::1111"])
def test_addresses_outside_are_public(address: str) -> None:
    assert is_public(address)


SSRF = [
    "http://127.0.0.1/", "http://127.0.0.1:22/", "http://localhost/", "http://LOCALHOST./", "http://0/", "http://127.1/",
    "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/", "http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://192.168.0.1/",
    "http://user@127.0.0.1/", "http://example.com@127.0.0.1/", "http://127.0.0.1\\@example.com/", "http://127.0.0.1 /",
    "http://127.0.0.1#@example.com/", "http:///etc/passwd", "http://", "https://[::]/", "http://[fe80::1%25lo]/",
    "http://\u2460\u2461\u2466.0.0.1/", "http://127。0。0。1/", "http://[", "http://a:b:c/", "http://x:99999/",
    "http://127.0.0.1:0/", "http://localhost\r\nX-Evil: 1/",
]  # fmt: skip


@pytest.mark.parametrize("url", SSRF)
def test_urls_that_lead_inside_are_refused(live: Live, url: str) -> None:
    answer = live.speech(**ASK, ref_audio=url)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ref_audio"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/x",
        "gopher://x/",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "/etc/passwd",
        "~/.ssh/id",
    ],
)
def test_other_schemes_and_local_files_are_refused(live: Live, url: str) -> None:
    assert live.speech(**ASK, ref_audio=url).status_code == 400


class Site:
    """A web site under made-up public names: connections to any address land on it, and are noted."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connected: list[str] = []
        self.inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self, host: str, port: int, *rest: Any, **more: Any
    ) -> httpcore.AsyncNetworkStream:
        self.connected.append(host)
        return await self.inner.connect_tcp("127.0.0.1", self.port)


@contextmanager
def site(answer: Any) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
    thread.start()
    try:
        yield Site(server.server_port)
    finally:
        server.shutdown()
        server.server_close()


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def fetch(at: Site, url: str, names: dict[str, list[str]], **settings: Any) -> bytes:
    """Fetch with a resolver of our own: each look-up of a name takes its next answer, the last one for ever."""

    async def resolve(host: str, port: int) -> list[str]:
        answers = names[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return found.split(",")

    made = Fetcher(
        settings.pop("most", 1 << 20),
        settings.pop("seconds", STUCK_S),
        settings.pop("domains", ()),
        resolve,
    )
    made._backend._inner = at  # type: ignore[assignment]
    return asyncio.run(made.get(url, "ref_audio"))


def refused(at: Site, url: str, names: dict[str, list[str]], **settings: Any) -> str:
    with pytest.raises(ApiError) as e:
        fetch(at, url, names, **settings)
    assert (e.value.status, e.value.param) == (400, "ref_audio")
    return e.value.message


PUBLIC = {"a.example": ["93.184.216.34"], "b.example": ["8.8.8.8"], "inside.example": ["10.0.0.1"]}


def test_a_public_url_is_fetched_at_the_address_that_was_checked() -> None:
    with site(lambda h: reply(h, 200, WAV)) as at:
        assert fetch(at, "http://a.example/x.wav", PUBLIC) == WAV
        assert at.connected == ["93.184.216.34"]


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1/", "http://169.254.169.254/latest/", "http://inside.example/", "http://[::1]/", "//inside.example/",
        "file:///etc/passwd", "gopher://a.example/", "http://user:pw@a.example/", "http://a.example:x/",
        "http://[", "//[", "http://[::1", "http://a.example:99999999/",
    ],
)  # fmt: skip
def test_redirects_are_checked_like_first_urls(target: str) -> None:
    names = {
        **PUBLIC,
        "127.0.0.1": ["127.0.0.1"],
        "169.254.169.254": ["169.254.169.254"],
        "::1": ["::1"],
    }
    with site(lambda h: reply(h, 302, Location=target)) as at:
        refused(at, "http://a.example/", names)
        assert at.connected == ["93.184.216.34"]


def test_a_redirect_between_public_sites_is_followed_but_not_for_ever() -> None:
    def answer(h: BaseHTTPRequestHandler) -> None:
        if h.path == "/end":
            reply(h, 200, WAV)
        else:
            reply(h, 307, Location="http://b.example/end" if h.path == "/" else "/loop")

    with site(answer) as at:
        assert fetch(at, "http://a.example/", PUBLIC) == WAV
        assert at.connected == ["93.184.216.34", "8.8.8.8"]
        assert "redirects more than 5 times" in refused(at, "http://a.example/loop", PUBLIC)


def test_a_name_that_changes_its_mind_gains_nothing() -> None:
    with site(lambda h: reply(h, 302, Location="http://rebind.example/again")) as at:
        names = {"rebind.example": ["93.184.216.34", "127.0.0.1"]}
        assert "does not lead to a public address" in refused(at, "http://rebind.example/", names)
        assert at.connected == [
            "93.184.216.34"
        ]  # resolved once per connection; the second look-up was refused


def test_a_name_with_one_inner_address_among_outer_ones_is_refused() -> None:
    with site(lambda h: reply(h, 200, WAV)) as at:
        refused(at, "http://mixed.example/", {"mixed.example": ["8.8.8.8,10.0.0.1"]})
        assert not at.connected


def test_only_allowed_domains_are_fetched_also_after_redirects() -> None:
    with site(lambda h: reply(h, 302, Location="http://b.example/")) as at:
        assert "fetches only from" in refused(
            at, "http://b.example/", PUBLIC, domains=("a.example",)
        )
        assert not at.connected
        assert "fetches only from" in refused(
            at, "http://a.example/", PUBLIC, domains=("a.example",)
        )


def test_answers_that_are_too_large_too_slow_or_wrong_are_refused() -> None:
    def endless(h: BaseHTTPRequestHandler) -> None:
        h.send_response(200)
        h.end_headers()
        while True:
            h.wfile.write(bytes(65536))

    with site(endless) as at:
        assert "larger than 1 MiB" in refused(at, "http://a.example/", PUBLIC)
    over = threading.Event()
    with site(lambda h: over.wait(STUCK_S)) as at:
        assert "did not answer" in refused(at, "http://a.example/", PUBLIC, seconds=0.2)
        over.set()
    with site(lambda h: reply(h, 404, b"secret page")) as at:
        message = refused(at, "http://a.example/", PUBLIC)
        assert "404" in message
        assert "secret" not in message
    with site(lambda h: h.wfile.write(b"SSH-2.0-OpenSSH\r\n")) as at:
        assert "could not be fetched" in refused(at, "http://a.example/", PUBLIC)


def test_slow_names_hold_up_no_request_with_a_stored_voice(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More slow names than any pool has threads."""
    look_up, going, asked = socket.getaddrinfo, threading.Event(), threading.Event()

    def slow(host: Any, *rest: Any, **more: Any) -> Any:
        if str(host).endswith(".slow.example"):
            asked.set()
            going.wait(STUCK_S)
            raise socket.gaierror("no such name")
        return look_up(host, *rest, **more)

    sample = {"audio_sample": ("v.wav", WAV, "audio/wav")}
    assert (
        live.http.post(
            "/v1/audio/voices", data={"name": "kept", "consent": "y"}, files=sample
        ).status_code
        == 200
    )
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    clients = [raw(live, {**ASK, "ref_audio": f"http://n{i}.slow.example/"}) for i in range(60)]
    try:
        assert asked.wait(STUCK_S)
        assert live.speech(**ASK, voice="kept").status_code == 200
        assert "kept" in live.voice_names()
        assert live.http.delete("/v1/audio/voices/kept").status_code == 200
        names = [t.name for t in threading.enumerate()]
        assert sum(n.startswith("stentor-dns") for n in names) <= LIMITS.dns_threads
    finally:
        going.set()
        for client in clients:
            client.close()


def test_fetching_can_be_switched_off(tmp_path: Path) -> None:
    with serving(tmp_path, allow_remote_references=False) as live:
        answer = live.speech(**ASK, ref_audio="https://example.com/x.wav")
        assert "fetches no URLs" in answer.json()["error"]["message"]
