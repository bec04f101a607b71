"""HTTP connections with a deadline, and a place for so many of them. uvicorn alone keeps a silent
connection, or one that drips headers, for ever."""

from __future__ import annotations

import asyncio
import math
import resource
import ssl
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from websockets.http11 import Request
from websockets.server import ServerProtocol

from stentor.server.errors import ApiError
from stentor.server.http.frames import Pace, PacedTransport
from stentor.server.limits import LIMITS, Limits
from stentor.server.wire_json import json_bytes

Headers = Sequence[tuple[bytes, bytes]]


class Places:
    """The connections of a process, at most `most`. One beyond them takes the place of the one that
    has been idle for longest after an answer, or else of the one whose first request has been on
    its way for longest. The work for each is constant."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._answered: OrderedDict[Connection, None] = OrderedDict()
        # its request, or its handshake, is not complete
        self._asking: OrderedDict[Connection, None] = OrderedDict()
        self._served: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._answered) + len(self._asking) + len(self._served)

    def ask(self, connection: Connection) -> None:
        """Note a connection whose request is on its way. A new one may have another closed."""
        was_served = self._take(connection)
        self._asking[connection] = None
        if not was_served and len(self) > self.most:
            goes = next(iter(self._answered or self._asking))
            self._take(goes)
            goes.transport.abort()

    def serve(self, connection: Connection) -> None:
        """Note a connection whose request is answered now, or that is a WebSocket. It keeps its
        place."""
        if self._take(connection):
            self._served.add(connection)

    def answer(self, connection: Connection) -> None:
        """Note a connection that waits for a next request."""
        if self._take(connection):
            self._answered[connection] = None

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        self._take(connection)

    def _take(self, connection: Connection) -> bool:
        """Whether it had a place, which it has no more."""
        for places in (self._answered, self._asking):
            if connection in places:
                del places[connection]
                return True
        was_served = connection in self._served
        self._served.discard(connection)
        return was_served


class Connection(HttpToolsProtocol):
    """Closes itself when no request begins for `keep_alive_seconds`, when the headers or the rest
    of an unread body are not there `request_seconds` after the first byte, when headers are too
    large, and when what it has left to send is not read. The deadline of a body that is read is
    enforced where it is read, by its `body_deadline` in the scope's state, so that it gets an
    answer. It stays the transport's protocol when the connection becomes a WebSocket."""

    limits = LIMITS
    places = Places(LIMITS.max_connections)
    session: asyncio.Protocol | None = None  # of a WebSocket: takes what comes from then on
    pace: Pace  # of that session
    timer: asyncio.TimerHandle | None = None
    deadline = 0.0  # of what the client is to do next, unless it is being answered
    in_headers = receiving = refused = False
    header_bytes = 0  # received of headers that have not ended
    parsed_bytes = 0  # of the target and the headers
    unread: float = math.inf  # bytes that the client had not taken when it was last looked at

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.parser = _Parser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # uvloop's is no subclass of it
        self._due(self.loop.time() + self.limits.keep_alive_seconds)
        self.places.ask(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.places.leave(self)
        if self.timer is not None:
            self.timer.cancel()
        if self.session is not None:
            self.pace.close()
            self.session.connection_lost(exc)
        else:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.pace.data_received(data)
            return
        if self.refused:
            return
        super().data_received(data)
        if self.in_headers:
            self.header_bytes += len(data)
            if self.header_bytes > self.limits.max_head_kib << 10:
                self._refuse_headers()

    def pause_writing(self) -> None:
        (self.flow if self.session is None else self.session).pause_writing()

    def resume_writing(self) -> None:
        (self.flow if self.session is None else self.session).resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP. uvicorn does so in plain text, also in the middle of the answer
        before."""
        self._refuse(ApiError(400, "the request is not valid HTTP", code="invalid_http"))

    def handle_websocket_upgrade(self) -> None:
        if self.refused:
            return
        transport = self.transport
        self.pace = Pace(transport, self.loop, self.limits)
        self.transport = cast(asyncio.Transport, PacedTransport(transport, self.pace))
        super().handle_websocket_upgrade()
        self.transport = transport
        self.session = self.pace.session = cast(asyncio.Protocol, transport.get_protocol())
        transport.set_protocol(self)
        self.places.serve(self)

    @property
    def offered(self) -> bool:
        """Whether the request that was parsed offers another protocol than WebSocket."""
        names = {name for name, _ in self.headers}
        return self.parser.should_upgrade() and b"upgrade" in names and not self._should_upgrade()

    @property
    def _line(self) -> bytes:
        """The first line of the request that was parsed."""
        return b"%b %b HTTP/%b" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )

    def decline(self) -> _Parser:
        """Take the request that was parsed, which offers another protocol, as one that does not.
        Returns the parser of what is behind its headers."""
        head = [
            self._line,
            *(name + b": " + value for name, value in self.headers if name != b"upgrade"),
            b"",
            b"",
        ]
        self.parser = parser = _Parser(self)
        parser.feed_data(b"\r\n".join(head))
        return parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.in_headers = self.receiving = True
        self.header_bytes = self.parsed_bytes = 0
        self._due(self.loop.time() + self.limits.request_seconds)
        if not self.busy:  # a pipelined request waits for us, not for its client
            self.scope["state"]["body_deadline"] = self.deadline
            self.places.ask(self)

    def on_url(self, url: bytes) -> None:
        self.parsed_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.parsed_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.refused:
            return
        if self.parsed_bytes > self.limits.max_head_kib << 10:  # they came in one read
            self._refuse_headers()
            return
        if self.offered:
            return
        if self.parser.should_upgrade() and self._should_upgrade():
            self._check_handshake()
        super().on_headers_complete()
        self.in_headers = False
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope and self.scope["http_version"] == "1.0":
            vars(cycle)["send"] = _until_closed(cycle)  # in place of the method of this one cycle

    def on_body(self, body: bytes) -> None:
        if not self.refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.refused or self.offered:
            return
        super().on_message_complete()
        self.receiving = False
        if self.busy:
            self.places.serve(self)
        else:  # it was answered before it was complete
            self._idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.busy or self.transport.is_closing():
            return
        if self.receiving:
            self.places.ask(self)
            self._due(self.deadline)
        else:
            self._idle()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def answerable(self) -> bool:
        """Whether an error would be the answer to the request that comes, and not a part of the one
        before."""
        if self.receiving and not self.in_headers and self.cycle is not None:  # its body
            return not self.cycle.response_started and not self.pipeline
        return not self.busy

    def _idle(self) -> None:
        """Wait for the next request."""
        self.unread = math.inf
        self._due(self.loop.time() + self.limits.keep_alive_seconds)
        self.places.answer(self)

    def _due(self, deadline: float) -> None:
        """Set the deadline of the client's next bytes. The timer is moved only where it would be
        late."""
        self.deadline = deadline
        if self.timer is None or self.timer.when() > deadline:
            self._look_at(deadline)

    def _look_at(self, time: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_at(time, self._look)

    def _look(self) -> None:
        """Close the connection if the client has not done what it was to do."""
        now = self.loop.time()
        if not self.transport.is_closing() and (
            self.session is not None or self.busy or now < self.deadline
        ):
            self._look_at(
                self.deadline if now < self.deadline else now + self.limits.request_seconds
            )
        elif self._reads():
            self._look_at(now + self.limits.keep_alive_seconds)
        elif self.transport.get_write_buffer_size() or self.transport.is_closing():
            self.transport.abort()
        elif self.in_headers:
            self._refuse(ApiError(408, "the headers did not come in time"))
        else:
            self.transport.close()

    def _reads(self) -> bool:
        """Whether the client takes what is left to send."""
        before = self.unread
        self.unread = self.transport.get_write_buffer_size()
        return 0 < self.unread < before

    def _check_handshake(self) -> None:
        """Refuse a request for a WebSocket that uvicorn's own protocol would neither answer nor
        close."""
        if (why := not_a_handshake(self._line, self.headers)) is not None:
            self._refuse(
                ApiError(400, f"this cannot begin a WebSocket: {why}", code="invalid_handshake")
            )
        elif self.busy:
            self._refuse(ApiError(400, "a WebSocket cannot begin before the last answer has ended"))

    def _refuse_headers(self) -> None:
        self._refuse(ApiError(431, "the headers are too large", code="headers_too_large"))

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that no route has seen, and close. Behind another answer, close with
        that."""
        if self.refused or self.transport.is_closing():
            return
        self.refused = True  # nothing more is read
        if self.busy and (self.in_headers or not self.receiving):
            self.cycle.keep_alive = False
            return
        if self.answerable:
            body = json_bytes(error.body)
            head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class _Parser(httptools.HttpRequestParser):
    """A parser that declines offers of other protocols, which a server may do (RFC 9110, 7.8).

    Clients of Java offer HTTP/2 (h2c) with each request. httptools passes on no body of such a
    request, and stops parsing.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.connection = connection
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn

    def feed_data(self, data: Any) -> None:
        parser = self
        rest = memoryview(data)
        while (end := parser._end_of_offer(rest)) is not None:
            parser = self.connection.decline()
            rest = rest[end:]

    def _end_of_offer(self, data: memoryview) -> int | None:
        """Parse up to the end of the headers of a request that offers another protocol. None: there
        is none."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as e:
            if not self.connection.offered:
                raise
            end: int = e.args[0]
            return end
        return None


def _until_closed(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """`send` for a client of HTTP/1.0, which knows no chunks. A body of unknown length ends with
    the connection.

    uvicorn would send chunks. It takes a body without them if it knows the length, here of one part
    at a time.
    """
    send = cycle.send
    by_parts = False

    async def plain(message: Any) -> None:
        nonlocal by_parts
        if message["type"] == "http.response.start":
            by_parts = b"content-length" not in {
                name.lower() for name, _ in message.get("headers", ())
            }
            if by_parts:
                cycle.chunked_encoding = False
        elif by_parts:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return plain


def not_a_handshake(line: bytes, headers: Headers) -> str | None:
    """Why a request for a WebSocket is no valid handshake. None: it is one."""
    trial = ServerProtocol()
    trial.receive_data(
        b"\r\n".join([line, *(name + b": " + value for name, value in headers), b"", b""])
    )
    for request in trial.events_received():
        trial.accept(cast(Request, request))
    if trial.handshake_exc is None:
        return None
    return str(trial.handshake_exc)


class TlsConnection(Connection):
    """Makes its TLS handshake itself. asyncio's own server holds a connection for a minute before
    it reports it, so that nothing could be closed for others."""

    tls: ssl.SSLContext
    shaking: asyncio.Task[None]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.early = b""  # what came while asyncio handed the connection over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.connections.add(self)
        self.places.ask(self)
        self.shaking = self.loop.create_task(self._shake_hands(self.transport))

    def data_received(self, data: bytes) -> None:
        if self.shaking.done():
            super().data_received(data)
        else:
            self.early += data

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        loop = self.loop
        limits = self.limits
        try:
            encrypted = await loop.start_tls(
                plain,
                self,
                self.tls,
                server_side=True,
                ssl_handshake_timeout=limits.handshake_seconds,
                ssl_shutdown_timeout=limits.flush_seconds,
            )
        except OSError:  # what came is no TLS, or too slow, or the client has gone
            encrypted = None
        if encrypted is None:
            plain.abort()
            self.connections.discard(self)
            self.places.leave(self)
            return
        super().connection_made(encrypted)
        if self.early:
            super().data_received(self.early)
            self.early = b""


def fitted(limits: Limits) -> Limits:
    """Return limits with fewer connections if the process may not open so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.max_connections + limits.spare_descriptors
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    if hard == resource.RLIM_INFINITY:
        soft = needed
    else:
        soft = min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return replace(
        limits, max_connections=max(limits.spare_descriptors, soft - limits.spare_descriptors)
    )


def limited(limits: Limits, tls: ssl.SSLContext | None = None) -> type[Connection]:
    """Connections with these limits, over TLS if `tls` is set."""
    attributes = {"limits": limits, "places": Places(limits.max_connections)}
    if tls is None:
        return type("LimitedConnection", (Connection,), attributes)
    return type("LimitedTlsConnection", (TlsConnection,), {**attributes, "tls": tls})
