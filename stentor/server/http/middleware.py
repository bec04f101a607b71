"""ASGI middleware in front of the routes, in this order: request ids, authentication, request limits."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.server.config import MIB, ServerConfig
from stentor.server.errors import ApiError
from stentor.server.json_sse import json_response
from stentor.server.limits import LIMITS

BODY_SECONDS = LIMITS.body_seconds  # between two parts of a body
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


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


class Authentication:
    """Checks API keys on /v1 paths and on WebSockets, and the origin of WebSockets. Answers 401 or 403."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app, self.config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._needs_key(scope) and not self._has_key(scope):
            error = ApiError(401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
            await _respond(error, scope, receive, send)
            return
        if scope["type"] == "websocket" and (refused := self._refuse_websocket(scope)) is not None:
            await _deny(scope, send, refused)
            return
        await self.app(scope, receive, send)

    @staticmethod
    def _needs_key(scope: Scope) -> bool:
        path: str = scope["path"]
        return path.startswith("/v1/") and scope["method"] != "OPTIONS"

    def _has_key(self, scope: Scope) -> bool:
        keys = self.config.api_key
        return not keys or authorized(Headers(scope=scope).get("authorization", ""), keys)

    def _refuse_websocket(self, scope: Scope) -> ApiError | None:
        if not self._has_key(scope):
            return ApiError(401, "a valid API key is needed", code="invalid_api_key")
        if not self._same_origin(Headers(scope=scope)):
            return ApiError(403, "this origin may not open a WebSocket here", code="origin_not_allowed")
        return None

    def _same_origin(self, headers: Headers) -> bool:
        """Browsers let any page open a WebSocket, so the server checks the origin. Other clients send none."""
        origin = headers.get("origin")
        allowed = self.config.allowed_origins
        return origin is None or "*" in allowed or origin in allowed or urlsplit(origin).netloc == headers.get("host")


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
            await _respond(refused, scope, receive, send)
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


def authorized(given: str, keys: tuple[str, ...]) -> bool:
    """Whether a bearer token is one of `keys`. The comparison takes the same time wherever they differ."""
    token = given.removeprefix("Bearer ").encode("latin-1", "replace")  # the bytes that the client sent
    return any([hmac.compare_digest(token, k.encode()) for k in keys])  # noqa: C419 (every key is compared)


def too_large(max_bytes: int) -> ApiError:
    """413 for a body above `max_bytes`."""
    return ApiError(413, f"the body is larger than {max_bytes / MIB:g} MiB", code="body_too_large")


async def _respond(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    await json_response(error.body, error.status, error.headers)(scope, receive, send)


async def _deny(scope: Scope, send: Send, error: ApiError) -> None:
    """Refuse a WebSocket handshake, with a body where the ASGI server supports one."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    body = json_response(error.body).body
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
