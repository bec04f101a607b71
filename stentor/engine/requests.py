"""Open requests: from a caller's message to the last event of its stream.

A request may take several prompts, such as speaker turns: each next one is made from the frames of
the last.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stentor.audio.silence import FRAME_PEAK
from stentor.engine.health import Stats
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import LENGTH, Phase, Place, Sequence
from stentor.engine.seeds import next_seed
from stentor.engine.sequence_maker import SequenceMaker
from stentor.engine.stream import AppendText, Cancel, Chunk, EventSink
from stentor.errors import EngineError, InvalidRequest, Overloaded
from stentor.layers.types import Column, dtype_name
from stentor.models.base import Prompt


@dataclass(frozen=True)
class SavedRow:
    """A preempted request's slot: its row and frames, and the codec's state, as its runners saved
    them."""

    row: Any
    codec: Any


@dataclass
class Marks:
    """Moments of a traced request's first frame, on time.monotonic()'s clock. 0: not yet."""

    admitted: float = 0.0  # it has a slot
    prefilled: float = 0.0  # its prompt was computed, on a GPU launched
    first_frame: float = 0.0  # the host has read that frame 0 exists


@dataclass(eq=False)
class Request:
    """A sequence with its prompt and its caller's outbox. A request may take several prompts, one
    by one."""

    seq: Sequence
    prompt: Prompt
    outbox: EventSink
    seed: int  # of the present prompt
    marks: Marks | None = None
    frames: int = 0  # delivered, of the present prompt
    # those frames, if the next prompt needs them
    delivered_frames: list[np.ndarray] = field(default_factory=list)
    saved: SavedRow | None = None  # while it is parked
    following: tuple[Sequence, Prompt] | None = None  # the next prompt, while the present one ends
    audible: bool = False  # audio that is not silent has come
    error: BaseException | None = None  # why it fails
    closed: bool = False  # the stream has had its last event

    @property
    def finish(self) -> str:
        """Why its generation ended."""
        if self.seq.status == LENGTH:
            return "length"
        return "stop"

    def silent_frames(self, samples: np.ndarray, hop: int) -> int:
        """Number of silent frames at the start of this chunk [n * hop] that are to be trimmed."""
        remaining = self.prompt.trim_silent_frames - self.frames
        if remaining <= 0 or self.audible:
            return 0
        peaks = np.abs(samples[: remaining * hop]).reshape(-1, hop).max(axis=1)
        loud = np.flatnonzero(peaks > FRAME_PEAK)
        self.audible = len(loud) > 0
        if len(loud):
            return int(loud[0])
        return len(peaks)


class OpenRequests:
    """Requests from their start in the engine's thread until they hold nothing, and how many wait
    for a slot.

    Used from the engine's thread only, but for `enter_queue` and `leave_queue`.
    """

    def __init__(
        self, frame: Column, scheduler: Scheduler, sequences: SequenceMaker, stats: Stats
    ) -> None:
        self.frame = frame
        self.scheduler = scheduler
        self.sequences = sequences
        self.stats = stats
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

    def queue(self, request: Request) -> None:
        """A request, or its next prompt, waits for a slot."""
        self._add(request)
        self.scheduler.add(request.seq, time.monotonic())

    def _add(self, request: Request) -> None:
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

    def cancel(self, request: Request, error: BaseException | None = None) -> None:
        """Stop a request wherever it is, for its caller or because of `error`, and end its
        stream."""
        if request.seq.phase is Phase.QUEUED:
            self.leave_queue()
        request.error = error or request.error
        finished = self.scheduler.cancel(request.seq)
        self.end(request)
        if finished:
            self.remove(request.seq)

    def prepare_next(self, seq: Sequence) -> None:
        """Make the next prompt of the request whose present one ends as `seq`, which still has its
        pages.

        What the next prompt repeats can be found in those pages from now on.
        """
        request = self.of(seq)
        if request.closed or request.prompt.continuation is None:
            return
        if request.delivered_frames:
            frames = np.concatenate(request.delivered_frames)
        else:
            frames = self.no_frames()
        try:
            prompt = request.prompt.continuation(frames)
            if prompt is None:
                return
            self.sequences.fit(prompt)
            prompt.lora = request.prompt.lora
            if prompt.voice == request.prompt.voice:
                prompt.codec_state = request.prompt.codec_state
            following = self.sequences.new(prompt, seq.streaming, Place.NEXT, seq)
        except Exception as e:
            request.error = e
            return
        if following.continues:
            self.scheduler.tables.hand_on(seq, following)
        request.following = following, prompt

    def close(self, seq: Sequence) -> None:
        """The prompt of `seq` holds nothing any more. If its end is known only after its last
        audio, an empty chunk carries the reason. It comes after the counting, so that whoever has
        it finds the request counted."""
        request = self.remove(seq)
        if request.closed:
            return
        if request.error is not None:
            self.end(request)
        elif request.following is None:
            self.end(request)
            request.outbox.put(self._empty(request.finish))
        else:
            request.seq, request.prompt = request.following
            request.following = None
            request.seed = next_seed(request.seed)
            request.frames = 0
            request.delivered_frames = []
            self.enter_queue()
            self.queue(request)

    def end(self, request: Request) -> None:
        """The last event of a stream: an error, or that it was cancelled. Nothing after a final
        chunk."""
        if request.closed:
            return
        request.closed = True
        if request.error is not None:
            self.stats.failed += 1
            self.failed_in_a_row += not isinstance(request.error, InvalidRequest)
            request.outbox.put(request.error)
        elif request.seq.cancelled:
            self.stats.cancelled += 1
            request.outbox.put(self._empty("cancelled"))
        else:
            self.stats.finished += 1
            self.failed_in_a_row = 0

    def abandon(self, error: EngineError, submitted: Iterable[Request]) -> None:
        """End all streams that are still open, and those of requests that were submitted and not
        read."""
        for request in submitted:
            self._add(request)
        for request in self._by_id.values():
            if not request.closed:
                request.error = error
                self.end(request)
        self.leave_queue(sum(r.seq.phase is Phase.QUEUED for r in self._by_id.values()))
        self._by_id.clear()
        self._by_outbox.clear()

    def no_frames(self) -> np.ndarray:
        """Frames [0, *frame]."""
        return np.zeros((0, *self.frame.shape), dtype_name(self.frame.dtype))

    def _empty(self, finish: str) -> Chunk:
        return Chunk(np.zeros(0, np.float32), self.no_frames(), finish)


@dataclass(frozen=True)
class Submit:
    """Message to the engine: queue this request."""

    request: Request


Message = Submit | Cancel | AppendText | None
"""None wakes the thread, so that it sees that the engine is closing."""


class Inbox:
    """A queue that can be closed. `put` and `close` exclude each other: what was put before is
    found by `rest`.

    A stream may be dropped by the garbage collector while its thread puts something else, hence the
    reentrant lock.
    """

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.RLock()  # guards `refusal`
        self._process = os.getpid()
        self.refusal: str | None = None  # why nothing is taken any more

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, which has a copy of the engine and no thread that runs
        it."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """EngineError in a forked child."""
        if self.forked:
            raise EngineError(
                "the engine's thread did not follow into this forked process; load a TTS here, or spawn"
            )

    def check(self) -> None:
        """EngineError where no message would be read: the engine has stopped, or this is a forked
        child."""
        self.check_process()
        if self.refusal is not None:
            raise EngineError(f"the engine has stopped: {self.refusal}")

    def put(self, message: Message) -> None:
        """Hand over a message. EngineError if it would never be read. None is always taken."""
        if message is None:
            self._messages.put(None)
            return
        self.check()  # first: a forked child may have inherited a lock that is held
        with self._lock:
            self.check()
            self._messages.put(message)

    def get(self, wait: bool, timeout: float | None) -> Message:
        """The next message. queue.Empty if there is none, with `wait` not within `timeout`
        seconds."""
        return self._messages.get(wait, timeout)

    def close(self, reason: str) -> None:
        """Take nothing any more, and wake the thread. The first reason stays."""
        with self._lock:
            self.refusal = self.refusal or reason
        self._messages.put(None)

    def rest(self) -> list[Submit | Cancel | AppendText]:
        """All messages that were taken and not read."""
        remaining: list[Message] = []
        with suppress(queue.Empty):
            while True:
                remaining.append(self._messages.get_nowait())
        return [message for message in remaining if message is not None]
