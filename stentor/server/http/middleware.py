"""Gates in front of the routes, as plain ASGI: keys, body size, requests in progress, request ids."""

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

BODY_SECONDS = 30.0  # between two parts of a body
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def authorized(given: str, keys: tuple[str, ...]) -> bool:
    """Whether a bearer token is one of `keys`; takes the same time wherever it differs."""
    token = given.removeprefix("Bearer ").encode("latin-1", "replace")  # the bytes as they came
    return any([hmac.compare_digest(token, k.encode()) for k in keys])  # noqa: C419 (every key is compared)


class Gate:
    """Answers 401, 413 and 429 before a body is read; limits bodies that lie about their size; names each request."""

    def __init__(self, app: ASGIApp, config: ServerConfig, note: Callable[[str, int], None]) -> None:
        """`note(route, status)` is told of every HTTP answer."""
        self.app, self.config, self.note = app, config, note
        self.most = int(config.max_body_mb * MIB)
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = self._name(scope)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("X-Request-Id", id)
                route = scope.get("route")
                self.note("none" if route is None else route.path, message["status"])
            await send(message)

        work = scope["method"] == "POST"
        try:
            self._check(scope, work)
        except ApiError as e:
            await json_response(e.body, e.status, e.headers)(scope, receive, sent)
            return
        body = _Limited(receive, self.most)
        self.active += work
        try:
            await self.app(scope, body, sent)
        finally:
            self.active -= work

    def _check(self, scope: Scope, work: bool) -> None:
        headers = Headers(scope=scope)
        keys = self.config.api_key
        guarded = scope["path"].startswith("/v1/") and scope["method"] != "OPTIONS"
        if keys and guarded and not authorized(headers.get("authorization", ""), keys):
            raise ApiError(401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.most:
            raise too_large(self.most)
        if work and self.active >= self.config.max_active_requests:
            raise ApiError(
                429, f"{self.active} requests are in progress already", code="too_many_requests", retry_after=1
            )

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._name(scope)
        headers = Headers(scope=scope)
        refused = None
        if self.config.api_key and not authorized(headers.get("authorization", ""), self.config.api_key):
            refused = ApiError(401, "a valid API key is needed", code="invalid_api_key")
        elif not self._same_origin(headers):
            refused = ApiError(403, "this origin may not open a WebSocket here", code="origin_not_allowed")
        if refused is not None:
            await _deny(scope, send, refused)
            return
        await self.app(scope, receive, send)

    def _same_origin(self, headers: Headers) -> bool:
        """Browsers send WebSockets anywhere, so the origin is ours to check; other clients send none."""
        origin = headers.get("origin")
        allowed = self.config.allowed_origins
        return origin is None or "*" in allowed or origin in allowed or urlsplit(origin).netloc == headers.get("host")

    @staticmethod
    def _name(scope: Scope) -> str:
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if REQUEST_ID.fullmatch(given) else "req-" + secrets.token_hex(12)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = id
        return id


def too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most / MIB:g} MiB", code="body_too_large")


class _Limited:
    """receive() that raises HTTPException 413 once a body has become too large; FastAPI calls any other exception from
    here a body that could not be parsed."""

    def __init__(self, receive: Receive, most: int) -> None:
        self.receive, self.most, self.seen = receive, most, 0
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
        self.seen += len(message.get("body", b""))
        if self.seen > self.most:
            raise HTTPException(413, too_large(self.most).message)
        return message


async def _deny(scope: Scope, send: Send, error: ApiError) -> None:
    """Refuse a WebSocket handshake, with a body where the server can."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    body = json_response(error.body).body
    headers = [(b"content-type", b"application/json")]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
