"""A client of WS /v1/audio/speech/stream."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live

PATH = "/v1/audio/speech/stream"


class Talk:
    """A client's end of a session."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, kind: str, **body: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **body}))

    def get(self) -> dict | bytes:
        message = self.socket.recv(timeout=STUCK_S)
        return json.loads(message) if isinstance(message, str) else message

    def until(self, *kinds: str) -> tuple[list[dict], bytes]:
        """Events up to one of these, and all audio before it."""
        events, audio = [], b""
        while True:
            message = self.get()
            if isinstance(message, bytes):
                audio += message
                continue
            events.append(message)
            if message["type"] in kinds:
                return events, audio

    def say(self, *texts: str) -> tuple[list[dict], bytes]:
        for text in texts:
            self.send("input.text", text=text)
        self.send("input.done")
        return self.until("session.done", "error")

    def close_code(self) -> tuple[int | None, list[dict]]:
        """How the server hangs up, and its last events."""
        events = []
        try:
            while True:
                message = self.get()
                if isinstance(message, dict):
                    events.append(message)
        except ConnectionClosed as e:
            return None if e.rcvd is None else e.rcvd.code, events


@contextmanager
def connected(
    live: Live,
    path: str,
    headers: dict[str, str] | None = None,
    receive_buffer: int | None = None,
    subprotocols: list[Any] | None = None,
) -> Iterator[ClientConnection]:
    """A WebSocket at a path. `receive_buffer`: bytes that the system takes while the client does not read."""
    made = socket.socket()
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    host, port = live.url.removeprefix("http://").split(":")
    made.connect((host, int(port)))
    with connect(
        live.url.replace("http", "ws") + path,
        sock=made,
        proxy=None,
        additional_headers=headers,
        subprotocols=subprotocols,
        max_size=None,
        open_timeout=STUCK_S,
        ping_interval=None,
    ) as connection:
        yield connection


@contextmanager
def talk(
    live: Live,
    configure: bool = True,
    headers: dict | None = None,
    receive_buffer: int | None = None,
    **settings: Any,
) -> Iterator[Talk]:
    """A session. `receive_buffer`: bytes that the system takes while the client does not read."""
    with connected(live, PATH, headers, receive_buffer) as connection:
        talking = Talk(connection)
        if configure:
            talking.send(
                "session.config",
                **{"response_format": "pcm", "seed": 5, "guard": False, **settings},
            )
            events, _ = talking.until("session.configured", "error")
            assert events[-1]["type"] == "session.configured", events
        yield talking


class IdleClock:
    """Clock of sessions. It stands until it may pass, however slow the machine is."""

    def __init__(self) -> None:
        self.now, self.passes = 1000.0, False

    def monotonic(self) -> float:
        self.now += 1000.0 if self.passes else 0.0
        return self.now
