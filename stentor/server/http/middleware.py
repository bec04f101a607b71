"""ASGI middleware in front of the routes: request ids first, then authentication.py, then the limits of requests."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.server.config import MIB, ServerConfig
from stentor.server.errors import ApiError
from stentor.server.http.authentication import respond
from stentor.server.limits import LIMITS

BODY_SECONDS = LIMITS.body_seconds  # between two parts of a body
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RootPath:
    """Tells routes the prefix that a proxy in front removes. They take paths with and without it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app, self.root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.root_path:
            scope["root_path"] = self.root_path
        await self.app(scope, receive, send)


class RequestIds:
    """Gives each request and WebSocket an id, and reports every HTTP response to `on_response(route, status)`."""

    def __init__(self, app: ASGIApp, on_response: Callable[[str, int], None]) -> None:
        self.app, self.on_response = app, on_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if REQUEST_ID.fullmatch(given) else "req-" + secrets.token_hex(12)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("X-Request-Id", id)
                route = scope.get("route")
                self.on_response("none" if route is None else route.path, message["status"])
            await send(message)

        await self.app(scope, receive, send_with_id if scope["type"] == "http" else send)


class RequestLimits:
    """Limits body sizes and POST requests in progress. Answers 413 or 429 before a body is read, and cuts off a body
    that is larger than its Content-Length says."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app, self.config = app, config
        self.max_bytes = int(config.max_body_mb * MIB)
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counted = scope["method"] == "POST"
        if (refused := self._refuse(scope, counted)) is not None:
            await respond(refused, scope, receive, send)
            return
        self.active += counted
        try:
            await self.app(scope, _LimitedBody(receive, self.max_bytes), send)
        finally:
            self.active -= counted

    def _refuse(self, scope: Scope, counted: bool) -> ApiError | None:
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > self.max_bytes:
            return too_large(self.max_bytes)
        if counted and self.active >= self.config.max_active_requests:
            return ApiError(
                429, f"{self.active} requests are in progress already", code="too_many_requests", retry_after=1
            )
        return None


class _LimitedBody:
    """receive() that raises HTTPException 413 once a body is too large and 408 when none of it arrives for
    BODY_SECONDS. It must be an HTTPException: FastAPI reports any other exception from here as a body that it could
    not parse."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self.receive, self.max_bytes, self.received = receive, max_bytes, 0
        self.complete = False

    async def __call__(self) -> Message:
        if self.complete:
            return await self.receive()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                message = await self.receive()
        except TimeoutError:
            raise HTTPException(408, f"nothing of the body came for {BODY_SECONDS:g} s") from None
        self.complete = not message.get("more_body", False)
        self.received += len(message.get("body", b""))
        if self.received > self.max_bytes:
            raise HTTPException(413, too_large(self.max_bytes).message)
        return message


def too_large(max_bytes: int) -> ApiError:
    """413 for a body above `max_bytes`."""
    return ApiError(413, f"the body is larger than {max_bytes / MIB:g} MiB", code="body_too_large")
