"""Frames of a WebSocket on their way to its session: few in each turn of the event loop, and not
too many a second.

The library behind the session takes what it gets in one go, where an empty frame of six bytes costs
as much as one with a text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stentor.server.limits import Limits

CONTINUATION = 0
CONTROL = 8  # opcodes from here on: close, ping, pong
POLICY_VIOLATION = 1008


class TooManyFrames(Exception):
    """The client has sent more frames of a kind than it may."""


class FrameReader:
    """Follows the frames of a client in its bytes. It keeps nothing of their payloads.

    now: seconds on a clock that does not go back.
    """

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.limits = limits
        self.now = now
        self.fragments = 0  # of the message that is being received
        self._head = bytearray()  # of a frame, until it is complete
        self._payload = 0  # bytes to come of the last frame
        self._controls: tuple[float, int] = (now(), 0)  # since when they are counted, and how many

    def piece(self, data: bytes | bytearray) -> int:
        """Return how many bytes of `data` make up a turn's worth of frames. Call it once for each
        byte. TooManyFrames names the limit."""
        at = frames = 0
        end = min(len(data), self.limits.ws_turn_kib << 10)
        while at < end and frames < self.limits.ws_turn_frames:
            if self._payload:
                size = min(self._payload, end - at)
                self._payload -= size
                at += size
                continue
            self._head.append(data[at])
            at += 1
            if len(self._head) == self._head_size():
                frames += 1
                self._begin()
        return at

    def _head_size(self) -> int:
        """Bytes of a frame before its payload: two, a longer length, and the mask (RFC 6455,
        5.2)."""
        if len(self._head) < 2:
            return 2
        length = self._head[1] & 0x7F
        masked = 4 * (self._head[1] >> 7)
        return 2 + {126: 2, 127: 8}.get(length, 0) + masked

    def _begin(self) -> None:
        """Note a frame whose head is complete."""
        head = bytes(self._head)
        self._head.clear()
        length = head[1] & 0x7F
        if length == 126:
            length = int.from_bytes(head[2:4])
        elif length == 127:
            length = int.from_bytes(head[2:10])
        self._payload = length

        opcode = head[0] & 0x0F
        if opcode >= CONTROL:
            self._count_control()
            return
        self.fragments = self.fragments + 1 if opcode == CONTINUATION else 0
        if self.fragments > self.limits.ws_fragments:
            raise TooManyFrames(f"a message has more than {self.limits.ws_fragments} fragments")

    def _count_control(self) -> None:
        now = self.now()
        since, count = self._controls
        if now - since >= 1:
            since = now
            count = 0
        self._controls = since, count + 1
        if count >= self.limits.ws_controls:
            raise TooManyFrames(f"more than {self.limits.ws_controls} control frames in a second")


class PacedTransport:
    """A transport as the session of a WebSocket sees it: to pause reading holds back what has
    arrived, too. All else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, pace: Pace) -> None:
        self._transport = transport
        self._pace = pace
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self._pace.hold(True)

    def resume_reading(self) -> None:
        self._pace.hold(False)


class Pace:
    """Passes a client's frames to its session, a few in each turn of the event loop."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, limits: Limits
    ) -> None:
        self.transport = transport
        self.loop = loop
        self.frames = FrameReader(limits, loop.time)
        self.session: asyncio.Protocol | None = None
        self._waiting = bytearray()
        self._held = False  # by the session
        self._turn: asyncio.Handle | None = None

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._waiting += data
        if self._turn is None and not self._held:
            self._give()

    def hold(self, held: bool) -> None:
        """Pause or resume what the session gets."""
        self._held = held
        if not held and self._waiting and self._turn is None:
            self._turn = self.loop.call_soon(self._next_turn)
        self._read_on()

    def close(self) -> None:
        """Drop frames that were not passed on. The connection has ended."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()

    def _next_turn(self) -> None:
        self._turn = None
        if self._waiting and not self._held:
            self._give()

    def _give(self) -> None:
        assert self.session is not None
        if self.transport.is_closing():
            self._waiting.clear()
            return
        try:
            size = self.frames.piece(self._waiting)
        except TooManyFrames as e:
            self._refuse(str(e))
            return
        piece = bytes(self._waiting[:size])
        del self._waiting[:size]
        self.session.data_received(piece)
        if self._waiting and not self._held and self._turn is None:
            self._turn = self.loop.call_soon(self._next_turn)
        self._read_on()

    def _read_on(self) -> None:
        """Read from the client while nothing waits. asyncio takes repeated calls."""
        if self.transport.is_closing():
            return
        if self._held or self._waiting:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _refuse(self, why: str) -> None:
        """Close the connection with a frame that holds the reason."""
        self._waiting.clear()
        payload = POLICY_VIOLATION.to_bytes(2) + why.encode()
        self.transport.write(bytes([0x88, len(payload)]) + payload)
        self.transport.close()
