"""Fetching URLs from requests, guarded against SSRF: a client must not reach hosts inside the server's network.

Each connection, also of a redirect, resolves its host once, checks all addresses, and connects to an address that was
checked. A name that resolves differently a moment later (DNS rebinding) therefore gains nothing. TLS still verifies the
host's name. There are no proxies, cookies, credentials or decompression.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore

from stentor.server.config import MIB
from stentor.server.errors import invalid
from stentor.server.limits import LIMITS

REDIRECTS = LIMITS.redirects
HEADERS = [(b"Accept", b"audio/*, application/octet-stream, */*;q=0.1"), (b"Accept-Encoding", b"identity")]
_UNICAST = ipaddress.ip_network("2000::/3")  # all IPv6 that IANA has given out for the internet lies in it
_SPECIAL = [ipaddress.ip_network(n) for n in ("2002::/16", "3fff::/20", "192.88.99.0/24")]
"""Some versions of Python take these for global. 2002::/16 (6to4) holds IPv4 addresses, which may be private."""

Resolve = Callable[[str, int], Awaitable[list[str]]]


class NotPublic(Exception):
    """The host resolves to an address that is not public."""


class Resolver:
    """The system's resolver in threads of its own, since a slow name holds its thread until the system gives up.

    Names beyond the threads wait. They hold up nothing else.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stentor-dns")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Addresses of a host. OSError if it has none."""
        found = await asyncio.get_running_loop().run_in_executor(self._pool, _addresses, host, port)
        return [str(info[4][0]) for info in found]


def _addresses(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def is_public(address: str) -> bool:
    """Whether an address is public. IPv4 addresses inside IPv6 (6to4, Teredo) are not.

    IPv6 is public only inside the internet's own range: the list of special ranges outside it grows.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 6 and ip not in _UNICAST:
        return False
    if any(ip in network for network in _SPECIAL):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback)


class PublicBackend(httpcore.AsyncNetworkBackend):
    """Connects only to checked addresses."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not addresses or not all(is_public(a) for a in addresses):
            raise NotPublic(host)
        return await self._inner.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise NotPublic("unix socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Fetcher:
    """GET with the checks above, a size limit and a deadline."""

    def __init__(self, max_bytes: int, seconds: float, domains: tuple[str, ...], resolve: Resolve) -> None:
        self.max_bytes, self.seconds, self.domains = max_bytes, seconds, tuple(d.lower() for d in domains)
        self._backend = PublicBackend(resolve)

    async def get(self, url: str, param: str) -> bytes:
        """The body. ApiError 400 names `param` and the reason, and never what an internal host answered."""
        try:
            async with asyncio.timeout(self.seconds):
                return await self._follow(url, param)
        except TimeoutError:
            raise invalid(param, f"the URL did not answer within {self.seconds:g} s") from None
        except NotPublic:
            raise invalid(param, "the URL does not lead to a public address") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError, ValueError) as e:
            raise invalid(param, f"the URL could not be fetched ({type(e).__name__})") from e

    async def _follow(self, url: str, param: str) -> bytes:
        async with httpcore.AsyncConnectionPool(network_backend=self._backend, max_keepalive_connections=0) as pool:
            for _ in range(REDIRECTS + 1):
                self._check(url, param)
                async with pool.stream("GET", url, headers=HEADERS) as response:
                    if response.status not in (301, 302, 303, 307, 308):
                        return await self._body(response, param)
                    location = _header(response, b"location")
                    url = _joined(url, location.decode("ascii", "replace"), param)
        raise invalid(param, f"the URL redirects more than {REDIRECTS} times")

    def _check(self, url: str, param: str) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise invalid(param, "is not a valid URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise invalid(param, "only http and https URLs are fetched")
        if not url.isascii() or "@" in parts.netloc or any(c <= " " or c == "\\" for c in url):
            raise invalid(param, "is not a plain URL (ASCII, no user name)")
        if self.domains and host.lower() not in self.domains:
            raise invalid(param, f"this server fetches only from {', '.join(self.domains)}")

    async def _body(self, response: httpcore.Response, param: str) -> bytes:
        if response.status != 200:
            raise invalid(param, f"the URL answered with status {response.status}")
        body = bytearray()
        async for part in response.aiter_stream():
            body += part
            if len(body) > self.max_bytes:
                raise invalid(param, f"is larger than {self.max_bytes / MIB:g} MiB")
        return bytes(body)


def _joined(url: str, location: str, param: str) -> str:
    """Where a redirect leads. It is checked like a first URL."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise invalid(param, "the URL redirects to what is not a valid URL") from None


def _header(response: httpcore.Response, name: bytes) -> bytes:
    return next((value for key, value in response.headers if key.lower() == name), b"")
