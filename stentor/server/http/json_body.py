"""Routes whose JSON bodies are parsed as `json_text.py` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, get_type_hints

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from stentor.server.errors import from_pydantic, not_json
from stentor.server.http.authentication import is_json
from stentor.server.http.json_text import parse
from stentor.server.state import server

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _JsonRequest(Request):
    async def json(self) -> Any:
        """The parsed body. Its bytes are kept no longer."""
        body = await self.body()
        self._body = b""
        return await parse(body, server(self).parsers)


class JsonRoute(APIRoute):
    """A route that reads its JSON body by `json_text.parse`."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


class BodyRoute(JsonRoute):
    """The same. A coroutine `(request, body)` gets its body, a pydantic model, without FastAPI's search for arguments,
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
