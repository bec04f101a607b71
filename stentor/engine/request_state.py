"""Open requests as the engine keeps them, and its counters and health."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stentor.engine.health import Stats
from stentor.engine.running.codec_pages import SavedCodec
from stentor.engine.scheduling.sequence import LENGTH, Phase, Sequence
from stentor.engine.stream import Chunk, EventSink
from stentor.errors import EngineError, InvalidRequest, Overloaded
from stentor.layers.types import Column
from stentor.models.base import Prompt
from stentor.silence import FRAME_PEAK


@dataclass(frozen=True)
class SavedRow:
    """Host copy of a preempted request's slot: its row and frames, and the codec's state."""

    row: list[Tensor]
    codec: SavedCodec


@dataclass
class Marks:
    """Moments of a traced request's first frame, on time.monotonic()'s clock. 0: not yet."""

    admitted: float = 0.0  # it has a slot
    prefilled: float = 0.0  # its prompt was computed, on a GPU launched
    first_frame: float = 0.0  # the host has read that frame 0 exists


@dataclass(eq=False)
class Request:
    """A sequence with its prompt and its caller's outbox. A request may take several prompts, one by one."""

    seq: Sequence
    prompt: Prompt
    outbox: EventSink
    seed: int  # of the present prompt
    marks: Marks | None = None
    frames: int = 0  # delivered, of the present prompt
    delivered_frames: list[np.ndarray] = field(default_factory=list)  # those frames, if the next prompt needs them
    saved: SavedRow | None = None  # while it is parked
    following: tuple[Sequence, Prompt] | None = None  # the next prompt, while the present one ends
    audible: bool = False  # audio that is not silent has come
    closed: bool = False  # the stream has had its last event

    @property
    def finish(self) -> str:
        """Why its generation ended."""
        return "length" if self.seq.status == LENGTH else "stop"

    def silent_frames(self, samples: np.ndarray, hop: int) -> int:
        """Number of silent frames at the start of this chunk [n * hop] that are to be trimmed."""
        wanted = self.prompt.trim_silent_frames - self.frames
        if wanted <= 0 or self.audible:
            return 0
        peaks = np.abs(samples[: wanted * hop]).reshape(-1, hop).max(axis=1)
        loud = np.flatnonzero(peaks > FRAME_PEAK)
        self.audible = len(loud) > 0
        return int(loud[0]) if len(loud) else len(peaks)


class OpenRequests:
    """Requests from their start in the engine's thread until they hold nothing, and how many wait for a slot."""

    def __init__(self, frame: Column, stats: Stats) -> None:
        self.frame, self.stats = frame, stats
        self.failed_in_a_row = 0
        self.waiting = 0  # submitted and not yet started
        self._lock = threading.Lock()  # guards `waiting`, which callers' threads change too
        self._by_id: dict[int, Request] = {}  # by the id of their sequence
        self._by_outbox: dict[EventSink, Request] = {}

    def enter_queue(self, limit: int | None = None) -> None:
        """Count a request that waits. Overloaded if `limit` are waiting already."""
        with self._lock:
            if limit is not None and self.waiting >= limit:
                raise Overloaded(f"{self.waiting} requests are waiting already; try again later")
            self.waiting += 1

    def leave_queue(self, count: int = 1) -> None:
        with self._lock:
            self.waiting -= count

    def add(self, request: Request) -> None:
        """A new request, or the next prompt of one that was removed."""
        self._by_id[request.seq.id] = self._by_outbox[request.outbox] = request

    def remove(self, seq: Sequence) -> Request:
        """The request of `seq`, which is open no more."""
        request = self._by_id.pop(seq.id)
        del self._by_outbox[request.outbox]
        return request

    def of(self, seq: Sequence) -> Request:
        return self._by_id[seq.id]

    def of_outbox(self, outbox: EventSink) -> Request | None:
        """The request of `outbox`, None if it is open no more."""
        return self._by_outbox.get(outbox)

    def finish(self, request: Request) -> None:
        """End a stream whose last chunk is already out: an empty chunk says why it ended. It comes after the counting,
        so that whoever has it finds the request counted."""
        self.end(request)
        request.outbox.put(self._empty(request.finish))

    def end(self, request: Request) -> None:
        """The last event of a stream: an error, or that it was cancelled. Nothing after a final chunk."""
        if request.closed:
            return
        request.closed = True
        seq = request.seq
        if seq.error is not None:
            self.stats.failed += 1
            self.failed_in_a_row += not isinstance(seq.error, InvalidRequest)
            request.outbox.put(seq.error)
        elif seq.cancelled:
            self.stats.cancelled += 1
            request.outbox.put(self._empty("cancelled"))
        else:
            self.stats.finished += 1
            self.failed_in_a_row = 0

    def abandon(self, error: EngineError) -> None:
        """End all streams that are still open."""
        for request in self._by_id.values():
            if not request.closed:
                request.seq.error = error
                self.end(request)
        self.leave_queue(sum(r.seq.phase is Phase.QUEUED for r in self._by_id.values()))
        self._by_id.clear()
        self._by_outbox.clear()

    def no_frames(self) -> np.ndarray:
        """Frames [0, *frame]."""
        dtype = torch.empty(0, dtype=self.frame.dtype).numpy().dtype
        return np.zeros((0, *self.frame.shape), dtype)

    def _empty(self, finish: str) -> Chunk:
        return Chunk(np.zeros(0, np.float32), self.no_frames(), finish)
