"""JSON on the wire, by orjson."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def json_bytes(value: Any) -> bytes:
    return orjson.dumps(value)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, media_type="application/json")


def event(name: str, value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + json_bytes({"type": name, **value}) + b"\n\n"
