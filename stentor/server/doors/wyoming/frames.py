"""Events of Wyoming on the wire, with bounds. The reader of the package `wyoming` takes whatever length it is told."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from wyoming.event import Event

from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS

MAX_BYTES = LIMITS.ws_message_kib << 10  # of the line of an event, of its data, and of its payload


async def read(reader: asyncio.StreamReader) -> Event | None:
    """The next event, None at the end. A payload is passed over. ApiError says what is wrong, after which nothing more
    can be read. The reader's limit bounds the line."""
    try:
        line = await reader.readline()
        if not line:
            return None
        head = _object(line)
        data = head.get("data") or {}
        if not isinstance(data, dict):
            raise _malformed("its data must be an object")
        if size := _size(head, "data_length"):
            data |= _object(await reader.readexactly(size))
        if size := _size(head, "payload_length"):
            await reader.readexactly(size)
    except ValueError:  # asyncio's, for a line beyond the limit
        raise ApiError(413, f"an event is larger than {LIMITS.ws_message_kib} KiB", code="message_too_large") from None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    kind = head.get("type")
    if not isinstance(kind, str):
        raise _malformed("it has no type")
    return Event(kind, data)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:  # a ValueError too
        raise _malformed("it is not valid JSON") from None
    if not isinstance(value, dict):
        raise _malformed("it is not a JSON object")
    return value


def _size(head: dict[str, Any], name: str) -> int:
    size = head.get(name) or 0
    if not isinstance(size, int) or size < 0:
        raise _malformed(f"{name} must be a whole number")
    if size > MAX_BYTES:
        told = f"{name} is more than {LIMITS.ws_message_kib} KiB"
        raise ApiError(413, told, code="message_too_large")
    return size


def _malformed(why: str) -> ApiError:
    return ApiError(400, f"this is not an event of Wyoming: {why}", code="invalid_message")


def encoded(event: Event) -> bytes:
    """An event as it is sent."""
    data = orjson.dumps(event.data) if event.data else b""
    payload = event.payload or b""
    head = {"type": event.type, "data_length": len(data), "payload_length": len(payload)}
    return orjson.dumps({k: v for k, v in head.items() if v}) + b"\n" + data + payload
