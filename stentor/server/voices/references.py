"""Reference audio from a request or an upload, found and decoded within limits.

Fetching a URL is guarded against SSRF: a client must not reach hosts inside the server's network.
Each connection, also of a redirect, resolves its host once, checks all addresses, and connects to
an address that was checked. A name that resolves differently a moment later (DNS rebinding)
therefore gains nothing. TLS still verifies the host's name. There are no proxies, cookies,
credentials or decompression.
"""

from __future__ import annotations

import asyncio
import binascii
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_to_bytes, urljoin, urlsplit

import httpcore
import pybase64

from stentor.audio import decoding
from stentor.audio.opened import BadAudio
from stentor.server.errors import ApiError, invalid
from stentor.server.limits import LIMITS, MIB
from stentor.server.voices.voice import Audio

_URL_SAFE = str.maketrans("-_", "+/")
HEADERS = [
    (b"Accept", b"audio/*, application/octet-stream, */*;q=0.1"),
    (b"Accept-Encoding", b"identity"),
]
# all IPv6 that IANA has given out for the internet lies in it
_UNICAST = ipaddress.ip_network("2000::/3")
_SPECIAL = [ipaddress.ip_network(n) for n in ("2002::/16", "3fff::/20", "192.88.99.0/24")]
"""Some versions of Python take these for global. 2002::/16 (6to4) holds IPv4 addresses, which may
be private."""
Resolve = Callable[[str, int], Awaitable[list[str]]]


class References:
    """Audio by data: URI, base64, http(s) URL or file: URL."""

    def __init__(self, fetcher: Fetcher, remote: bool, local: str | None) -> None:
        """remote: URLs are fetched. local: the folder from which files are read."""
        self.fetcher = fetcher
        self.max_bytes = fetcher.max_bytes
        self.remote = remote
        if local is None:
            self.local = None
        else:
            self.local = Path(local).expanduser().resolve()

    async def fetched(self, source: str, param: str) -> bytes | None:
        """Fetch what a URL names, None where `source` is none. ApiError 400 names `param`."""
        if not _is_url(source):
            return None
        if not self.remote:
            raise invalid(param, "this server fetches no URLs; send a data: URI")
        return await self.fetcher.get(source, param)

    def read(self, source: str, param: str, seconds: float, data: bytes | None) -> Audio:
        """Decode `data`, or else the file that `source` names, at most `seconds` long. For a
        thread. ApiError 400 names `param`."""
        return decode(self._file(source, param) if data is None else data, param, seconds)

    def held(self, source: str, param: str) -> bytes:
        """The file that a data: URI or base64 holds. For a thread. ApiError 400 names `param`."""
        if source[:5].lower() == "data:":
            return self._data_uri(source, param)
        return self._base64(source, param)

    def changes(self, source: str) -> bool:
        """Whether it names a file, which may change on disk."""
        return source[:5].lower() == "file:" or source.startswith(("/", "./", "../", "~"))

    def holds(self, source: str) -> bool:
        """Whether it is the audio itself, and names none."""
        return not _is_url(source) and not self.changes(source)

    def _data_uri(self, source: str, param: str) -> bytes:
        head, comma, payload = source.partition(",")
        if not comma:
            raise invalid(param, "the data: URI has no comma")
        if head.lower().endswith(";base64"):
            return self._base64(unquote(payload), param)
        return self._sized(unquote_to_bytes(payload), param)

    def _base64(self, payload: str, param: str) -> bytes:
        if len(payload) > self.max_bytes * 4 // 3 + 1024:
            raise self._too_large(param)
        try:
            return self._sized(from_base64(payload), param)
        except (binascii.Error, ValueError):
            raise invalid(
                param, "must be a data: URI, an http(s) URL, or base64 of an audio file"
            ) from None

    def _file(self, source: str, param: str) -> bytes:
        refused = invalid(param, "this file may not be read", "path_not_allowed")
        if self.local is None:
            raise invalid(
                param, "this server reads no local files; send a data: URI", "path_not_allowed"
            )
        try:
            path = source
            if source[:5].lower() == "file:":
                parts = urlsplit(source)
                if parts.netloc not in ("", "localhost"):
                    raise refused
                path = unquote(parts.path)
            # follows links, so that a link cannot lead outside
            real = Path(path).resolve(strict=True)
            if not real.is_relative_to(self.local):
                raise refused
            if real.is_dir():
                raise invalid(param, "is a directory; name an audio file", "path_not_allowed")
            if not real.is_file():
                raise refused
            if real.stat().st_size > self.max_bytes:
                raise self._too_large(param)
            return real.read_bytes()
        except (OSError, ValueError, RuntimeError):
            raise refused from None

    def _sized(self, data: bytes, param: str) -> bytes:
        if len(data) > self.max_bytes:
            raise self._too_large(param)
        return data

    def _too_large(self, param: str) -> ApiError:
        return invalid(param, f"is larger than {self.max_bytes / MIB:g} MiB")


def _is_url(source: str) -> bool:
    return source[:7].lower() == "http://" or source[:8].lower() == "https://"


def from_base64(payload: str) -> bytes:
    """The bytes of base64, also in its URL-safe letters, without the `=` at its end, and with white
    space in it. binascii.Error or ValueError where it is not."""
    try:
        return pybase64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        letters = "".join(payload.split()).rstrip("=").translate(_URL_SAFE)
        return pybase64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)


def decode(data: bytes, param: str, seconds: float) -> Audio:
    """Decode mono samples of an audio file of at most `seconds`. ApiError 400 names `param`."""
    try:
        return decoding.decode(data, seconds)
    except BadAudio as e:
        raise invalid(param, str(e)) from None


class NotPublic(Exception):
    """The host resolves to an address that is not public."""


class Resolver:
    """The system's resolver in threads of its own, since a slow name holds its thread until the
    system times out.

    Names beyond the threads wait. They hold up nothing else.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stentor-dns")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Addresses of a host. OSError if it has none."""
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        addresses = await asyncio.get_running_loop().run_in_executor(self._pool, look_up)
        return [str(info[4][0]) for info in addresses]


def is_public(address: str) -> bool:
    """Whether an address is public. IPv4 addresses inside IPv6 (6to4, Teredo) are not.

    IPv6 is public only inside the internet's own range: the list of special ranges outside it
    grows.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 6 and ip not in _UNICAST:
        return False
    if any(ip in network for network in _SPECIAL):
        return False
    return ip.is_global and not (
        ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback
    )


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
        return await self._inner.connect_tcp(
            addresses[0], port, timeout, local_address, socket_options
        )

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise NotPublic("unix socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Fetcher:
    """GET with the checks above, a size limit and a deadline."""

    def __init__(
        self, max_bytes: int, seconds: float, domains: tuple[str, ...], resolve: Resolve
    ) -> None:
        self.max_bytes = max_bytes
        self.seconds = seconds
        self.domains = tuple(d.lower() for d in domains)
        self._backend = PublicBackend(resolve)

    async def get(self, url: str, param: str) -> bytes:
        """The body. ApiError 400 names `param` and the reason, and never what an internal host
        answered."""
        try:
            async with asyncio.timeout(self.seconds):
                return await self._follow(url, param)
        except TimeoutError:
            raise invalid(param, f"the URL did not answer within {self.seconds:g} s") from None
        except NotPublic:
            raise invalid(param, "the URL does not lead to a public address") from None
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            OSError,
            ValueError,
        ) as e:
            raise invalid(param, f"the URL could not be fetched ({type(e).__name__})") from e

    async def _follow(self, url: str, param: str) -> bytes:
        async with httpcore.AsyncConnectionPool(
            network_backend=self._backend, max_keepalive_connections=0
        ) as pool:
            for _ in range(LIMITS.redirects + 1):
                self._check(url, param)
                async with pool.stream("GET", url, headers=HEADERS) as response:
                    if response.status not in (301, 302, 303, 307, 308):
                        return await self._body(response, param)
                    location = next(
                        (value for name, value in response.headers if name.lower() == b"location"),
                        b"",
                    )
                    url = _joined(url, location.decode("ascii", "replace"), param)
        raise invalid(param, f"the URL redirects more than {LIMITS.redirects} times")

    def _check(self, url: str, param: str) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
            _ = parts.port
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
