"""Limits of requests and their bodies. A request takes a place among those in progress once its
body is complete, so that clients that drip keep nobody out. Bodies on their way have limits of
their own.

JSON bodies are bounded in their number of values, and parsed in a thread when they are large: a
parser holds the interpreter for as long as it takes. 28 MB of empty lists take seconds, as much
base64 0.15 s.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from ipaddress import IPv6Address, ip_address
from typing import Any, get_type_hints

import numpy as np
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError, BodyError, from_pydantic, not_json, shutting_down
from stentor.server.http.middleware import is_json, respond
from stentor.server.limits import LIMITS, MIB, Limits
from stentor.server.state import Counts, server
from stentor.server.wire_json import loads

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class RequestLimits:
    """Limits the size of a body and the time in which it comes, the number and bytes of bodies, and
    POST requests in progress.

    Answers 413, 415 or 429 before a body is read. A body that is larger than its Content-Length is
    cut off. `ended` is set when what still runs must end.
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        limits: Limits,
        counts: Counts,
        ended: asyncio.Event,
    ) -> None:
        self.app = app
        self.config = config
        self.limits = limits
        self.counts = counts
        self.ended = ended
        self.max_bytes = int(config.max_body_mb * MIB)
        # of all bodies in flight
        self.most_bytes = max(int(limits.bodies_mb * MIB), self.max_bytes)
        # of bodies on their way from one address
        self.max_bytes_coming = max(self.most_bytes // 2, self.max_bytes)
        self.coming = _Coming(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counted = scope["method"] == "POST"
        if (refused := self._refuse(scope, counted)) is not None:
            await respond(refused, scope, receive, send)
            return
        body = LimitedBody(scope, receive, self, counted)
        scope["state"]["body"] = body
        try:
            await self.app(scope, body, send)
        finally:
            body.close()

    def _refuse(self, scope: Scope, counted: bool) -> ApiError | None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        coding = headers.get("content-encoding", "identity")
        if not length.isdecimal() or int(length) > self.max_bytes:
            return too_large(self.max_bytes)
        if counted and coding.lower() != "identity":
            return ApiError(
                415, f"Content-Encoding: {coding!r} is not read; send the body as it is"
            )
        if counted:
            return self.no_place()
        return None

    def no_place(self) -> ApiError | None:
        """Why a request may not begin now. None: it may."""
        if (active := self.counts.total("requests")) < self.config.max_active_requests:
            return None
        return ApiError(
            429,
            f"{active} requests are in progress already",
            code="too_many_requests",
            retry_after=1,
        )


class LimitedBody:
    """receive() that raises BodyError: 413 once a body is too large, 408 when it is not complete by
    its deadline, 429 when it must yield to others that come, or there is no place for its request,
    and 503 when the bodies of all requests exceed their budget or the server has ended.

    Small bodies need none of the budget, so that large ones cannot keep them out.
    """

    def __init__(
        self, scope: Scope, receive: Receive, requests: RequestLimits, counted: bool
    ) -> None:
        self.receive = receive
        self.requests = requests
        self.counted = counted
        self.received = self.taken = 0
        self.complete = self.placed = self.gives_way = False
        self.loop = asyncio.get_running_loop()
        seconds = requests.limits.request_seconds
        self.deadline: float = scope["state"].get("body_deadline", self.loop.time() + seconds)
        self.address = network(scope)
        requests.coming.enter(self)

    async def __call__(self) -> Message:
        if self.complete:
            return await self.receive()
        message = await self._next()
        self.complete = not message.get("more_body", False)
        self.received += len(message.get("body", b""))
        if self.received > self.requests.max_bytes:
            raise BodyError(too_large(self.requests.max_bytes))
        self._take(self.received - (self.requests.limits.free_body_kib << 10) - self.taken)
        if self.complete:
            self._begin()
        return message

    async def _next(self) -> Message:
        """The next part. To look at what may end it now and then costs less than a task that waits
        for that."""
        look_seconds = self.requests.limits.end_seconds / 4
        while not self.requests.ended.is_set():
            if self.gives_way:
                message = "too many request bodies are still arriving, and this one is the oldest"
                raise BodyError(ApiError(429, message, code="too_many_bodies", retry_after=1))
            try:
                async with asyncio.timeout_at(min(self.deadline, self.loop.time() + look_seconds)):
                    return await self.receive()
            except TimeoutError:
                if self.loop.time() >= self.deadline:
                    seconds = f"{self.requests.limits.request_seconds:g} s"
                    raise BodyError(
                        ApiError(408, f"the body did not come within {seconds}")
                    ) from None
        raise BodyError(shutting_down())

    def _take(self, count: int) -> None:
        if count <= 0:
            return
        requests = self.requests
        of_address = requests.coming.taken(self.address) + count
        if (
            requests.counts.total("bodies") + count > requests.most_bytes
            or of_address > requests.max_bytes_coming
        ):
            message = "other requests' bodies use all the memory for bodies"
            raise BodyError(ApiError(503, message, code="bodies_in_flight", retry_after=5))
        requests.counts.add("bodies", count)
        self.taken += count

    def _begin(self) -> None:
        """Count its request among those in progress."""
        self.requests.coming.leave(self)
        if not self.counted:
            return
        if (refused := self.requests.no_place()) is not None:
            raise BodyError(refused)
        self.requests.counts.add("requests", 1)
        self.placed = True

    def release(self) -> None:
        """Release the memory of the body. Call it when its bytes are no longer kept."""
        self.requests.counts.add("bodies", -self.taken)
        self.taken = 0

    def close(self) -> None:
        """End its request."""
        self.requests.coming.leave(self)
        self.requests.counts.add("requests", -self.placed)
        self.release()


class _Coming:
    """Bodies on their way, in the order in which they began. The first yields when there are too
    many of them, and the first from an address when it has too many."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._all: OrderedDict[LimitedBody, None] = OrderedDict()
        self._from: dict[str, OrderedDict[LimitedBody, None]] = {}

    def enter(self, body: LimitedBody) -> None:
        """Note a body that begins."""
        near = self._from.setdefault(body.address, OrderedDict())
        self._all[body] = near[body] = None
        if body.address:
            most_near = self.limits.address_bodies
        else:
            most_near = self.limits.bodies
        for bodies, limit in (self._all, self.limits.bodies), (near, most_near):
            if len(bodies) > limit:
                first = next(iter(bodies))
                self.leave(first)
                first.gives_way = True

    def leave(self, body: LimitedBody) -> None:
        """Note that a body is complete, or that nobody waits for it any more."""
        if body in self._all:
            del self._all[body]
            near = self._from[body.address]
            del near[body]
            if not near:
                del self._from[body.address]

    def taken(self, address: str) -> int:
        """Bytes of the budget that bodies on their way from an address have."""
        if address:
            return sum(body.taken for body in self._from.get(address, ()))
        return 0


def network(scope: Scope) -> str:
    """Whom a client belongs to: its address, or the /64 of one of IPv6, all of which one client may
    have. It is empty where the system knows none."""
    host = (scope.get("client") or ("",))[0]
    try:
        address = ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


def too_large(max_bytes: int) -> ApiError:
    """413 for a body above `max_bytes`."""
    return ApiError(413, f"the body is larger than {max_bytes / MIB:g} MiB", code="body_too_large")


async def parse(body: bytes, pool: Executor) -> Any:
    """The value of a JSON text. HTTPException 400: it has too many values. json.JSONDecodeError: it
    is not valid."""
    if len(body) <= LIMITS.inline_json_kib << 10:
        return _bounded(body)
    return await asyncio.get_running_loop().run_in_executor(pool, _bounded, body)


def _bounded(body: bytes) -> Any:
    # three times as fast as to count in bytes, and without the interpreter
    letters = np.frombuffer(body, np.uint8)
    if sum(int(np.count_nonzero(letters == sign)) for sign in b",[{") > LIMITS.json_values:
        raise HTTPException(400, f"the body has more than {LIMITS.json_values} JSON values")
    return loads(body)


class _JsonRequest(Request):
    async def json(self) -> Any:
        """The parsed body. Its bytes are kept no longer."""
        body = await self.body()
        self._body = b""
        return await parse(body, server(self).parsers)


class JsonRoute(APIRoute):
    """A route that reads its JSON body by `parse`."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


class BodyRoute(JsonRoute):
    """Route whose handler `(request, body)` gets its body, a pydantic model, without FastAPI's
    search for arguments, which takes longer than to parse and validate it. FastAPI answers what is
    not JSON."""

    def get_route_handler(self) -> Handler:
        general = super().get_route_handler()
        endpoint = self.endpoint
        if self.body_field is None:
            return general
        model: type[BaseModel] = get_type_hints(endpoint)["body"]

        async def handle(plain: Request) -> Response:
            if not is_json(plain.headers):
                return await general(plain)
            request = _JsonRequest(plain.scope, plain.receive)
            try:
                if await request.body():
                    value = await request.json()
                else:
                    value = None
                body = model.model_validate(value, from_attributes=True)
            except ValidationError as e:
                raise from_pydantic(e) from None
            except json.JSONDecodeError as e:
                raise not_json(e.msg) from None
            except ClientDisconnect:
                raise HTTPException(400, "the client has left") from None
            response: Response = await endpoint(request, body)
            return response

        return handle
