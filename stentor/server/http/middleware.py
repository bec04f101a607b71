"""ASGI middleware in front of the routes: the path and the id of a request, the access log, API
keys, origins of web pages, and the host names that a server accepts. bodies.py follows."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from ipaddress import ip_address
from itertools import takewhile
from typing import Any, cast
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.logs import REQUEST_ID
from stentor.server.wire_json import json_response

access = logging.getLogger("stentor.access")

SLASHES = re.compile("/{2,}")
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are asked for every few seconds for ever. The access log leaves them out."""
STARTS = ("http.response.start", "websocket.http.response.start")
GIVEN_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{LIMITS.request_id_chars}}}")
XI_API_KEY = b"xi-api-key"
SUBPROTOCOL_KEY = "openai-insecure-api-key."
# which Open WebUI fetches without a header
OPEN_LISTS = frozenset({"/v1/audio/voices", "/v1/audio/models"})
# of this machine, as its containers call it
CONTAINERS = ("host.docker.internal", "host.containers.internal")
FORWARDED = b"x-forwarded-for"


class RootPath:
    """Passes routes the prefix that a proxy in front removes. They take paths with and without it.

    Slashes in a row, which a base URL with a slash at its end makes, count as one.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

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
    """Assigns each request and WebSocket an id, and reports every HTTP response to
    `on_response(route, status)`."""

    def __init__(self, app: ASGIApp, on_response: Callable[[str, int], None]) -> None:
        self.app = app
        self.on_response = on_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        if GIVEN_ID.fullmatch(client_id):
            id = client_id
        else:
            id = "req-" + secrets.token_hex(12)
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


class Authentication:
    """Checks API keys on /v1 paths and on WebSockets, and the origin of requests that a browser
    accepts from any page.

    Answers 401 or 403. A browser sends a preflight (CORS) before JSON or a DELETE of another page.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self.app = app
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refused = self._refuse(scope, Headers(scope=scope))
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await respond(refused, scope, receive, send)

    def _refuse(self, scope: Scope, headers: Headers) -> ApiError | None:
        websocket = scope["type"] == "websocket"
        keys = self.config.api_key
        paths = _paths(scope)
        under_api = any(f"{path}/".startswith(("/v1/", "/v2/")) for path in paths)
        needs_key = websocket or (scope["method"] != "OPTIONS" and under_api)
        open_list = not websocket and scope["method"] == "GET" and not OPEN_LISTS.isdisjoint(paths)
        sent = [authorized(key, keys) for key in given_keys(headers)]
        has_key = not keys or any(sent)
        scope["state"]["authorized"] = has_key
        if needs_key and not has_key and not (self.config.open_lists and open_list):
            return ApiError(
                401,
                "a valid API key is needed: Authorization: Bearer KEY, or xi-api-key: KEY",
                code="invalid_api_key",
            )
        unasked = websocket or (scope["method"] == "POST" and not is_json(headers))
        if unasked and not from_own_origin(headers, self.config.allowed_origins):
            return foreign(headers)
        return None


class Preflight:
    """Refuses preflights of pages of another origin, naming the flag that allows them."""

    def __init__(self, app: ASGIApp, allowed_origins: tuple[str, ...]) -> None:
        self.app = app
        self.allowed_origins = allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            headers = Headers(scope=scope)
            is_preflight = "access-control-request-method" in headers
            if is_preflight and not from_own_origin(headers, self.allowed_origins):
                await respond(foreign(headers), scope, receive, send)
                return
        await self.app(scope, receive, send)


def foreign(headers: Headers) -> ApiError:
    """403 for a page of another origin."""
    origin = headers.get("origin", "")
    message = f"pages of {origin} may not send this here; stentor serve --allowed-origins {origin} allows them"
    return ApiError(403, message, code="origin_not_allowed")


def _paths(scope: Scope) -> tuple[str, str]:
    """The router takes a path with and without the root path."""
    path: str = scope["path"]
    return path, path.removeprefix(scope.get("root_path", "").rstrip("/"))


def given_keys(headers: Headers) -> Iterator[str]:
    """List where a client may put a key: Authorization, ElevenLabs' header, and, for OpenAI's
    Realtime API in a browser, which cannot set headers of a WebSocket, the name of a
    subprotocol."""
    yield headers.get("authorization", "")
    yield headers.get(XI_API_KEY.decode(), "")
    for name in headers.get("sec-websocket-protocol", "").split(","):
        yield name.strip().removeprefix(SUBPROTOCOL_KEY) if SUBPROTOCOL_KEY in name else ""


def authorized(given: str, keys: tuple[str, ...]) -> bool:
    """Whether a bearer token is one of `keys`. The comparison takes the same time wherever they
    differ."""
    scheme, _, rest = given.partition(" ")
    # as the client sent it
    token = (rest.strip() if scheme.lower() == "bearer" else given).encode("latin-1", "replace")
    # Every key is compared: a generator would end at the first match.
    return any([hmac.compare_digest(token, key.encode()) for key in keys])  # noqa: C419


def from_own_origin(headers: Mapping[str, str], allowed: tuple[str, ...]) -> bool:
    """Whether a request comes from our own page, from an allowed one, or from no page at all.

    Behind a proxy that changes Host, the browser itself marks the page as ours (Sec-Fetch-Site).
    """
    origin = headers.get("origin")
    if (
        origin is None
        or "*" in allowed
        or origin in allowed
        or headers.get("sec-fetch-site") == "same-origin"
    ):
        return True
    try:
        host = urlsplit(origin).netloc
    except ValueError:  # such as http://[
        return False
    return host != "" and host == headers.get("host")


def is_json(headers: Headers) -> bool:
    """Whether a request's content type is JSON."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


async def respond(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a request or the handshake of a WebSocket: an error is the whole response."""
    await json_response(error.body, error.status, error.headers)(scope, receive, send)


class AllowedHosts:
    """Refuses requests for other names than those of this machine and of `--allowed-hosts` (403).

    A page on the web can have its own name resolve to 127.0.0.1 (DNS rebinding). To a browser, the
    server then is of the page's origin. A request without Host is from no browser.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        here = socket.gethostname().lower()
        hosts = {name.lower().rstrip(".") for name in names}
        self.app = app
        self.names = {"localhost", here, f"{here}.local", *CONTAINERS, *hosts}
        self.ends = ".localhost", *(name[1:] for name in hosts if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            for host in Headers(scope=scope).getlist("host"):
                name = hostname(host)
                if not (name in self.names or name.endswith(self.ends) or is_here(name)):
                    name = name or host
                    message = f"this server is not asked as {name!r}; stentor serve --allowed-hosts NAME allows a name"
                    await respond(
                        ApiError(403, message, code="host_not_allowed"), scope, receive, send
                    )
                    return
        await self.app(scope, receive, send)


def hosts(config: ServerConfig) -> tuple[str, ...] | None:
    """Host names that a server accepts besides this machine's. None: any.

    Any name will do where a key or a network keeps pages of the web out.
    """
    if "*" in config.allowed_hosts:
        return None
    open_here = config.uds is None and not config.api_key and is_loopback(config.host)
    if config.allowed_hosts or open_here:
        return config.allowed_hosts
    return None


def hostname(host: str) -> str:
    """The name or address in a Host header, in lower case. It is empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:  # such as [
        return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address, or what a name stands for."""
    try:
        return all(ip_address(at[4][0]).is_loopback for at in socket.getaddrinfo(host, None))
    except (OSError, ValueError):  # unknown, or an address with a zone
        return False


def is_here(name: str) -> bool:
    """Whether a name is an address of this machine: one can listen there."""
    if not is_address(name):
        return False
    if ":" in name:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((name, 0))
    except OSError:
        return False
    return True


class Forwarded:
    """Takes a client's address from X-Forwarded-For where one of our proxies has sent it
    (`--forwarded-allow-ips`).

    A client may write anything there. What stands left of something that is no address counts as if
    it were absent.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        # uvicorn has types of its own
        self.app: ASGIApp = cast(Any, ProxyHeadersMiddleware)(app, list(proxies))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = scope["headers"]
            parts = (
                b",".join(value for name, value in headers if name == FORWARDED)
                .decode("latin-1")
                .split(",")
            )
            addresses = list(takewhile(is_address, map(_without_port, reversed(parts))))[::-1]
            others = [header for header in headers if header[0] != FORWARDED]
            scope["headers"] = others + (
                [(FORWARDED, ",".join(addresses).encode())] if addresses else []
            )
        await self.app(scope, receive, send)


def _without_port(part: str) -> str:
    part = part.strip()
    if is_address(part):
        return part
    return hostname(part)


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class AccessLog:
    """Logs every HTTP request and WebSocket when it has ended: method, path without its query,
    status and seconds.

    The status is null when the client left before there was one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or not PROBES.isdisjoint(_paths(scope)):
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        status = list[int]()

        async def noting(message: Message) -> None:
            if message["type"] in STARTS:
                status.append(message["status"])
            elif message["type"] == "websocket.accept":
                status.append(101)
            elif message["type"] == "websocket.close" and not status:
                status.append(403)  # what a client sees of a refused handshake
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception:
            status.append(500)
            raise
        finally:
            write_access(scope, status[0] if status else None, time.monotonic() - began)


def write_access(scope: Scope, status: int | None, seconds: float) -> None:
    """Write the line of a request or a session that has ended. Of the scope it reads method, path
    and client."""
    method = scope.get("method", "WEBSOCKET")
    path = quote(scope["path"])
    client = ":".join(map(str, scope.get("client") or ("-",)))
    facts = {
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 4),
        "client": client,
    }
    status_text = "-" if status is None else status
    access.info(
        '%s "%s %s" %s %.3f s', client, method, path, status_text, seconds, extra={"request": facts}
    )
