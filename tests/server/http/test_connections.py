"""Connections and bodies that never end: one deadline, a number of connections, a budget of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from stentor.server.api_processes import Counts
from stentor.server.config import ServerConfig
from stentor.server.errors import install
from stentor.server.http.bodies import RequestLimits
from stentor.server.http.connections import Places, limited
from stentor.server.http.middleware import RequestIds
from stentor.server.limits import LIMITS, Limits
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, connect, held, raw, serving
from tests.helpers.virtual_time import VirtualTimeLoop, run

TEXT = "Hello there, you."


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the body and answers its length. /early answers before, and /slow 6 s later."""
    total, more = 0, scope["path"] != "/early"
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        total, more = total + len(message["body"]), message["more_body"]
    await asyncio.sleep(6 if scope["path"] == "/slow" else 0)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]}
    )
    await send({"type": "http.response.body", "body": f"{total:3}".encode()})


def answers(*parts: tuple[float, bytes]) -> tuple[bytes, float]:
    """Answer to a client that sends these parts so many seconds after its last, and when the server has closed."""
    return answers_of(LIMITS, parts)[0]


def answers_of(
    limits: Limits, *clients: Sequence[tuple[float, bytes]], **settings: Any
) -> list[tuple[bytes, float]]:
    """`answers` for several clients at once. Time goes on once the server has read all that was sent."""

    async def main(loop: VirtualTimeLoop) -> list[tuple[bytes, float]]:
        inner = FastAPI()
        install(inner)
        inner.mount("/", echo)
        given = ServerConfig(max_body_mb=1.5, **settings)
        app = RequestIds(
            RequestLimits(inner, given, limits, Counts(), asyncio.Event()),
            lambda route, status: None,
        )
        config = uvicorn.Config(
            app, http=limited(limits), log_config=None, lifespan="off", timeout_keep_alive=30
        )
        config.load()
        state = uvicorn.server.ServerState()
        began = loop.time()

        async def client(parts: Sequence[tuple[float, bytes]]) -> tuple[bytes, float]:
            ours, theirs = socket.socketpair()
            await loop.connect_accepted_socket(
                lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),
                ours,
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
OFFER = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
)
FRAMED = {
    "length": (b"Content-Length: %d\r\n\r\n" % len(BODY), BODY),
    "chunks": (b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nHello\r\n7\r\n there.\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("cut", ["together", "apart", "inside"])
@pytest.mark.parametrize("framed", FRAMED)
def test_a_client_that_offers_http_2_is_answered_over_http_1_1(framed: str, cut: str) -> None:
    """Clients of Java do so with each request. The next request of the connection is answered too."""
    end, body = FRAMED[framed]
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\n" + OFFER + end
    last = b"GET /early HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    sent = {
        "together": [(0.0, (head + body) * 2 + last)],
        "apart": [(0.0, head), (1.0, body), (1.0, head), (1.0, body), (1.0, last)],
        "inside": [
            (0.0, head[:60]),
            (1.0, head[60:] + body[:4]),
            (1.0, body[4:] + head),
            (1.0, body + last),
        ],
    }
    received, _ = answers(*sent[cut])
    assert received.count(b"HTTP/1.1 200") == 3
    assert received.count(b" 12") == 2


def test_any_number_of_offers_may_be_waiting() -> None:
    head = b"GET /early HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    received, _ = answers((0.0, head * 1200 + head.replace(b"Upgrade\r", b"Upgrade, close\r")))
    assert received.count(b"HTTP/1.1 200") == 1201


def test_headers_that_are_too_large_are_refused_beside_an_offer_too() -> None:
    received, _ = answers(
        (0.0, b"GET / HTTP/1.1\r\n" + OFFER + b"X: " + b"x" * 70_000 + b"\r\n\r\n")
    )
    assert received.startswith(b"HTTP/1.1 431")
    assert received.count(b"HTTP/1.1") == 1


def test_a_connection_that_says_nothing_is_closed() -> None:
    assert answers() == (b"", 30.0)


def test_headers_that_drip_are_a_408() -> None:
    received, when = answers((5, b"GET / HTTP/1.1\r\n"), *[(10, b"X-A: b\r\n")] * 20)
    assert received.startswith(b"HTTP/1.1 408")
    assert when == 65.0


def test_a_body_that_drips_is_a_408_at_the_same_deadline() -> None:
    received, when = answers(
        (5, b"POST / HTTP/1.1\r\nContent-"), (30, b"Length: 99\r\n\r\n"), *[(5, b"x")] * 20
    )
    assert received.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in received.lower()
    assert when == 65.0


def test_the_rest_of_a_body_that_was_answered_already_has_the_same_deadline() -> None:
    received, when = answers(
        (0, b"POST /early HTTP/1.1\r\nContent-Length: 99\r\n\r\n"), *[(5, b"x")] * 90
    )
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
@pytest.mark.parametrize(
    "large", [b"GET /" + b"a" * 66_000, b"GET / HTTP/1.1\r\nX: " + b"a" * 66_000]
)
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
    """Some clients' Content-Length counts letters and not bytes."""
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
    slow = [(0, body.replace(b" /", b" /slow"))]
    first, second, third, probe, late = answers_of(
        LIMITS,
        slow,
        slow,
        [(3, body[:-1])],
        [(3, b"GET / HTTP/1.1\r\n\r\n")],
        [(9, body)],
        max_active_requests=2,
    )
    assert third[0].startswith(b"HTTP/1.1 429")
    assert b'"too_many_requests"' in third[0]
    assert b"\r\nretry-after: 1\r\n" in third[0]
    for answer in (first, second, probe, late):
        assert answer[0].startswith(b"HTTP/1.1 200")


def test_a_request_takes_a_place_when_its_body_is_complete() -> None:
    """Fifty bodies that drip kept everybody out for a minute."""
    body = post(9)
    drips = [[(0, body[:-3]), (2, body[-3:-2]), (2, body[-2:-1])]] * 50
    *_, asks, last, one_more = answers_of(
        LIMITS,
        *drips,
        [(3, body)],
        [(0, body[:-1]), (7, body[-1:])],  # complete while another is in progress
        [(6, body.replace(b" /", b" /slow"))],
        max_active_requests=1,
    )
    assert asks[0].startswith(b"HTTP/1.1 200")
    assert last[0].startswith(b"HTTP/1.1 429")
    assert b'"too_many_requests"' in last[0]
    assert one_more[0].startswith(b"HTTP/1.1 200")


def test_of_too_many_bodies_on_their_way_the_one_that_began_first_gives_way() -> None:
    body = post(9)
    first, second, third, late = answers_of(
        replace(LIMITS, bodies=2),
        *([(at, body[:-1]), (20, body[-1:])] for at in (0, 1, 2)),
        [(25, body)],
    )
    assert first[0].startswith(b"HTTP/1.1 429")
    assert b'"too_many_bodies"' in first[0]
    assert b"connection: close" in first[0].lower()
    for answer in (second, third, late):
        assert answer[0].startswith(b"HTTP/1.1 200")


def of_address(
    limits: Limits, requests: Sequence[tuple[float, str, int]], seconds: float = 20
) -> list[int]:
    """The statuses of requests, each with the second in which it begins, its client, and the bytes that come at once.
    The last byte comes so many seconds later."""

    async def main(loop: VirtualTimeLoop) -> list[int]:
        inner = FastAPI()
        install(inner)
        inner.mount("/", echo)
        app = RequestIds(
            RequestLimits(inner, ServerConfig(max_body_mb=1.5), limits, Counts(), asyncio.Event()),
            lambda *answer: None,
        )

        async def ask(begins: float, client: str, size: int) -> int:
            await asyncio.sleep(begins)
            parts = [(loop.time(), b"x" * size, True), (loop.time() + seconds, b"x", False)]
            status: list[int] = []

            async def receive() -> Any:
                await asyncio.sleep(parts[0][0] - loop.time())
                _, part, more = parts.pop(0)
                return {"type": "http.request", "body": part, "more_body": more}

            async def send(message: Any) -> None:
                status.extend([message["status"]] if "status" in message else [])

            scope = {
                "type": "http", "method": "POST", "path": "/", "headers": [], "client": (client, 1), "query_string": b""
            }  # fmt: skip
            await app(scope, receive, send)
            return status[0]

        return await asyncio.gather(*(ask(*request) for request in requests))

    result: list[int] = run(main)
    return result


def test_bodies_of_one_address_take_no_place_of_others() -> None:
    limits = replace(LIMITS, bodies=4, address_bodies=2)
    near = [(0.0, "10.0.0.1", 9), (1.0, "10.0.0.1", 9), (2.0, "10.0.0.1", 9)]
    assert of_address(limits, [(0.0, "10.0.0.2", 9), *near]) == [200, 429, 200, 200]
    same = [
        (0.0, "2001:db8::1", 9),
        (1.0, "2001:db8::2:1", 9),
        (2.0, "2001:db8::3", 9),
        (2.0, "2001:db8:0:1::1", 9),
    ]
    assert of_address(limits, same) == [429, 200, 200, 200]


def test_bodies_on_their_way_from_one_address_take_half_of_the_memory_for_bodies() -> None:
    limits, size = replace(LIMITS, bodies_mb=4.0), 1_200_000
    near = [(0.0, "10.0.0.1", size), (1.0, "10.0.0.1", size)]
    assert of_address(limits, [*near, (2.0, "10.0.0.2", size)]) == [200, 503, 200]


def test_a_request_that_is_spoken_is_in_progress(narrow: Live) -> None:
    with held(narrow, steps=[1]) as engine, contextlib.closing(raw(narrow, {"input": TEXT})):
        engine.wait()
        answer = narrow.speech(input=TEXT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_requests")
        assert narrow.http.get("/health").status_code == 200
    assert until(lambda: narrow.speech(input=TEXT).status_code == 200)


def test_a_request_gives_its_bytes_back_before_it_is_spoken(tight: Live) -> None:
    large = {
        "input": TEXT,
        "user": "x" * 1_400_000,
        "min_frames": 900,
        "max_frames": 900,
        "guard": False,
    }
    with held(tight, steps=[3]) as engine, contextlib.closing(raw(tight, large)):
        engine.wait()
        assert tight.speech(**{**large, "voice": "nobody"}).status_code == 400
    assert tight.idle()


KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
UPGRADE = b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
NO_HANDSHAKES = {
    "POST": [b"POST / HTTP/1.1\r\n" + UPGRADE + KEY + b"\r\n"],
    "its body comes later": [
        b"POST / HTTP/1.1\r\n" + UPGRADE + KEY + b"Content-Length: 5\r\n\r\n",
        b"hello",
    ],
    "its body never comes": [b"POST / HTTP/1.1\r\n" + UPGRADE + KEY + b"Content-Length: 5\r\n\r\n"],
    "GET with a body": [b"GET / HTTP/1.1\r\n" + UPGRADE + KEY + b"Content-Length: 5\r\n\r\nhello"],
    "GET with chunks": [
        b"GET / HTTP/1.1\r\n"
        + UPGRADE
        + KEY
        + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    ],
    "200 headers": [
        b"GET / HTTP/1.1\r\n"
        + UPGRADE
        + KEY
        + b"".join(b"X-%d: y\r\n" % i for i in range(200))
        + b"\r\n"
    ],
    "a long header": [b"GET / HTTP/1.1\r\n" + UPGRADE + KEY + b"X: " + b"y" * 20_000 + b"\r\n\r\n"],
    "a long target": [b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\n" + UPGRADE + KEY + b"\r\n"],
    "no key": [b"GET / HTTP/1.1\r\n" + UPGRADE + b"Sec-WebSocket-Version: 13\r\n\r\n"],
    "a wrong key": [
        b"GET / HTTP/1.1\r\n"
        + UPGRADE
        + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n"
    ],
    "another version": [b"GET / HTTP/1.1\r\n" + UPGRADE + KEY.replace(b"13", b"8") + b"\r\n"],
    "HTTP/1.0": [b"GET / HTTP/1.0\r\n" + UPGRADE + KEY + b"\r\n"],
    "a byte at a time": [bytes([byte]) for byte in b"PUT / HTTP/1.1\r\n" + UPGRADE + KEY + b"\r\n"],
}


@pytest.mark.parametrize("sent", NO_HANDSHAKES.values(), ids=list(NO_HANDSHAKES))
def test_what_cannot_begin_a_websocket_is_a_400_at_once(sent: list[bytes]) -> None:
    received, when = answers(*((0.0, part) for part in sent))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1 ") == 1
    assert json.loads(body)["error"]["code"] == "invalid_handshake"
    assert when == 0


@pytest.mark.parametrize(
    "again", [b"GET / HTTP/1.1\r\n" + UPGRADE + KEY + b"\r\n", NO_HANDSHAKES["POST"][0]]
)
def test_a_handshake_does_not_spoil_the_answer_before(again: bytes) -> None:
    received, when = answers((0, post(3) + again))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"\r\n\r\n  3")
    assert when == 0


class Stub:
    """A connection of which it is only asked whether it was closed."""

    def __init__(self, places: Places) -> None:
        self.transport = MagicMock(asyncio.Transport)
        places.ask(self)

    @property
    def closed(self) -> bool:
        called: bool = self.transport.abort.called
        return called


def test_idle_connections_make_room_first_then_those_that_have_asked_for_nothing_for_longest() -> (
    None
):
    places = Places(4)
    silent, answered, later, served = [Stub(places) for _ in range(4)]
    places.answer(answered)
    places.answer(later)
    places.serve(served)
    for goes in (answered, later, silent):
        new = Stub(places)
        assert goes.closed
        assert len(places) == 4
        assert not new.closed
    places.answer(served)
    places.leave(new)
    assert len(places) == 3


def test_a_connection_that_nobody_makes_room_for_is_closed() -> None:
    places = Places(1)
    served = Stub(places)
    places.serve(served)
    assert Stub(places).closed
    assert not served.closed
    assert len(places) == 1


@pytest.mark.parametrize("note", [Places.answer, Places.serve, Places.ask])
def test_a_closed_connection_gets_no_place_again(note: Callable[[Places, Stub], None]) -> None:
    """Its protocol may have callbacks to come."""
    places = Places(1)
    gone = Stub(places)
    Stub(places)
    note(places, gone)
    assert len(places) == 1


def test_to_make_room_takes_as_much_work_with_many_connections_as_with_few() -> None:
    def work(connections: int) -> int:
        places, calls = Places(connections), 0
        for i in range(connections):
            [places.ask, places.answer][i % 2](Stub(places))

        def count(*event: Any) -> None:
            nonlocal calls
            calls += 1

        gc.disable()  # what it calls, such as finalizers of other tests, counts for nothing
        sys.setprofile(count)
        try:
            Stub(places)
        finally:
            sys.setprofile(None)
            gc.enable()
        return calls

    assert work(4000) == work(4)


def test_a_client_that_does_not_read_its_last_answer_loses_the_connection() -> None:
    """Also where the server has closed, which alone would wait for it for ever."""

    async def large(scope: Any, receive: Any, send: Any) -> None:
        size = 8 << 20
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % size)],
            }
        )
        await send({"type": "http.response.body", "body": b"x" * size})

    for request in (b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"):
        assert lost_after(large, request) == 60


async def websocket(scope: Any, receive: Any, send: Any) -> None:
    """A session that sends more than a client may leave unread, and closes."""
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "bytes": b"x" * (8 << 20)})


def test_a_websocket_whose_client_does_not_read_loses_the_connection() -> None:
    assert lost_after(websocket, b"GET / HTTP/1.1\r\n" + UPGRADE + KEY + b"\r\n") == 60


def lost_after(app: Any, request: bytes) -> float:
    """When the server gives up a client that reads nothing of its answer, in seconds."""

    async def main(loop: VirtualTimeLoop) -> float:
        config = uvicorn.Config(
            app, http=limited(LIMITS), log_config=None, lifespan="off", ws_ping_interval=None
        )
        config.load()
        state = uvicorn.server.ServerState()
        began = loop.time()
        ours, theirs = socket.socketpair()
        with theirs:
            await loop.connect_accepted_socket(
                lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),
                ours,
            )
            theirs.sendall(request)
            await asyncio.sleep(1)
            assert state.connections
            while state.connections:
                await asyncio.sleep(1)
        return loop.time() - began

    seconds: float = run(main)
    return seconds
