"""Routes whose JSON bodies are bounded in their number of values, and parsed in a thread when they are large.

A parser holds the interpreter for as long as it takes: 28 MB of empty lists take seconds, as much base64 0.15 s.
The number of values is therefore bounded before anything is parsed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, get_type_hints

import numpy as np
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from stentor.server.client_json import loads
from stentor.server.errors import from_pydantic, not_json
from stentor.server.http.authentication import is_json
from stentor.server.limits import LIMITS
from stentor.server.state import server

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


async def parse(body: bytes, pool: Executor) -> Any:
    """The value of a JSON text. HTTPException 400: it has too many values. json.JSONDecodeError: it is not valid."""
    if len(body) <= LIMITS.inline_json_kib << 10:
        return _bounded(body)
    return await asyncio.get_running_loop().run_in_executor(pool, _bounded, body)


def _bounded(body: bytes) -> Any:
    letters = np.frombuffer(body, np.uint8)  # three times as fast as to count in bytes, and without the interpreter
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
    """Route whose handler `(request, body)` gets its body, a pydantic model, without FastAPI's search for arguments,
    which takes longer than to parse and validate it. FastAPI answers what is not JSON."""

    def get_route_handler(self) -> Handler:
        general, endpoint = super().get_route_handler(), self.endpoint
        if self.body_field is None:
            return general
        model: type[BaseModel] = get_type_hints(endpoint)["body"]

        async def handle(plain: Request) -> Response:
            if not is_json(plain.headers):
                return await general(plain)
            request = _JsonRequest(plain.scope, plain.receive)
            try:
                value = await request.json() if await request.body() else None
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
