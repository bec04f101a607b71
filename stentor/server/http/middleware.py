"""ASGI middleware in front of the routes: request ids first, then authentication.py, then the limits of requests."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.server.config import MIB, ServerConfig
from stentor.server.errors import ApiError, BodyError, shutting_down
from stentor.server.http.authentication import respond
from stentor.server.http.connections import SPEECH, Arriving, nobody
from stentor.server.limits import LIMITS, Limits
from stentor.server.logs import REQUEST_ID

STARTS = LIMITS.starts
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


class Starts:
    """Lets few requests begin in one iteration of the event loop. Audio for others is sent between its iterations, and
    to handle a request for speech takes a millisecond or two. Engines expect those that wait."""

    def __init__(self, arriving: Arriving) -> None:
        self._arriving = arriving
        self._begun = 0  # in this iteration
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self, state: MutableMapping[str, Any]) -> None:
        """Wait until this request may begin, behind those that wait already. It is expected meanwhile, and until
        `handled` of the scope's state is called."""
        loop = asyncio.get_running_loop()
        if self._begun < STARTS and not self._waiting:
            self._count(loop)
            return
        state["handled"] = handled = self._arriving()
        may_begin = loop.create_future()
        self._waiting.append(may_begin)
        try:
            await may_begin
        finally:
            loop.call_soon(handled)  # once this task waits or has ended

    def _count(self, loop: asyncio.AbstractEventLoop) -> None:
        """One more begins."""
        if not self._begun:
            loop.call_soon(self._next, loop)
        self._begun += 1

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """An iteration is over: those that wait longest begin in the next."""
        self._begun = 0
        while self._waiting and self._begun < STARTS:
            may_begin = self._waiting.popleft()
            if not may_begin.done():  # its request was not given up
                may_begin.set_result(None)
                self._count(loop)


class RequestIds:
    """Gives each request and WebSocket an id, and reports every HTTP response to `on_response(route, status)`. Requests
    for speech wait until they may begin."""

    def __init__(self, app: ASGIApp, on_response: Callable[[str, int], None], starts: Starts) -> None:
        self.app, self.on_response, self.starts = app, on_response, starts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if GIVEN_ID.fullmatch(given) else "req-" + secrets.token_hex(12)
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = id
        state.setdefault("handled", nobody)  # connections.py puts another there
        if scope["path"].endswith(SPEECH):
            await self.starts.wait(state)
        REQUEST_ID.set(id)  # of the task that handles this request, and of what it starts

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("X-Request-Id", id)
                route = scope.get("route")
                self.on_response("none" if route is None else route.path, message["status"])
            await send(message)

        await self.app(scope, receive, send_with_id if scope["type"] == "http" else send)


class RequestLimits:
    """Limits body sizes, the bytes of all bodies, the time in which a body comes, and POST requests in progress.

    Answers 413, 415 or 429 before a body is read. A body that is larger than its Content-Length says is cut off.
    `ended` is set when what still runs must end.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, limits: Limits, ended: asyncio.Event) -> None:
        self.app, self.config, self.limits, self.ended = app, config, limits, ended
        self.max_bytes = int(config.max_body_mb * MIB)
        self.budget = BodyBudget(max(int(limits.bodies_mb * MIB), self.max_bytes))
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
        body = _LimitedBody(scope, receive, self)
        scope["state"]["body"] = body
        try:
            await self.app(scope, body, send)
        finally:
            self.active -= counted
            body.release()

    def _refuse(self, scope: Scope, counted: bool) -> ApiError | None:
        headers = Headers(scope=scope)
        length, coding = headers.get("content-length", "0"), headers.get("content-encoding", "identity")
        if not length.isdecimal() or int(length) > self.max_bytes:
            return too_large(self.max_bytes)
        if counted and coding.lower() != "identity":
            return ApiError(415, f"Content-Encoding: {coding!r} is not read; send the body as it is")
        if counted and self.active >= self.config.max_active_requests:
            return ApiError(
                429, f"{self.active} requests are in progress already", code="too_many_requests", retry_after=1
            )
        return None


class BodyBudget:
    """Bytes that all bodies in flight hold together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used = max_bytes, 0

    def take(self, count: int) -> bool:
        """Take so many bytes, if there are so many."""
        if self.used + count > self.max_bytes:
            return False
        self.used += count
        return True


class _LimitedBody:
    """receive() that raises BodyError: 413 once a body is too large, 408 when it is not complete by its deadline, and
    503 when the bodies of all requests exceed their budget or the server has ended.

    Small bodies need none of the budget, so that large ones cannot keep them out.
    """

    def __init__(self, scope: Scope, receive: Receive, requests: RequestLimits) -> None:
        self.receive, self.requests = receive, requests
        self.received = self.taken = 0
        self.complete = False
        self.loop = asyncio.get_running_loop()
        seconds = requests.limits.request_seconds
        self.deadline: float = scope["state"].get("body_deadline", self.loop.time() + seconds)

    async def __call__(self) -> Message:
        if self.complete:
            return await self.receive()
        message = await self._next()
        self.complete = not message.get("more_body", False)
        self.received += len(message.get("body", b""))
        if self.received > self.requests.max_bytes:
            raise BodyError(too_large(self.requests.max_bytes))
        self._take(self.received - (self.requests.limits.free_body_kib << 10) - self.taken)
        return message

    async def _next(self) -> Message:
        """The next part. To look at `ended` now and then costs less than a task that waits for it."""
        look_seconds = self.requests.limits.end_seconds / 4
        while not self.requests.ended.is_set():
            try:
                async with asyncio.timeout_at(min(self.deadline, self.loop.time() + look_seconds)):
                    return await self.receive()
            except TimeoutError:
                if self.loop.time() >= self.deadline:
                    seconds = f"{self.requests.limits.request_seconds:g} s"
                    raise BodyError(ApiError(408, f"the body did not come within {seconds}")) from None
        raise BodyError(shutting_down())

    def _take(self, count: int) -> None:
        if count > 0 and not self.requests.budget.take(count):
            told = "the bodies of other requests take all the memory for bodies"
            raise BodyError(ApiError(503, told, code="bodies_in_flight", retry_after=5))
        self.taken += max(0, count)

    def release(self) -> None:
        """Give back what the body has taken. Call it when its bytes are no longer kept."""
        self.requests.budget.used -= self.taken
        self.taken = 0


def too_large(max_bytes: int) -> ApiError:
    """413 for a body above `max_bytes`."""
    return ApiError(413, f"the body is larger than {max_bytes / MIB:g} MiB", code="body_too_large")
