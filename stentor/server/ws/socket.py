"""Sessions over WebSocket, whatever protocol their messages have."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from stentor.server.backpressure import Disconnected
from stentor.server.client_json import loads
from stentor.server.errors import ApiError
from stentor.server.json_sse import json_bytes, json_response
from stentor.server.limits import LIMITS
from stentor.server.sessions import CloseSession, Outbox, Session, counted, refusal
from stentor.server.state import Server, server

MAX_CONFIG_BYTES = LIMITS.ws_config_mb << 20  # of any message. A replica's uvicorn, which Ray starts, takes more
MAX_AHEAD_BYTES = LIMITS.ws_ahead_kib << 10  # of what is read during a session.config
MAX_MESSAGE_BYTES = LIMITS.ws_message_kib << 10  # of a message other than session.config


async def serve(ws: WebSocket, make: Callable[[WebSocket, Server], SocketSession]) -> None:
    """Run the session that `make` returns, or refuse the handshake where there is no room for it."""
    s = server(ws)
    if (refused := refusal(s)) is not None:
        await ws.send_denial_response(json_response(refused.body, refused.status, refused.headers))
        return
    session = make(ws, s)
    with counted(s, session):
        await session.run()


def read_json(message: Mapping[str, Any]) -> Any:
    """The JSON value of a text frame. ApiError says what is wrong with it. CloseSession 1009: it is too large."""
    text = message.get("text")
    if text is None:
        raise ApiError(400, "messages must be JSON in text frames", code="invalid_message")
    if len(text) > MAX_CONFIG_BYTES:
        raise CloseSession(
            1009, ApiError(413, f"the message is larger than {LIMITS.ws_config_mb} MiB", code="message_too_large")
        )
    try:
        return loads(text)
    except json.JSONDecodeError:
        raise ApiError(400, "the message is not valid JSON", code="invalid_json") from None


def check_size(message: Mapping[str, Any], what: str) -> None:
    """CloseSession 1009 for a message that is larger than those with text are."""
    if len(message["text"]) > MAX_MESSAGE_BYTES:
        raise CloseSession(
            1009, ApiError(413, f"{what} is larger than {MAX_MESSAGE_BYTES >> 10} KiB", code="message_too_large")
        )


class MessageReader:
    """Gives what a client sends in order. Some of it may be read before it is wanted."""

    def __init__(self, ws: WebSocket) -> None:
        self.ws = ws
        self._ahead: deque[MutableMapping[str, Any]] = deque()

    async def next(self) -> MutableMapping[str, Any]:
        """The next message of ASGI."""
        return self._ahead.popleft() if self._ahead else await self.ws.receive()

    async def ahead(self) -> MutableMapping[str, Any]:
        """Read a message, such as that the client has left, and keep it for `next`. Waits for ever while
        `MAX_AHEAD_BYTES` are kept."""
        if sum(max(1024, len(m.get("text") or m.get("bytes") or ())) for m in self._ahead) >= MAX_AHEAD_BYTES:
            await asyncio.Event().wait()
        message = await self.ws.receive()
        self._ahead.append(message)
        return message


class SocketOutbox(Outbox):
    """Frames on their way to a client of a WebSocket."""

    def __init__(self, ws: WebSocket, max_bytes: int) -> None:
        async def send(frame: str | bytes) -> None:
            try:
                await (ws.send_bytes(frame) if isinstance(frame, bytes) else ws.send_text(frame))
            except WebSocketDisconnect as e:
                raise Disconnected from e

        super().__init__(send, max_bytes)

    def json(self, value: Any, audio: bool = False) -> None:
        """Queue a value as a text frame."""
        self.put(json_bytes(value).decode(), audio)


class SocketSession(Session):
    """A session over WebSocket."""

    out: SocketOutbox
    subprotocol: str | None = None  # of those that the client offers

    def __init__(self, ws: WebSocket, server: Server) -> None:
        super().__init__(server, ws.state.request_id)
        self.ws = ws
        self.traceparent = ws.headers.get("traceparent")
        self.incoming = MessageReader(ws)
        self.out = SocketOutbox(ws, self.max_buffered)

    async def open(self) -> None:
        await self.ws.accept(self.subprotocol)

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self.incoming.next()
        if message["type"] == "websocket.disconnect":
            raise CloseSession(1000)
        return message

    async def hang_up(self, code: int, reason: str) -> None:
        with suppress(WebSocketDisconnect):
            await self.ws.close(code, reason)

    @property
    def connected(self) -> bool:
        return self.ws.client_state is WebSocketState.CONNECTED
