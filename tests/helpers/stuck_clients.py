"""Clients that begin and never go on, in all the ways they can."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from tests.helpers.patience import STUCK_S

POST = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET_WS = (
    b"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
STUCK = {
    "silent": b"",
    "half a header": POST + b"X: ",
    "half a body": POST + b"Content-Length: 99\r\n\r\n{",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n63\r\n{",
    "no body": POST + b"Content-Length: 99\r\nExpect: 100-continue\r\n\r\n",
    "a websocket that says nothing": GET_WS + b"\r\n",
    "a websocket by POST": GET_WS.replace(b"GET", b"POST") + b"\r\n",
    "a websocket with a body": GET_WS + b"Content-Length: 9\r\n\r\n{",
    "a websocket with many headers": GET_WS
    + b"".join(b"X-%d: y\r\n" % i for i in range(200))
    + b"\r\n",
    "a websocket with a large header": GET_WS + b"X: " + b"y" * 20_000 + b"\r\n\r\n",
}


def address(url: str) -> tuple[str, int]:
    """Host and port."""
    host, port = url.partition("://")[2].split(":")
    return host, int(port)


@contextlib.contextmanager
def stuck(url: str, of_each: int, *more: bytes) -> Iterator[None]:
    """So many connections of each kind."""
    with contextlib.ExitStack() as stack:
        for sent in [*STUCK.values(), *more] * of_each:
            s = stack.enter_context(socket.create_connection(address(url), STUCK_S))
            with contextlib.suppress(ConnectionError):
                s.sendall(sent)
        yield
