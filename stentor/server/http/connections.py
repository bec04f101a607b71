"""HTTP connections with a deadline. uvicorn alone keeps a silent connection, or one that drips headers, for ever."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from stentor.server.errors import ApiError
from stentor.server.json_sse import json_bytes
from stentor.server.limits import LIMITS, Limits

SPEECH = "/v1/audio/speech"
SPEECH_URL = SPEECH.encode()
Arriving = Callable[[], Callable[[], None]]
"""Called when a request for speech has been read. What it returns is called when the request has a plan (`handled` in
the scope's state), and at the latest when its handler waits for the first time or has ended. Of requests that come
together, engines so know that others follow."""


class Connection(HttpToolsProtocol):
    """Closes itself when no request begins for `keep_alive_seconds`, when the headers or the rest of an unread body are
    not there `request_seconds` after the first byte, and when headers are too large. The deadline of a body that is
    read is enforced where it is read, by its `body_deadline` in the scope's state, so that it gets an answer."""

    limits = LIMITS
    arriving: Arriving = staticmethod(lambda: nobody)
    timer: asyncio.TimerHandle | None = None
    in_headers = receiving = False
    header_bytes = 0  # received of headers that have not ended
    parsed_bytes = 0  # of the target and the headers
    idle_since = 0.0

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.parser = _Parser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # uvloop's is no subclass of it
        self._start_idle()
        if len(self.connections) > self.limits.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.in_headers:
            self.header_bytes += len(data)
            if self.header_bytes > self.limits.max_head_kib << 10:
                self._refuse_headers()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP. uvicorn does so in plain text, also in the middle of the answer before."""
        if self.busy and (self.in_headers or not self.receiving):
            self.cycle.keep_alive = False  # the connection ends with the answer before
            return
        self._refuse(ApiError(400, "the request is not valid HTTP", code="invalid_http"))

    def handle_websocket_upgrade(self) -> None:
        if self.transport.is_closing():  # its headers were refused
            return
        self._stop_timer()  # the session has deadlines of its own
        super().handle_websocket_upgrade()

    @property
    def offered(self) -> bool:
        """Whether the request that was parsed offers another protocol than WebSocket."""
        names = {name for name, _ in self.headers}
        return self.parser.should_upgrade() and b"upgrade" in names and not self._should_upgrade()

    def decline(self) -> _Parser:
        """Take the request that was parsed, which offers another protocol, as one that does not. Returns the parser of
        what is behind its headers."""
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        head = [line, *(name + b": " + value for name, value in self.headers if name != b"upgrade"), b"", b""]
        self.parser = parser = _Parser(self)
        parser.feed_data(b"\r\n".join(head))
        return parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stop_timer()
        self.in_headers = self.receiving = True
        self.header_bytes = self.parsed_bytes = 0
        seconds = self.limits.request_seconds
        self.timer = self.loop.call_later(seconds, self._overdue)
        if not self.busy:  # a pipelined request waits for us, not for its client
            self.scope["state"]["body_deadline"] = self.loop.time() + seconds

    def on_url(self, url: bytes) -> None:
        self.parsed_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.parsed_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parsed_bytes > self.limits.max_head_kib << 10:  # they came in one read
            self._refuse_headers()
            return
        if self.offered:
            return
        super().on_headers_complete()
        self.in_headers = False
        cycle = self.cycle
        if cycle is not None and cycle.scope is self.scope and self.scope["http_version"] == "1.0":
            vars(cycle)["send"] = _until_closed(cycle)  # in place of the method of this one cycle

    def on_message_complete(self) -> None:
        if self.offered:
            return
        super().on_message_complete()
        if self.url.partition(b"?")[0].endswith(SPEECH_URL):
            handled = self.scope["state"]["handled"] = self.arriving()
            self.loop.call_soon(handled)  # behind the first part of the task that answers it
        self.receiving = False
        self._stop_timer()
        if not self.busy:  # it was answered before it was complete
            self._start_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.receiving and not self.busy and not self.transport.is_closing():
            self._start_idle()

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def answerable(self) -> bool:
        """Whether an error would be the answer to the request that comes, and not a part of the one before."""
        if self.receiving and not self.in_headers:  # its body
            return not self.cycle.response_started and not self.pipeline
        return not self.busy

    @property
    def idle(self) -> bool:
        """Whether nobody would lose an answer if it were closed."""
        return not self.busy and not self.transport.is_closing()

    def end(self) -> None:
        """Close at once, also if the client does not read the last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _start_idle(self) -> None:
        self._stop_timer()
        self.idle_since = self.loop.time()
        self.timer = self.loop.call_later(self.limits.keep_alive_seconds, self.end)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _overdue(self) -> None:
        if self.busy:  # the answer says so, or a later request waits behind it
            self.timer = self.loop.call_later(self.limits.request_seconds, self._overdue)
        elif self.in_headers:
            self._refuse(ApiError(408, "the headers did not come in time"))
        else:
            self.end()

    def _refuse_headers(self) -> None:
        self._refuse(ApiError(431, "the headers are too large", code="headers_too_large"))

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that no route has seen, and close."""
        if not self.transport.is_closing() and self.answerable:
            body = json_bytes(error.body)
            head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has been without a request for longest. If there is none, the new one."""
        others = [c for c in self.connections if isinstance(c, Connection) and c.idle]
        min(others, key=lambda c: c.idle_since, default=self).transport.abort()


class _Parser(httptools.HttpRequestParser):
    """A parser that declines offers of other protocols, which a server may do (RFC 9110, 7.8).

    Clients of Java offer HTTP/2 (h2c) with each request. httptools gives no body of such a request, and parses no more.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.connection = connection
        self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn

    def feed_data(self, data: Any) -> None:
        parser, rest = self, memoryview(data)
        while (end := parser._end_of_offer(rest)) is not None:
            parser, rest = self.connection.decline(), rest[end:]

    def _end_of_offer(self, data: memoryview) -> int | None:
        """Parse up to the end of the headers of a request that offers another protocol. None: there is none."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as e:
            if not self.connection.offered:
                raise
            end: int = e.args[0]
            return end
        return None


def _until_closed(cycle: RequestResponseCycle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """`send` for a client of HTTP/1.0, which knows no chunks. A body of unknown length ends with the connection.

    uvicorn would send chunks. It takes a body without them if told its length, here of one part at a time.
    """
    send, by_parts = cycle.send, False

    async def plain(message: Any) -> None:
        nonlocal by_parts
        if message["type"] == "http.response.start":
            by_parts = b"content-length" not in {name.lower() for name, _ in message.get("headers", ())}
            if by_parts:
                cycle.chunked_encoding = False
        elif by_parts:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return plain


def nobody() -> None:
    """What `Arriving` returns where nobody is told."""


def limited(limits: Limits, arriving: Arriving = Connection.arriving) -> type[Connection]:
    """Connections with these limits, fewer if the process may not open so many descriptors. `arriving` is told of each
    request for speech."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections + limits.spare_descriptors
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        limits = limits.with_connections(max(limits.spare_descriptors, soft - limits.spare_descriptors))
    return type("LimitedConnection", (Connection,), {"limits": limits, "arriving": staticmethod(arriving)})
