"""Connections over TLS: each has a deadline from its first byte on, whatever its client does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from stentor.server.config import ServerConfig
from stentor.server.http.connections import limited
from stentor.server.limits import LIMITS
from stentor.server.main import tls_context
from tests.helpers.certificate import NEEDS_OPENSSL, Certificate, make
from tests.helpers.virtual_time import VirtualTimeLoop, run

pytestmark = NEEDS_OPENSSL

Parts = Sequence[tuple[float, bytes]]
"""Bytes, each so many seconds after the last."""
UNASKED = LIMITS.keep_alive_seconds + LIMITS.flush_seconds
"""The server waits for the client to say that it closes its side too, unless it goes on sending."""
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make(tmp_path_factory.mktemp("certificate"))


def context(made: Certificate) -> ssl.SSLContext:
    found = tls_context(ServerConfig(ssl_keyfile=str(made.key), ssl_certfile=str(made.certificate)))
    assert found is not None
    return found


class Client:
    """Makes the bytes of a client of TLS, to be sent as it likes."""

    def __init__(self, made: Certificate) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        trust = ssl.create_default_context(cafile=str(made.certificate))
        self.tls = trust.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")

    def hello(self) -> bytes:
        """Give the bytes that it sends first."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def encrypted(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    async def shake_hands(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        await loop.sock_sendall(sock, self.hello())
        while True:
            self.incoming.write(await loop.sock_recv(sock, 1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                await loop.sock_sendall(sock, self.outgoing.read())
                return


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
    )
    await send({"type": "http.response.body"})


def closed_after(made: Certificate, shakes_hands: bool, sent: Callable[[Client], Parts]) -> float:
    """Seconds after which the server has closed the connection of a client that sends these parts and reads all."""

    async def main(loop: VirtualTimeLoop) -> float:
        config = uvicorn.Config(
            answer, http=limited(LIMITS, context(made)), log_config=None, lifespan="off"
        )
        config.load()
        state, began, client = uvicorn.server.ServerState(), loop.time(), Client(made)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        await loop.connect_accepted_socket(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),
            ours,
        )
        if shakes_hands:
            await client.shake_hands(loop, theirs)

        async def send() -> None:
            for seconds, part in sent(client):
                await asyncio.sleep(seconds)
                await loop.sock_sendall(theirs, part)

        sending = asyncio.ensure_future(send())
        with contextlib.suppress(ConnectionError):
            while await loop.sock_recv(theirs, 1 << 16):
                pass
        sending.cancel()
        theirs.close()
        ended = loop.time() - began
        await asyncio.sleep(0)
        assert not state.connections
        return ended

    result: float = run(main)
    return result


def dripping(data: bytes, seconds: float) -> Parts:
    return [(seconds, bytes([byte])) for byte in data]


@pytest.mark.parametrize(
    "sent",
    [
        lambda client: [],
        lambda client: [(0.0, client.hello()[:7])],
        lambda client: [(0.0, client.hello())],
        lambda client: [(9.0, client.hello()[:-1])],
        lambda client: dripping(client.hello(), 0.5),
        lambda client: [(0.0, b"\x16\x03\x01\x40\x00")],
    ],
    ids=[
        "nothing",
        "part of a hello",
        "only a hello",
        "a late hello",
        "a hello that drips",
        "a long record",
    ],
)
def test_a_handshake_that_does_not_end_is_closed(
    made: Certificate, sent: Callable[[Client], Parts]
) -> None:
    assert closed_after(made, False, sent) == LIMITS.handshake_seconds


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (lambda client: [], UNASKED),
        (lambda client: [(0.0, client.encrypted(HEAD)[:-1])], UNASKED),
        (lambda client: dripping(client.encrypted(HEAD), 1.0), UNASKED),
        (
            lambda client: [(0.0, client.encrypted(HEAD))],
            LIMITS.request_seconds + LIMITS.flush_seconds,
        ),
        (
            lambda client: [(1.0, client.encrypted(b"X: y\r\n" if i else HEAD)) for i in range(99)],
            1 + LIMITS.request_seconds,
        ),
    ],
    ids=[
        "nothing",
        "part of a record",
        "a record that drips",
        "half of the headers",
        "headers that drip",
    ],
)
def test_a_client_that_shakes_hands_and_never_asks_is_closed(
    made: Certificate, sent: Callable[[Client], Parts], seconds: float
) -> None:
    assert closed_after(made, True, sent) == pytest.approx(seconds)


def test_a_client_cannot_make_the_server_shake_hands_again(made: Certificate) -> None:
    """Before TLS 1.3 it could, as often as it likes."""
    assert context(made).options & ssl.OP_NO_RENEGOTIATION


def test_a_certificate_that_is_replaced_on_disk_is_used_after_a_restart(tmp_path: Path) -> None:
    """Files are read at the start (docs/serving/access.md)."""
    old = make(tmp_path)
    running = context(old)
    old_bytes = ssl.PEM_cert_to_DER_cert(old.certificate.read_text())
    new = make(tmp_path)
    new_bytes = ssl.PEM_cert_to_DER_cert(new.certificate.read_text())
    assert new_bytes != old_bytes

    assert shown_to_a_client(running) == old_bytes
    assert shown_to_a_client(context(new)) == new_bytes


def shown_to_a_client(server: ssl.SSLContext) -> bytes | None:
    """The certificate that a client gets in its handshake."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        trusting.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert(binary_form=True)
