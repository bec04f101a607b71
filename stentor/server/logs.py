"""The log on stderr, as text or as one JSON object per line.

Every line that is written while a request is handled has the request's id.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s%(request_suffix)s"
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request that is being handled. `middleware.RequestIds` sets it."""
HTTP_SERVER = "uvicorn.error"
NOT_OUR_ERRORS = frozenset(
    {
        "ASGI callable returned without completing handshake.",  # it was refused with an answer
        "ASGI callable returned without sending handshake.",
        # A failed answer breaks off so that its client sees it. The failure has its own line.
        "ASGI callable returned without completing response.",
        "Invalid UTF-8 sequence received from client.",
    }
)


def configure(level: str, format: str, stream: TextIO | None = None) -> None:
    """Write the log of this process, with Python's warnings, to `stream` (stderr), as text or json.
    It replaces handlers that are there."""
    handler = logging.StreamHandler(stream)
    handler.addFilter(add_request_id)
    handler.setFormatter(JsonFormatter() if format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger(HTTP_SERVER).addFilter(soften)


def soften(record: logging.LogRecord) -> bool:
    """A filter that makes one line of information of what uvicorn reports as an error of ours and
    is a client's mistake, or the intended end of a failed answer."""
    if record.msg in NOT_OUR_ERRORS:
        record.levelno = logging.INFO
        record.levelname = logging.getLevelName(logging.INFO)
        record.exc_info = None
        record.exc_text = None
        return logging.getLogger().isEnabledFor(logging.INFO)
    return True


def add_request_id(record: logging.LogRecord) -> bool:
    """A filter that leaves nothing out. It runs where the line is written, so that the request's
    context is there."""
    id = REQUEST_ID.get()
    record.request_id = id
    if id is None:
        record.request_suffix = ""
    else:
        record.request_suffix = f" [{id}]"
    return True


class JsonFormatter(logging.Formatter):
    """One line per record: time (UTC), level, logger, message, and request_id, error and a
    request's facts if any."""

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
