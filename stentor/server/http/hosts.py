"""Under which names a server may be asked, and who asks behind a proxy."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from itertools import takewhile
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError
from stentor.server.http.authentication import refuse

CONTAINERS = ("host.docker.internal", "host.containers.internal")  # of this machine, as its containers call it
FORWARDED = b"x-forwarded-for"


class AllowedHosts:
    """Refuses requests for other names than those of this machine and of `--allowed-hosts` (403).

    A page on the web can have its own name resolve to 127.0.0.1 (DNS rebinding). To a browser, the server then is of
    the page's origin. A request without Host is from no browser.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        here = socket.gethostname().lower()
        given = {name.lower().rstrip(".") for name in names}
        self.app = app
        self.names = {"localhost", here, f"{here}.local", *CONTAINERS, *given}
        self.ends = ".localhost", *(name[1:] for name in given if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            for host in Headers(scope=scope).getlist("host"):
                if not self._allows(host):
                    await refuse(not_allowed(host), scope, receive, send)
                    return
        await self.app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        name = hostname(host)
        return name in self.names or name.endswith(self.ends) or is_here(name)


def hosts(config: ServerConfig) -> tuple[str, ...] | None:
    """Names under which a server may be asked besides this machine's. None: any.

    Any name will do where a key or a network keeps pages of the web out.
    """
    if "*" in config.allowed_hosts:
        return None
    open_here = config.uds is None and not config.api_key and is_loopback(config.host)
    return config.allowed_hosts if config.allowed_hosts or open_here else None


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
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((name, 0))
    except OSError:
        return False
    return True


def not_allowed(host: str) -> ApiError:
    """403 for a name that is not this machine's."""
    name = hostname(host) or host
    message = f"this server is not asked as {name!r}; stentor serve --allowed-hosts NAME allows a name"
    return ApiError(403, message, code="host_not_allowed")


class Forwarded:
    """Takes a client's address from X-Forwarded-For where one of our proxies has sent it (`--forwarded-allow-ips`).

    A client may write anything there. What stands left of something that is no address counts as if it were absent.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        self.app: ASGIApp = cast(Any, ProxyHeadersMiddleware)(app, list(proxies))  # uvicorn has types of its own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = scope["headers"]
            parts = b",".join(value for name, value in headers if name == FORWARDED).decode("latin-1").split(",")
            known = list(takewhile(is_address, map(_without_port, reversed(parts))))[::-1]
            others = [header for header in headers if header[0] != FORWARDED]
            scope["headers"] = others + ([(FORWARDED, ",".join(known).encode())] if known else [])
        await self.app(scope, receive, send)


def _without_port(part: str) -> str:
    part = part.strip()
    return part if is_address(part) else hostname(part)


def is_address(text: str) -> bool:
    """Whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
