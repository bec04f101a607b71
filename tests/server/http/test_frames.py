"""Frames of a WebSocket: how many a session gets in a turn of the event loop, and how many a client may send."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.http.frames import FrameReader, Pace, TooManyFrames
from stentor.server.limits import LIMITS

TURN_FRAMES = LIMITS.ws_turn_frames
TURN_BYTES = LIMITS.ws_turn_kib << 10
TEXT, CONTINUED, PING, PONG = 1, 0, 9, 10


def frame(payload: bytes = b"", opcode: int = TEXT, final: bool = True) -> bytes:
    """A frame as a client sends it, with a mask of zeros."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2)
    else:
        length = b"\xff" + size.to_bytes(8)
    return bytes([0x80 * final | opcode]) + length + bytes(4) + payload


class Transport:
    """Notes what is written, and whether reading is paused."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Session(asyncio.Protocol):
    """Notes what it gets in each turn."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


def paced(loop: asyncio.AbstractEventLoop, **limits: Any) -> tuple[Transport, Session, Pace]:
    transport = Transport()
    pace = Pace(transport, loop, replace(LIMITS, **limits))  # type: ignore[arg-type]
    pace.session = session = Session()
    return transport, session, pace


@given(
    sizes=st.lists(st.sampled_from([0, 1, 125, 126, 127, 65535, 65536]), max_size=6),
    cut=st.integers(1, 40_000),
)
def test_a_reader_passes_every_byte_once_wherever_they_are_cut(sizes: list[int], cut: int) -> None:
    reader = FrameReader(LIMITS, lambda: 0.0)
    data = b"".join(frame(bytes(size)) for size in sizes)
    passed = b""
    for start in range(0, len(data), cut):
        part = data[start : start + cut]
        while part:
            size = reader.piece(part)
            assert 0 < size <= TURN_BYTES
            passed += part[:size]
            part = part[size:]
    assert passed == data
    assert (reader._payload, len(reader._head)) == (0, 0)


@pytest.mark.parametrize("payload", [b"", b"x" * 40])
def test_a_session_gets_a_burst_a_few_frames_at_a_time(payload: bytes) -> None:
    async def burst() -> None:
        transport, session, pace = paced(asyncio.get_running_loop())
        pace.data_received(frame(payload) * 1000)
        assert transport.paused
        for turn in range(1, 40):
            assert sum(map(len, session.pieces)) <= turn * TURN_FRAMES * len(frame(payload))
            await asyncio.sleep(0)
        assert b"".join(session.pieces) == frame(payload) * 1000
        assert not transport.paused

    asyncio.run(burst())


def test_a_session_that_pauses_gets_nothing_until_it_reads_on() -> None:
    async def pause() -> None:
        transport, session, pace = paced(asyncio.get_running_loop())
        pace.data_received(frame() * 100)
        pace.hold(True)
        before = len(session.pieces)
        pace.data_received(frame() * 100)
        for _ in range(9):
            await asyncio.sleep(0)
        assert (len(session.pieces), transport.paused) == (before, True)
        pace.hold(False)
        for _ in range(9):
            await asyncio.sleep(0)
        assert b"".join(session.pieces) == frame() * 200
        assert not transport.paused

    asyncio.run(pause())


@pytest.mark.parametrize(
    ("first", "repeated", "why"),
    [
        (b"", frame(b"", PING), b"more than 7 control frames in a second"),
        (b"", frame(b"", PONG), b"more than 7 control frames in a second"),
        (frame(b"{", TEXT, False), frame(b"", CONTINUED, False), b"more than 9 fragments"),
    ],
)
def test_a_client_that_sends_too_many_small_frames_is_closed(
    first: bytes, repeated: bytes, why: bytes
) -> None:
    async def flood() -> None:
        transport, session, pace = paced(asyncio.get_running_loop(), ws_controls=7, ws_fragments=9)
        pace.data_received(first + repeated * 5000)
        await asyncio.sleep(0)
        assert transport.closed
        assert why in transport.written
        assert transport.written[2:4] == (1008).to_bytes(2)
        pace.data_received(repeated)
        assert sum(map(len, session.pieces)) <= len(first + TURN_FRAMES * repeated)

    asyncio.run(flood())


def test_control_frames_are_counted_by_the_second() -> None:
    seconds = [0.0]
    reader = FrameReader(replace(LIMITS, ws_controls=3), lambda: seconds[0])
    for second in range(5):
        seconds[0] = second * 1.0
        assert reader.piece(frame(b"", PING) * 3) == 3 * len(frame())
    with pytest.raises(TooManyFrames, match="3 control frames"):
        reader.piece(frame(b"", PING))


def test_fragments_are_counted_by_the_message() -> None:
    reader = FrameReader(replace(LIMITS, ws_fragments=3), lambda: 0.0)
    message = frame(b"a", TEXT, False) + frame(b"b", CONTINUED, False) * 2 + frame(b"", CONTINUED)
    for _ in range(5):
        assert reader.piece(message) == len(message)
    with pytest.raises(TooManyFrames, match="3 fragments"):
        reader.piece(frame(b"a", TEXT, False) + frame(b"b", CONTINUED, False) * 4)
