"""JSON on the wire, by orjson. It refuses half a surrogate pair, which strings of browsers may
hold, and a byte order mark, which editors and .NET write: we do not."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson
from starlette.responses import Response

from stentor.arguments import mend_unicode
from stentor.arguments.untrusted import Unreadable, parse_json

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def json_bytes(value: Any) -> bytes:
    return orjson.dumps(value)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json_bytes(value), status, headers, media_type="application/json")


def event(name: str, value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + json_bytes({"type": name, **value}) + b"\n\n"


def may_hold_halves(text: str) -> bool:
    """Whether a JSON text names halves of surrogate pairs, alone or in pairs."""
    return _HALF.search(text.encode(errors="replace")) is not None


def loads(data: bytes | str) -> Any:
    """The value of a JSON text. Texts in it are valid Unicode. json.JSONDecodeError: it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return mended(loads_with_halves(data))


def loads_with_halves(data: bytes | str) -> Any:
    """The value of a JSON text, whose texts may hold halves of surrogate pairs.
    json.JSONDecodeError: it is none."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        return orjson.loads(raw.removeprefix(BOM_UTF8))
    except orjson.JSONDecodeError:
        if _HALF.search(raw) is None:
            raise
    try:
        return parse_json(raw, _constant)
    except Unreadable as e:
        raise json.JSONDecodeError(str(e), "", 0) from None


def _constant(name: str) -> NoReturn:
    raise Unreadable(f"is not JSON: {name} is no number")


def mended(value: Any) -> Any:
    """A value with its texts as valid Unicode (`arguments.mend_unicode`)."""
    if isinstance(value, str):
        return mend_unicode(value)
    if isinstance(value, dict):
        return {mend_unicode(k): mended(v) for k, v in value.items()}
    if isinstance(value, list):
        return [mended(v) for v in value]
    return value
