"""The records of a run before anything is computed: replies with the time of every byte.

During the load the client only appends (time, size) pairs. Decoding and measuring wait until the
load has ended, so that the benchmark never delays the arrivals that it times.
"""

import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stentor.bench.load.prompts import TextItem
from stentor.errors import StentorError

Samples = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Framing = Literal["raw", "sse", "websocket", "float32"]
"""How a reply's bytes carry audio: the body itself, SSE events, WebSocket messages, or samples from
the engine."""


class ArrivalKind(IntEnum):
    """Kind of an arrival: part of an HTTP body, a WebSocket text frame, or a WebSocket binary
    frame."""

    BODY = 0
    TEXT = 1
    BINARY = 2


class Arrival(NamedTuple):
    """One read from the transport: when (`time.perf_counter` seconds), what, how many bytes."""

    time: float
    kind: ArrivalKind
    size: int


class Failure(NamedTuple):
    """Why a request has no valid answer. Kinds: docs/benchmarking.md, "Failures"."""

    kind: str
    message: str


class SpoolSpan(NamedTuple):
    """The position of a reply's bytes in the spool."""

    offset: int
    size: int


EMPTY_SPAN = SpoolSpan(0, 0)


@dataclass(slots=True)
class Reply:
    """One answer as the transport saw it. All times are `time.perf_counter` seconds."""

    sent: float
    ended: float = 0.0
    requested: float | None = None
    """When the request head was written to the socket (connection set-up lies between `sent` and
    this)."""
    headers_at: float | None = None
    text_done: float | None = None
    """WebSocket: when the last piece of text had been sent."""
    setup_s: float | None = None
    """WebSocket: seconds for connection and handshake, which precede `sent`."""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header names in lower case."""
    arrivals: list[Arrival] = field(default_factory=list)
    body: SpoolSpan = EMPTY_SPAN
    failure: Failure | None = None


@dataclass(slots=True)
class Exchange:
    """One scheduled request and what became of it. `reply` is None when it was dropped, not
    sent."""

    prompt: TextItem
    planned: float
    """When the schedule wanted it."""
    released: float
    """When the load generator released it. It may still wait for a free place under
    `--max-concurrency`."""
    reply: Reply | None = None


class SpoolError(StentorError):
    """The audio of a run could not be kept until it is measured."""


class Spool:
    """The bytes of all replies of a run, in one temporary file, so that memory does not grow with
    the run.

    A thread writes them: a megabyte takes half a millisecond, in which the load generator sends
    other requests.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="stentor-bench-")  # noqa: SIM115 (closed by close())
        self._size = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="stentor-spool")
        self._writes: list[Future[None]] = []  # nobody has waited for

    def put(self, chunks: list[bytes]) -> SpoolSpan:
        """Append the chunks of one reply and return where they will be."""
        span = SpoolSpan(self._size, sum(map(len, chunks)))
        self._size += span.size
        self._writes.append(self._writer.submit(self._write, span.offset, chunks))
        return span

    def _write(self, offset: int, chunks: list[bytes]) -> None:
        self._file.seek(offset)
        self._file.writelines(chunks)
        self._file.flush()  # a full disk is found here, and not by who reads

    def _wait(self) -> None:
        """Until all has been written. SpoolError if the disk is full."""
        while self._writes:
            try:
                self._writes.pop(0).result()
            except OSError as e:
                folder = tempfile.gettempdir()
                raise SpoolError(
                    f"cannot keep answers in {folder}, which TMPDIR may change: {e.strerror}"
                ) from e

    def get(self, span: SpoolSpan) -> bytes:
        """The bytes put at `span`. SpoolError if any could not be kept."""
        self._wait()
        self._file.seek(span.offset)
        return self._file.read(span.size)

    def clear(self) -> None:
        """Delete all bytes. Spans that `put` returned before are no longer valid."""
        self._wait()
        self._file.truncate(0)
        self._size = 0

    def close(self) -> None:
        """Delete the file."""
        self._writer.shutdown()
        with suppress(OSError):  # what is left to write is not needed
            self._file.close()
