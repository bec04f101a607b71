"""ASGI middleware in front of the routes: the path and the id of a request. authentication.py and bodies.py follow."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.server.limits import LIMITS
from stentor.server.logs import REQUEST_ID

SLASHES = re.compile("/{2,}")
GIVEN_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{LIMITS.request_id_chars}}}")


class RootPath:
    """Tells routes the prefix that a proxy in front removes. They take paths with and without it.

    Slashes in a row, which a base URL with a slash at its end makes, count as one.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app, self.root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.root_path:
            scope["root_path"] = self.root_path
        if "path" in scope:
            scope["path"] = SLASHES.sub("/", scope["path"])
        await self.app(scope, receive, send)


class HeadAsGet:
    """Has routes answer HEAD as they answer GET. The HTTP server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            scope["method"] = "HEAD"  # as the server and the access log know it
            await send(message)

        scope["method"] = "GET"
        await self.app(scope, receive, send_head)


class RequestIds:
    """Gives each request and WebSocket an id, and reports every HTTP response to `on_response(route, status)`."""

    def __init__(self, app: ASGIApp, on_response: Callable[[str, int], None]) -> None:
        self.app, self.on_response = app, on_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if GIVEN_ID.fullmatch(given) else "req-" + secrets.token_hex(12)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = id
        REQUEST_ID.set(id)  # of the task that handles this request, and of what it starts

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("X-Request-Id", id)
                route = scope.get("route")
                self.on_response("none" if route is None else route.path, message["status"])
            await send(message)

        await self.app(scope, receive, send_with_id if scope["type"] == "http" else send)
