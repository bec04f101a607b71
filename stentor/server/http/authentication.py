"""Authentication: API keys, and the origins of web pages."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.json_sse import json_response

XI_API_KEY = b"xi-api-key"
SUBPROTOCOL_KEY = "openai-insecure-api-key."
OPEN_LISTS = frozenset({"/v1/audio/voices", "/v1/audio/models"})


class Authentication:
    """Checks API keys on /v1 paths and on WebSockets, and the origin of whatever a browser lets any page send.

    Answers 401 or 403. A browser asks first (CORS) before it sends JSON or a DELETE of another page.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app, self.config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refused = self._refuse(scope, Headers(scope=scope))
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await refuse(refused, scope, receive, send)

    def _refuse(self, scope: Scope, headers: Headers) -> ApiError | None:
        websocket, keys = scope["type"] == "websocket", self.config.api_key
        needs_key = websocket or (scope["method"] != "OPTIONS" and under_api(scope))
        has_key = not keys or any([authorized(given, keys) for given in given_keys(headers)])  # noqa: C419 (as below)
        scope["state"]["authorized"] = has_key
        if needs_key and not has_key and not (self.config.open_lists and _is_open_list(scope)):
            return ApiError(
                401, "a valid API key is needed: Authorization: Bearer KEY, or xi-api-key: KEY", code="invalid_api_key"
            )
        unasked = websocket or (scope["method"] == "POST" and not is_json(headers))
        if unasked and not from_own_origin(headers, self.config.allowed_origins):
            return foreign(headers)
        return None


class Preflight:
    """Refuses what a browser asks before it sends for a page of another origin, and says which flag allows it."""

    def __init__(self, app: ASGIApp, allowed_origins: tuple[str, ...]) -> None:
        self.app, self.allowed_origins = app, allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            headers = Headers(scope=scope)
            asked = "access-control-request-method" in headers
            if asked and not from_own_origin(headers, self.allowed_origins):
                await respond(foreign(headers), scope, receive, send)
                return
        await self.app(scope, receive, send)


def foreign(headers: Headers) -> ApiError:
    """403 for a page of another origin."""
    origin = headers.get("origin", "")
    message = f"pages of {origin} may not send this here; stentor serve --allowed-origins {origin} allows them"
    return ApiError(403, message, code="origin_not_allowed")


def under_api(scope: Scope) -> bool:
    """Whether a request may reach a route under /v1 or /v2."""
    return any(p in ("/v1", "/v2") or p.startswith(("/v1/", "/v2/")) for p in _paths(scope))


def _is_open_list(scope: Scope) -> bool:
    """Whether a request is for one of the two lists that Open WebUI fetches without a header."""
    return scope["type"] == "http" and scope["method"] == "GET" and not OPEN_LISTS.isdisjoint(_paths(scope))


def _paths(scope: Scope) -> tuple[str, str]:
    """The router takes a path with and without the root path."""
    path: str = scope["path"]
    return path, path.removeprefix(scope.get("root_path", "").rstrip("/"))


def given_keys(headers: Headers) -> Iterator[str]:
    """List where a client may put a key: Authorization, ElevenLabs' header, and, for OpenAI's Realtime API in a
    browser, which cannot set headers of a WebSocket, the name of a subprotocol."""
    yield headers.get("authorization", "")
    yield headers.get(XI_API_KEY.decode(), "")
    for name in headers.get("sec-websocket-protocol", "").split(","):
        yield name.strip().removeprefix(SUBPROTOCOL_KEY) if SUBPROTOCOL_KEY in name else ""


def authorized(given: str, keys: tuple[str, ...]) -> bool:
    """Whether a bearer token is one of `keys`. The comparison takes the same time wherever they differ."""
    scheme, _, rest = given.partition(" ")
    token = (rest.strip() if scheme.lower() == "bearer" else given).encode(
        "latin-1", "replace"
    )  # as the client sent it
    return any([hmac.compare_digest(token, k.encode()) for k in keys])  # noqa: C419 (every key is compared)


def from_own_origin(headers: Mapping[str, str], allowed: tuple[str, ...]) -> bool:
    """Whether a request comes from our own page, from an allowed one, or from no page at all.

    Behind a proxy that changes Host, the browser itself says that the page is ours (Sec-Fetch-Site).
    """
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed or headers.get("sec-fetch-site") == "same-origin":
        return True
    try:
        host = urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return False
    return host != "" and host == headers.get("host")


def is_json(headers: Headers) -> bool:
    """Whether a request says that its body is JSON."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request or a WebSocket handshake."""
    if scope["type"] == "http":
        await respond(error, scope, receive, send)
    else:
        await _deny(scope, send, error)


async def respond(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error as the whole response."""
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
