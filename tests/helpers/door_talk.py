"""Clients of the doors that send what no SDK sends: JSON over a WebSocket, and events of Wyoming over TCP."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live
from tests.helpers.ws_talk import connected

Message = dict[str, Any]


class JsonTalk:
    """A client's end of a WebSocket whose messages are JSON."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, **body: Any) -> None:
        self.socket.send(json.dumps(body))

    def get(self) -> Message:
        found: Message = json.loads(self.socket.recv(timeout=STUCK_S))
        return found

    def until(self, last: Callable[[Message], object]) -> list[Message]:
        """Messages up to the first of which this is true."""
        found = [self.get()]
        while not last(found[-1]):
            found.append(self.get())
        return found

    def close_code(self) -> tuple[int | None, list[Message]]:
        """How the server hangs up, and its last messages."""
        found = []
        try:
            while True:
                found.append(self.get())
        except ConnectionClosed as e:
            return None if e.rcvd is None else e.rcvd.code, found


@contextmanager
def json_talk(
    live: Live,
    path: str,
    headers: dict[str, str] | None = None,
    receive_buffer: int | None = None,
    subprotocols: list[Any] | None = None,
) -> Iterator[JsonTalk]:
    """A client at a path (`ws_talk.connected`)."""
    with connected(live, path, headers, receive_buffer, subprotocols) as connection:
        yield JsonTalk(connection)


def audio_of(messages: list[Message], name: str) -> bytes:
    """The audio of messages, which is in base64 under this name."""
    return b"".join(base64.b64decode(m[name]) for m in messages if m.get(name))


class WyomingTalk:
    """A client's end of a connection of Wyoming."""

    def __init__(self, live: Live, receive_buffer: int | None = None) -> None:
        assert live.server.wyoming_port is not None
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(STUCK_S)
        self.socket.connect(("127.0.0.1", live.server.wyoming_port))
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> WyomingTalk:
        return self

    def __exit__(self, *why: object) -> None:
        self.file.close()
        self.socket.close()

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, kind: str, **data: Any) -> None:
        self.raw(json.dumps({"type": kind, "data": data}).encode() + b"\n")

    def get(self) -> Message | None:
        """The next event, with its payload as `payload`. None: the server has hung up."""
        try:
            line = self.file.readline()
            if not line:
                return None
            head: Message = json.loads(line)
            data = json.loads(self.file.read(head["data_length"])) if "data_length" in head else {}
            payload = self.file.read(head["payload_length"]) if "payload_length" in head else b""
        except ConnectionError:
            return None
        return {"type": head["type"], **data, "payload": payload}

    def until(self, *kinds: str) -> list[Message]:
        """Events up to one of these, or to the end."""
        found = []
        while (event := self.get()) is not None:
            found.append(event)
            if event["type"] in kinds:
                break
        return found
