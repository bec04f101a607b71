"""Errors of the server: one exception, OpenAI's error envelope, and how every other exception
becomes one."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from stentor.errors import EngineError, InvalidRequest, Overloaded, WatermarkError
from stentor.server.limits import LIMITS
from stentor.server.wire_json import json_response

log = logging.getLogger("stentor.server")
Some = TypeVar("Some", bound=BaseModel)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# what a value must be where pydantic speaks of dictionaries and attributes
KINDS = {
    **dict.fromkeys(("model_attributes_type", "model_type", "dict_type"), "an object"),
    "list_type": "a list",
}
# fields of the Python API by their name in a request body
PARAMS = {
    "text": "input",
    "reference": "ref_audio",
    "reference.text": "ref_text",
    "prompt": "prompt_audio",
}


class ApiError(Exception):
    """A response other than success. `retry_after` in seconds becomes the Retry-After header."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.message = clipped(message, LIMITS.error_chars)
        if param is None:
            self.param = None
        else:
            self.param = clipped(param, LIMITS.param_chars)

    def renamed(self, param: str) -> ApiError:
        """The error of a field that has another name in the request."""
        message = self.message.removeprefix(f"{self.param}: ")
        return ApiError(
            self.status,
            f"{param}: {message}",
            param=param,
            code=self.code,
            retry_after=self.retry_after,
        )

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's envelope."""
        kind = TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        }

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (408, 413, 415):
            return {"Connection": "close"}  # else the client goes on sending its body
        if self.retry_after is None:
            return {}
        # clients sleep for all of it, some in the thread that called them
        seconds = min(self.retry_after, LIMITS.retry_seconds)
        return {"Retry-After": str(max(1, math.ceil(seconds)))}


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """400 for a field that is wrong. The message begins with its name."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


class BodyError(HTTPException):
    """An ApiError while a body is read, after which the connection is closed.

    FastAPI reports any exception but an HTTPException as a body that it could not parse.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, error.message, {**error.headers, "Connection": "close"})
        self.error = error


def clipped(text: str, most: int) -> str:
    """Return at most `most` characters of a client's text, as valid Unicode."""
    if not (len(text) <= most):
        text = text[: most - 1] + "…"
    return text.encode("utf-8", "replace").decode()


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's error envelope."""

    error: ErrorDetail


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` of a route: the envelope and a description for each status."""
    words = {
        400: "A field is wrong; `param` names it",
        401: "No valid API key",
        403: "Not allowed here",
        404: "Not found",
        409: "Conflict",
        413: "The body is too large",
        415: "The body is compressed",
        429: "Too many requests in progress; see Retry-After",
        500: "The engine failed",
        503: "Not ready, or the queue is full; see Retry-After",
        504: "The request took too long",
        507: "The server has no room for the voice",
    }
    return {s: {"model": ErrorBody, "description": words[s]} for s in statuses}


def shutting_down() -> ApiError:
    """503 for a request that still runs when the server's time to end is over."""
    return ApiError(503, "the server is shutting down", code="shutting_down", retry_after=5)


def translate(error: BaseException, retry_after: float = 1.0) -> ApiError:
    """The ApiError for any exception. Messages of an engine or of unexpected errors go only to the
    log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequest):
        return invalid(PARAMS.get(error.param, error.param), error.message)
    if isinstance(error, Overloaded):
        return ApiError(
            503, "too many requests wait for this model", code="queue_full", retry_after=retry_after
        )
    if isinstance(error, TimeoutError):
        return ApiError(
            504, "the request took longer than this server allows", code="request_timeout"
        )
    if isinstance(error, EngineError):
        return _not_served(error)
    log.error("unexpected error", exc_info=error)
    return ApiError(500, "internal error", code="internal_error")


def _not_served(error: EngineError) -> ApiError:
    if isinstance(error, WatermarkError):
        log.error("a watermark failed", exc_info=error)
        return ApiError(500, "the watermark failed", code="watermark_error")
    log.error("a request failed in the engine: %s", error)
    return ApiError(500, "the request failed in the engine", code="engine_error")


def _from_validation(error: RequestValidationError) -> ApiError:
    """The first thing wrong with a body, query or form."""
    # that a list or an object is no string says nothing, where the field takes either
    problems = (
        e
        for e in error.errors()
        if e["type"] != "string_type" or not isinstance(e["input"], list | dict)
    )
    first = next(problems, error.errors()[0])
    where: Sequence[Any] = [p for p in first["loc"][1:] if isinstance(p, str | int)]
    if first["type"] == "json_invalid":
        return not_json(first["ctx"]["error"])
    if first["loc"][0] in ("path", "query", "header"):
        where = [first["loc"][-1]]
    # what follows the name of a plain field is the branch of a union ("str", "VoiceId") or an index
    if where[:1] == ["items"]:
        where = [*where[:2], *where[3:]]
    depth = {"references": 3, "items": 3, "script": 3, "stage_params": 2}.get(
        str(where[0]) if where else "", 1
    )
    param = ".".join(str(p) for p in where[:depth]) or None
    if param is not None and where[0] == "script":
        param = re.sub(r"\.(\d+)", r"[\1]", param)  # as stentor.speech.script names turns
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in KINDS:
        or_text = any(
            e["type"] == "string_type" and e["loc"][:2] == first["loc"][:2] for e in error.errors()
        )
        message = f"must be {'a string or ' if or_text else ''}{KINDS[first['type']]}"
    elif first["type"] == "missing" and len(where) > depth:
        message = f"needs {where[-1]}"
    if message.startswith("Expected UploadFile"):
        message = "must be a file of the form (curl: -F field=@FILE)"
    if param is None and first["type"] in ("missing", "model_attributes_type", "dict_type"):
        message = "the body must be a JSON object, sent with Content-Type: application/json"
    return ApiError(400, f"{param}: {message}" if param else message, param=param)


def not_json(why: str) -> ApiError:
    """400 for a body that cannot be parsed."""
    return ApiError(400, f"the body is not valid JSON: {why}", code="invalid_json")


def from_pydantic(error: ValidationError, *within: str | int) -> ApiError:
    """The first thing wrong with a message that is not an HTTP body, or stands `within` one."""
    return _from_validation(
        RequestValidationError([{**e, "loc": ("body", *within, *e["loc"])} for e in error.errors()])
    )


def validated(kind: type[Some], value: Any) -> Some:
    """A message of this kind, or a part of one. ApiError names the field that is wrong."""
    try:
        return kind.model_validate(value)
    except ValidationError as e:
        raise from_pydantic(e) from None


def install(app: FastAPI) -> None:
    """Register handlers so that every error response has OpenAI's envelope."""

    async def any_error(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            api_error = _from_validation(error)
        else:
            api_error = translate(error)
        return json_response(api_error.body, api_error.status, api_error.headers)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error, BodyError):
            api_error = error.error
        else:
            api_error = ApiError(error.status_code, str(error.detail))
        response = await any_error(request, api_error)
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(HTTPException, http)
    for kind in (
        ApiError,
        RequestValidationError,
        InvalidRequest,
        EngineError,
        TimeoutError,
        Exception,
    ):
        app.add_exception_handler(kind, any_error)
