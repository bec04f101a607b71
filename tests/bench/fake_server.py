"""A server whose every byte and pause is scripted, and which writes down when it did what: the truth of these tests.

Raw sockets, so that a script can do what web frameworks prevent: late heads, broken bodies, nothing at all.
Server and client share one `VirtualTimeLoop` and its clock, and they talk over a Unix socket: a time stamp here and the
client's time stamp of the same event are equal.
"""

import asyncio
import json
import struct
import tempfile
from collections.abc import Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np


def clock() -> float:
    return asyncio.get_running_loop().time()


WARM_UP = "warm-up"
"""A request for this text is answered at once and not logged: it opens the connection."""


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Head:
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (
        ("Content-Type", "audio/pcm"),
        ("X-Sample-Rate", "24000"),
    )


@dataclass(frozen=True)
class Send:
    data: bytes
    samples: int = 0


@dataclass(frozen=True)
class Abort:
    """Drop the connection where it stands."""


@dataclass
class Log:
    """Record of one request: what the server did, and when."""

    body: dict
    received: float
    head: float | None = None
    sends: list[tuple[float, int]] = field(default_factory=list)
    """(time, samples) of every Send that holds samples."""
    payloads: list[float] = field(default_factory=list)
    """Time of every Send."""
    ended: float | None = None


class FakeServer:
    """Plays one script per request, in the order of arrival; the last one is repeated."""

    def __init__(self, *scripts: list) -> None:
        self.scripts = scripts
        self.logs: list[Log] = []
        self.path = ""
        """Address of its Unix socket."""

    @asynccontextmanager
    async def running(self):
        with tempfile.TemporaryDirectory() as folder:
            self.path = f"{folder}/socket"
            server = await asyncio.start_unix_server(self._connection, self.path)
            try:
                yield self
            finally:
                server.close()

    async def _connection(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(v) for k, v in _headers(head) if k == "content-length"), 0)
                body = await reader.readexactly(length)
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                log = Log(json.loads(body), clock())
                if WARM_UP in log.body.values():
                    await self._play([Head()], log, writer)
                    continue
                script = self.scripts[min(len(self.logs), len(self.scripts) - 1)]
                self.logs.append(log)
                if not await self._play(script, log, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _play(self, script, log, writer):
        for step in script:
            match step:
                case Wait(seconds):
                    await asyncio.sleep(seconds)
                case Head(status, headers):
                    lines = [
                        f"HTTP/1.1 {status} X",
                        *(f"{k}: {v}" for k, v in headers),
                        "Transfer-Encoding: chunked",
                    ]
                    log.head = clock()
                    writer.write("\r\n".join([*lines, "", ""]).encode())
                case Send(data, samples):
                    now = clock()
                    log.payloads.append(now)
                    if samples:
                        log.sends.append((now, samples))
                    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                case Abort():
                    await writer.drain()
                    await asyncio.sleep(
                        0.02
                    )  # let the client read what was sent before the reset discards it
                    log.ended = clock()
                    writer.transport.abort()
                    return False
        log.ended = clock()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _headers(head: bytes) -> Iterable[tuple[str, str]]:
    for line in head.decode().split("\r\n")[1:]:
        if ":" in line:
            name, value = line.split(":", 1)
            yield name.lower(), value.strip()


def tone(seconds: float, rate: int = 24000, level: float = 0.2) -> np.ndarray:
    """A 440 Hz sine, float32."""
    t = np.arange(round(seconds * rate)) / rate
    return (level * np.sin(2 * np.pi * 440 * t)).astype(np.float32)


def silence(seconds: float, rate: int = 24000) -> np.ndarray:
    return np.zeros(round(seconds * rate), np.float32)


def pcm(samples: np.ndarray) -> Send:
    """A chunk of s16le PCM."""
    return Send(np.round(samples * 32767).astype("<i2").tobytes(), samples.size)


def wav_header(
    rate: int, size: int = 0xFFFFFFFF, channels: int = 1, bits: int = 16, tag: int = 1
) -> Send:
    step = channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * step, step, bits)
    return Send(
        b"RIFF\xff\xff\xff\xffWAVEfmt "
        + struct.pack("<I", 16)
        + fmt
        + b"data"
        + struct.pack("<I", size)
    )


def chunks(audio: np.ndarray, seconds: float, rate: int = 24000) -> list[Send]:
    """The audio in PCM chunks of so many seconds."""
    step = round(seconds * rate)
    return [pcm(audio[i : i + step]) for i in range(0, audio.size, step)]


def paced(sends: Iterable[Send], pause: float) -> list:
    """The sends with a pause before each."""
    return [step for send in sends for step in (Wait(pause), send)]
