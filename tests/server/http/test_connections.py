"""Connections and bodies that never end: one deadline, a number of connections, a budget of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from stentor.server.config import ServerConfig
from stentor.server.errors import install
from stentor.server.http.connections import limited
from stentor.server.http.middleware import RequestIds, RequestLimits, Starts
from stentor.server.limits import LIMITS, Limits
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, connect, held, raw, serving, until
from tests.helpers.virtual_time import VirtualTimeLoop, run

TEXT = "Hello there, you."


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the body and answers its length. /early answers before."""
    total, more = 0, scope["path"] != "/early"
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        total, more = total + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": f"{total:3}".encode()})


def answers(*parts: tuple[float, bytes]) -> tuple[bytes, float]:
    """What a client gets that sends these parts so many seconds after its last, and when the server has closed."""
    return answers_of(LIMITS, parts)[0]


def answers_of(limits: Limits, *clients: Sequence[tuple[float, bytes]], **settings: Any) -> list[tuple[bytes, float]]:
    """`answers` for several clients at once. Time goes on once the server has read all that was sent."""

    async def main(loop: VirtualTimeLoop) -> list[tuple[bytes, float]]:
        inner = FastAPI()
        install(inner)
        inner.mount("/", echo)
        given = ServerConfig(max_body_mb=1.5, **settings)
        app = RequestIds(
            RequestLimits(inner, given, limits, asyncio.Event()),
            lambda route, status: None,
            Starts(lambda: lambda: None),
        )
        config = uvicorn.Config(app, http=limited(limits), log_config=None, lifespan="off", timeout_keep_alive=30)
        config.load()
        state = uvicorn.server.ServerState()
        began = loop.time()

        async def client(parts: Sequence[tuple[float, bytes]]) -> tuple[bytes, float]:
            ours, theirs = socket.socketpair()
            await loop.connect_accepted_socket(
                lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), ours
            )
            theirs.setblocking(False)

            async def send() -> None:
                for seconds, part in parts:
                    await asyncio.sleep(seconds)
                    with contextlib.suppress(ConnectionError):
                        await loop.sock_sendall(theirs, part)

            sending = asyncio.ensure_future(send())
            received = b""
            with contextlib.suppress(ConnectionError):
                while data := await loop.sock_recv(theirs, 1 << 16):
                    received += data
            sending.cancel()
            theirs.close()
            return received, loop.time() - began

        return await asyncio.gather(*map(client, clients))

    result: list[tuple[bytes, float]] = run(main)
    return result


BODY = b"Hello there."
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
FRAMED = {
    "length": (b"Content-Length: %d\r\n\r\n" % len(BODY), BODY),
    "chunks": (b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nHello\r\n7\r\n there.\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("cut", ["together", "apart", "inside"])
@pytest.mark.parametrize("framed", FRAMED)
def test_a_client_that_offers_http_2_is_answered_over_http_1_1(framed: str, cut: str) -> None:
    """As clients of Java do with each request. The next request of the connection is answered too."""
    end, body = FRAMED[framed]
    head = b"POST / HTTP/1.1\r\nHost: x\r\n" + OFFER + end
    last = b"GET /early HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    sent = {
        "together": [(0.0, (head + body) * 2 + last)],
        "apart": [(0.0, head), (1.0, body), (1.0, head), (1.0, body), (1.0, last)],
        "inside": [(0.0, head[:60]), (1.0, head[60:] + body[:4]), (1.0, body[4:] + head), (1.0, body + last)],
    }
    received, _ = answers(*sent[cut])
    assert received.count(b"HTTP/1.1 200") == 3
    assert received.count(b" 12") == 2


def test_any_number_of_offers_may_be_waiting() -> None:
    head = b"GET /early HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    received, _ = answers((0.0, head * 1200 + head.replace(b"Upgrade\r", b"Upgrade, close\r")))
    assert received.count(b"HTTP/1.1 200") == 1201


def test_headers_that_are_too_large_are_refused_beside_an_offer_too() -> None:
    received, _ = answers((0.0, b"GET / HTTP/1.1\r\n" + OFFER + b"X: " + b"x" * 70_000 + b"\r\n\r\n"))
    assert received.startswith(b"HTTP/1.1 431")
    assert received.count(b"HTTP/1.1") == 1


def test_a_connection_that_says_nothing_is_closed() -> None:
    assert answers() == (b"", 30.0)


def test_headers_that_drip_are_a_408() -> None:
    received, when = answers((5, b"GET / HTTP/1.1\r\n"), *[(10, b"X-A: b\r\n")] * 20)
    assert received.startswith(b"HTTP/1.1 408")
    assert when == 65.0


def test_a_body_that_drips_is_a_408_at_the_same_deadline() -> None:
    received, when = answers((5, b"POST / HTTP/1.1\r\nContent-"), (30, b"Length: 99\r\n\r\n"), *[(5, b"x")] * 20)
    assert received.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in received.lower()
    assert when == 65.0


def test_the_rest_of_a_body_that_was_answered_already_has_the_same_deadline() -> None:
    received, when = answers((0, b"POST /early HTTP/1.1\r\nContent-Length: 99\r\n\r\n"), *[(5, b"x")] * 90)
    assert received.startswith(b"HTTP/1.1 200")
    assert when == 60.0


def test_empty_lines_between_requests_do_not_keep_a_connection() -> None:
    received, when = answers((0, b"GET / HTTP/1.1\r\n\r\n"), *[(10, b"\r\n")] * 20)
    assert received.startswith(b"HTTP/1.1 200")
    assert when == 30.0


def test_each_request_of_a_connection_has_its_own_deadline() -> None:
    slow = [(15, b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n"), (25, b"x"), (25, b"y")]
    received, when = answers(*slow * 3)
    assert received.count(b"200 OK") == 3
    assert when == 3 * 65 + 30


def test_headers_without_end_are_refused() -> None:
    received, _ = answers((0, b"GET / HTTP/1.1\r\n"), *[(0, b"X: " + b"a" * 8000 + b"\r\n")] * 20)
    assert received.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("more", [b"", b"\r\nConnection: upgrade\r\nUpgrade: websocket"])
@pytest.mark.parametrize("large", [b"GET /" + b"a" * 66_000, b"GET / HTTP/1.1\r\nX: " + b"a" * 66_000])
def test_large_headers_that_come_whole_are_refused(large: bytes, more: bytes) -> None:
    version = b"" if b"HTTP" in large else b" HTTP/1.1"
    received, _ = answers((0, large + version + more + b"\r\n\r\n"))
    assert received.startswith(b"HTTP/1.1 431")
    assert received.count(b"HTTP/1.1 ") == 1


CHUNKS = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [b"\x16\x03\x01\x02\x00\x01\x00"],  # the first bytes of TLS
        [b"GET / HTTP/1.1\r\nA B: c\r\n\r\n"],
        [b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
        [b"GET http://[::1 HTTP/1.1\r\n\r\n"],
        [CHUNKS + b"zz\r\n"],
        [CHUNKS, b"zz\r\n"],
    ],
)
def test_what_is_not_http_is_a_400_in_our_envelope(parts: list[bytes]) -> None:
    received, _ = answers(*((1.0, part) for part in parts))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_what_is_not_http_does_not_spoil_the_answer_before() -> None:
    """As of a client whose Content-Length counts letters and not bytes."""
    received, when = answers((0, b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\xc3\xa9}"))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n  3")
    assert (b"connection: close" in received, when) == (True, 0.0)
    received, _ = answers((0, CHUNKS.replace(b"/ ", b"/early ")), (1, b"zz\r\n"))
    assert received.endswith(b"\r\n\r\n  0")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Eight connections, one request at a time."""
    limits = replace(LIMITS, max_connections=8)
    with serving(tmp_path_factory.mktemp("narrow"), limits=limits, max_active_requests=1) as live:
        yield live


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """2 MiB of bodies. Connections are many: with eight, one that waits may be closed for those that come."""
    limits = replace(LIMITS, bodies_mb=2.0)
    with serving(tmp_path_factory.mktemp("tight"), limits=limits, max_body_mb=1.5) as live:
        yield live


def test_silent_connections_make_room_for_those_who_ask(narrow: Live) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(narrow)) for _ in range(40)]
        for s in silent[::2]:
            with contextlib.suppress(ConnectionError):
                s.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nX: ")
        with httpx.Client(base_url=narrow.url, timeout=STUCK_S, trust_env=False) as newcomer:
            assert newcomer.post("/v1/audio/speech", json={"input": TEXT}).status_code == 200
            assert newcomer.get("/health").status_code == 200
            assert sum(map(is_open, silent)) <= 8


def is_open(s: socket.socket) -> bool:
    """Whether the server has not closed a connection on which it has nothing to say."""
    s.setblocking(False)
    try:
        return s.recv(100) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def post(size: int) -> bytes:
    return f"POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size


def test_all_bodies_in_flight_have_one_budget() -> None:
    large = post(1_570_000)
    first, second, small, late = answers_of(
        replace(LIMITS, bodies_mb=1.5),
        [(0, large[:-1]), (9, large[-1:])],
        [(3, large)],
        [(6, post(60_000))],
        [(12, large)],
    )
    assert second[0].startswith(b"HTTP/1.1 503")
    assert b'"bodies_in_flight"' in second[0]
    assert small[0].startswith(b"HTTP/1.1 200")  # a small body needs none of it
    assert first[0].startswith(b"HTTP/1.1 200")
    assert late[0].startswith(b"HTTP/1.1 200")  # the first has given its bytes back


def test_too_many_requests_are_429_before_their_bodies_are_read() -> None:
    body = post(9)
    slow = [(0, body[:-1]), (6, body[-1:])]
    first, second, third, probe, late = answers_of(
        LIMITS, slow, slow, [(3, body[:-1])], [(3, b"GET / HTTP/1.1\r\n\r\n")], [(9, body)], max_active_requests=2
    )
    assert third[0].startswith(b"HTTP/1.1 429")
    assert b'"too_many_requests"' in third[0]
    assert b"\r\nretry-after: 1\r\n" in third[0]
    for answer in (first, second, probe, late):
        assert answer[0].startswith(b"HTTP/1.1 200")


def test_a_request_that_is_spoken_is_in_progress(narrow: Live) -> None:
    with held(narrow, steps=[1]) as engine, contextlib.closing(raw(narrow, {"input": TEXT})):
        engine.wait()
        answer = narrow.speech(input=TEXT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_requests")
        assert narrow.http.get("/health").status_code == 200
    assert until(lambda: narrow.speech(input=TEXT).status_code == 200)


def test_a_request_gives_its_bytes_back_before_it_is_spoken(tight: Live) -> None:
    large = {"input": TEXT, "user": "x" * 1_400_000, "min_frames": 900, "max_frames": 900, "guard": False}
    with held(tight, steps=[3]) as engine, contextlib.closing(raw(tight, large)):
        engine.wait()
        assert tight.speech(**{**large, "voice": "nobody"}).status_code == 400
    assert tight.idle()
