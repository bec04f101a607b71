"""The log on stderr, as text or as one JSON object per line, and one line per request in it.

Every line that is written while a request is handled has the request's id.
"""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s%(request_suffix)s"
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are asked for every few seconds for ever. The access log leaves them out."""
STARTS = ("http.response.start", "websocket.http.response.start")
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is being handled. `middleware.RequestIds` sets it."""

access = logging.getLogger("stentor.access")


def configure(level: str, format: str, stream: TextIO | None = None) -> None:
    """Write the log of this process, with Python's warnings, to `stream` (stderr), as text or json. It replaces
    handlers that are there."""
    handler = logging.StreamHandler(stream)
    handler.addFilter(add_request_id)
    handler.setFormatter(JsonFormatter() if format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


def add_request_id(record: logging.LogRecord) -> bool:
    """A filter that leaves nothing out. It runs where the line is written, so that the request's context is there."""
    id = REQUEST_ID.get()
    record.request_id = id
    record.request_suffix = "" if id is None else f" [{id}]"
    return True


class JsonFormatter(logging.Formatter):
    """One line per record: time (UTC), level, logger, message, and request_id, error and a request's facts if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (id := getattr(record, "request_id", None)) is not None:
            line["request_id"] = id
        line |= getattr(record, "request", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str)


class AccessLog:
    """Logs every HTTP request and WebSocket when it has ended: method, path without its query, status and seconds.

    The status is null when the client left before there was one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or is_probe(scope):
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), list[int]()

        async def noting(message: Message) -> None:
            if message["type"] in STARTS:
                status.append(message["status"])
            elif message["type"] == "websocket.accept":
                status.append(101)
            elif message["type"] == "websocket.close" and not status:
                status.append(403)  # what a client sees of a refused handshake
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception:
            status.append(500)
            raise
        finally:
            write_access(scope, status[0] if status else None, time.monotonic() - began)


def is_probe(scope: Scope) -> bool:
    """Whether a request is one of PROBES, with or without the root path."""
    path: str = scope["path"]
    return not PROBES.isdisjoint((path, path.removeprefix(scope.get("root_path", "").rstrip("/"))))


def write_access(scope: Scope, status: int | None, seconds: float) -> None:
    """Write the line of a request or a session that has ended. Of the scope it reads method, path and client."""
    method, path = scope.get("method", "WEBSOCKET"), quote(scope["path"])
    client = ":".join(map(str, scope.get("client") or ("-",)))
    facts = {"method": method, "path": path, "status": status, "seconds": round(seconds, 4), "client": client}
    shown = "-" if status is None else status
    access.info('%s "%s %s" %s %.3f s', client, method, path, shown, seconds, extra={"request": facts})
