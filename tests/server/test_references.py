"""Reference audio from strangers: every way in, and everything that must not come in that way."""

from __future__ import annotations

import asyncio
import base64
import io
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes

import av
import httpcore
import httpx
import numpy as np
import pytest

from stentor.server.errors import ApiError
from stentor.server.voices.fetch import Fetcher, is_public
from stentor.server.voices.references import Cache, decode
from tests.server.server_live import Live, serving, tone_wav

ASK = {"input": "Hello there, you.", "seed": 5, "response_format": "pcm", "guard": False}
WAV = tone_wav()
B64 = base64.b64encode(WAV).decode()


def compressed(samples: np.ndarray, rate: int, muxer: str, codec: str) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=muxer) as f:
        stream = f.add_stream(codec, rate=rate, layout="mono")
        for i in range(0, len(samples), 48_000):
            part = (samples[i : i + 48_000] * 32767).astype(np.int16)[None]
            frame = av.AudioFrame.from_ndarray(part, format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate, i
            f.mux(stream.encode(frame))
        f.mux(stream.encode(None))
    return out.getvalue()


def test_each_way_to_send_a_reference_is_the_same_voice(live: Live) -> None:
    plain = live.speech(**ASK).content
    ways = [
        {"ref_audio": f"data:audio/wav;base64,{B64}"},
        {"ref_audio": "data:audio/wav," + quote_from_bytes(WAV)},
        {"ref_audio": B64},
        {"ref_audio": [B64]},
        {"references": [{"audio": B64}]},
        {"references": [{"audio_path": f"data:audio/wav;base64,{B64}"}]},
        {"references": [{"data": B64, "media_type": "audio/wav"}]},
    ]
    spoken = {live.speech(**ASK, **way).content for way in ways}
    assert len(spoken) == 1
    assert plain not in spoken


@pytest.mark.parametrize(
    ("muxer", "codec"),
    [("mp4", "aac"), ("webm", "libopus"), ("adts", "aac"), ("mp3", "libmp3lame"), ("ogg", "libopus"), ("flac", "flac")],
)
def test_what_phones_and_browsers_record_is_read(live: Live, muxer: str, codec: str) -> None:
    tone = 0.3 * np.sin(np.arange(96_000) / 20)
    data = compressed(tone, 48_000, muxer, codec)
    samples, rate = decode(data, "ref_audio", 5.0)
    assert len(samples) / rate == pytest.approx(2.0, abs=0.1)
    middle = samples[rate // 2 : rate]
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.3 / 2**0.5, rel=0.1)
    answer = live.speech(**ASK, ref_audio="data:;base64," + base64.b64encode(data).decode())
    assert answer.status_code == 200


BOMBS = {
    "flac": ("flac", "flac", 1200),
    "opus": ("ogg", "libopus", 600),
    "m4a": ("mp4", "aac", 600),
    "webm": ("webm", "libopus", 600),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_small_files_that_unfold_to_hours_are_stopped_early(kind: str) -> None:
    muxer, codec, seconds = BOMBS[kind]
    data = compressed(np.zeros(8000 * seconds, np.float32), 8000, muxer, codec)
    tracemalloc.start()
    began = time.monotonic()
    with pytest.raises(ApiError) as e:
        decode(data, "ref_audio", 5.0)
    took, peak = time.monotonic() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (e.value.status, e.value.param) == (400, "ref_audio")
    assert "longer than 5 s" in e.value.message
    assert took < 2
    assert peak < len(data) * 2 + 2_000_000


def hostile_wavs() -> Iterator[bytes]:
    yield WAV[:43]
    yield WAV[:4] + b"\xff\xff\xff\xff" + WAV[8:20]
    yield WAV[:22] + (65535).to_bytes(2, "little") + WAV[24:]  # channels
    yield WAV[:24] + (0).to_bytes(4, "little") + WAV[28:]  # rate
    yield WAV[:24] + (2**31 - 1).to_bytes(4, "little") + WAV[28:]
    yield WAV[:34] + (0).to_bytes(2, "little") + WAV[36:]  # bits
    yield b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
    yield b"ffconcat version 1.0\nfile /etc/passwd\n"
    yield b"\x1a\x45\xdf\xa3" + bytes(200)
    yield b"\x00\x00\x00\x20ftypM4A " + bytes(200)
    yield b"\xff\xf1" * 500
    yield b"<html>" * 100
    yield b"PK\x03\x04" + bytes(100)


@pytest.mark.parametrize("data", list(hostile_wavs()), ids=range(13))
def test_broken_and_disguised_files_get_400(live: Live, data: bytes) -> None:
    answer = live.speech(**ASK, ref_audio="data:audio/wav;base64," + base64.b64encode(data).decode())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ref_audio"


def test_cut_off_audio_is_read_as_far_as_it_goes_or_refused_never_a_crash(live: Live) -> None:
    for muxer, codec in (("mp4", "aac"), ("webm", "libopus"), ("flac", "flac"), ("mp3", "libmp3lame")):
        data = compressed(0.3 * np.sin(np.arange(96_000) / 20), 48_000, muxer, codec)
        for share in (0.2, 0.6, 0.95):
            cut = base64.b64encode(data[: int(len(data) * share)]).decode()
            assert live.speech(**ASK, ref_audio=cut).status_code in (200, 400)


def test_references_must_be_long_enough_and_not_silent(live: Live) -> None:
    for data in (tone_wav(0.01), tone_wav(6.0), tone_wav()[:44] + bytes(8000)):
        answer = live.speech(**ASK, ref_audio=base64.b64encode(data).decode())
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ref_audio")


# -- addresses --

PRIVATE = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0",
    "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:db8::1",
    "2001:0:7f00:1::", "fd00:ec2::254",
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
    ["ftp://example.com/x", "gopher://x/", "file:///etc/passwd", "FILE:///etc/passwd", "/etc/passwd", "~/.ssh/id"],
)
def test_other_schemes_and_local_files_are_refused(live: Live, url: str) -> None:
    assert live.speech(**ASK, ref_audio=url).status_code == 400


class Site:
    """A web site under made-up public names: connections to any address land on it, and are noted."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connected: list[str] = []
        self.inner = httpcore.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, *rest: Any, **more: Any) -> httpcore.AsyncNetworkStream:
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

    made = Fetcher(settings.pop("most", 1 << 20), settings.pop("seconds", 5.0), settings.pop("domains", ()), resolve)
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
    ],
)  # fmt: skip
def test_redirects_are_checked_like_first_urls(target: str) -> None:
    names = {**PUBLIC, "127.0.0.1": ["127.0.0.1"], "169.254.169.254": ["169.254.169.254"], "::1": ["::1"]}
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
        assert at.connected == ["93.184.216.34"]  # resolved once per connection; the second look-up was refused


def test_a_name_with_one_inner_address_among_outer_ones_is_refused() -> None:
    with site(lambda h: reply(h, 200, WAV)) as at:
        refused(at, "http://mixed.example/", {"mixed.example": ["8.8.8.8,10.0.0.1"]})
        assert not at.connected


def test_only_allowed_domains_are_fetched_also_after_redirects() -> None:
    with site(lambda h: reply(h, 302, Location="http://b.example/")) as at:
        assert "fetches only from" in refused(at, "http://b.example/", PUBLIC, domains=("a.example",))
        assert not at.connected
        assert "fetches only from" in refused(at, "http://a.example/", PUBLIC, domains=("a.example",))


def test_answers_that_are_too_large_too_slow_or_wrong_are_refused() -> None:
    def endless(h: BaseHTTPRequestHandler) -> None:
        h.send_response(200)
        h.end_headers()
        while True:
            h.wfile.write(bytes(65536))

    with site(endless) as at:
        assert "larger than 1 MiB" in refused(at, "http://a.example/", PUBLIC)
    with site(lambda h: time.sleep(1)) as at:
        assert "did not answer" in refused(at, "http://a.example/", PUBLIC, seconds=0.2)
    with site(lambda h: reply(h, 404, b"secret page")) as at:
        message = refused(at, "http://a.example/", PUBLIC)
        assert "404" in message
        assert "secret" not in message
    with site(lambda h: h.wfile.write(b"SSH-2.0-OpenSSH\r\n")) as at:
        assert "could not be fetched" in refused(at, "http://a.example/", PUBLIC)


def test_fetching_can_be_switched_off(tmp_path: Path) -> None:
    with serving(tmp_path, allow_remote_references=False) as live:
        answer = live.speech(**ASK, ref_audio="https://example.com/x.wav")
        assert "fetches no URLs" in answer.json()["error"]["message"]


def test_local_files_are_read_only_inside_the_allowed_directory(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret.wav"
    allowed.mkdir()
    secret.write_bytes(WAV)
    (allowed / "good one.wav").write_bytes(WAV)
    (allowed / "link.wav").symlink_to(secret)
    with serving(tmp_path / "voices", allowed_local_media_path=str(allowed)) as live:
        for good in (f"{allowed}/good one.wav", "file://" + quote(f"{allowed}/good one.wav")):
            assert live.speech(**ASK, ref_audio=good).status_code == 200
        for bad in (
            str(secret), f"file://{secret}", f"{allowed}/../secret.wav", f"file://{allowed}/%2e%2e/secret.wav",
            f"{allowed}/link.wav", str(allowed), f"file://evil.example{allowed}/good one.wav", f"{allowed}/none.wav",
            "/proc/self/environ", "/dev/zero", f"{allowed}/\x00",
        ):  # fmt: skip
            answer = live.speech(**ASK, ref_audio=bad)
            assert answer.status_code == 400, bad
            assert answer.json()["error"]["code"] == "path_not_allowed"


# -- sizes and headers --


def test_bodies_of_100_mb_are_refused_before_they_are_read(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as s:
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
    with socket.create_connection((host, int(port)), 10) as s:
        s.sendall(f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{{".encode())
        assert s.recv(100).split(b" ")[1] in (b"400", b"413")


def test_no_header_of_an_answer_can_be_made_by_a_request(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    body = b'{"input": "x", "voice": "a\\r\\nX-Evil: 1", "model": "m\\r\\nX-Evil: 1"}'
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x0bb\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 10) as s:
        s.sendall(head + body)
        answer = s.recv(10_000)
    assert b"\r\nx-evil" not in answer.lower()
    for id in ("ü", "a" * 5000):
        found = live.http.post("/v1/audio/speech", json=ASK, headers=[(b"X-Request-Id", id.encode())])
        assert found.headers["x-request-id"].startswith("req-")


def test_the_cache_of_references_is_bounded() -> None:
    cache = Cache(4000, 60.0)
    for i in range(10):
        cache.put(str(i), (np.zeros(100, np.float32), 16_000))
        assert cache.bytes <= 4000
    assert cache.get("0") is not None
    for i in range(10, 16):
        cache.put(str(i), (np.zeros(200, np.float32), 16_000))
    assert cache.bytes <= 4000
    assert cache.get("1") is None
    assert cache.get("15") is not None
    cache.put("large", (np.zeros(10_000, np.float32), 16_000))
    assert cache.get("large") is None
