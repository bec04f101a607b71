"""The life of one request, as the scheduler sees it. Plain Python; no tensors."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum

RUNNING, STOPPED, LENGTH, BROKEN = 0, 1, 2, 3
"""A row's `stop` value: still going; the model stopped; the limit was reached; a frame was not finite."""


class Phase(Enum):
    """Where a request is. Legal moves: MOVES."""

    QUEUED = "queued"  # waits for a slot
    RUNNING = "running"  # has a slot and pages; makes frames
    PREEMPTED = "preempted"  # has a slot, lost its pages; its frames will be replayed
    DRAINING = "draining"  # makes no more frames; audio or tickets are outstanding
    DONE = "done"  # holds nothing


MOVES = {
    Phase.QUEUED: {Phase.RUNNING, Phase.DONE},
    Phase.RUNNING: {Phase.PREEMPTED, Phase.DRAINING},
    Phase.PREEMPTED: {Phase.RUNNING, Phase.DRAINING},
    Phase.DRAINING: {Phase.DONE},
    Phase.DONE: set(),
}


@dataclass(eq=False)
class Sequence:
    """Counters of one request. `launched` frames have been asked for, `made` are known to exist."""

    id: int
    length: int  # prompt tokens
    max_frames: int  # frames at most
    num_evals: int  # loop length that emit needs
    skip: int  # first frames that may be silent and unheard: the first chunk is as much longer
    hop_seconds: float  # audio per frame
    streaming: bool
    arrival: float = 0.0
    phase: Phase = Phase.QUEUED
    fed: int = sys.maxsize  # frames that may be launched: live text has come for no more
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    launched: int = 0
    made: int = 0
    status: int = 0  # the row's `stop` value as last reported
    in_flight: int = 0  # tickets not yet retired that name this sequence
    audio_planned: int = 0  # frames handed to the codec
    audio_chunks: int = 0
    audio_done: int = 0  # frames whose audio has arrived
    first_audio: float | None = None  # when it arrived, or later by as long as its listener has had nothing to play
    retry_alone: bool = False  # a batch with it failed: its prefill is tried by itself
    cancelled: bool = False
    error: BaseException | None = None

    def move(self, phase: Phase) -> None:
        assert phase in MOVES[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    def lead(self, now: float) -> float:
        """Seconds of audio that this request is ahead of a listener who plays it as it comes."""
        return self.audio_done * self.hop_seconds - self.played(now)

    def played(self, now: float) -> float:
        """Seconds that the listener of this request has played, if audio was there."""
        return 0.0 if self.first_audio is None else now - self.first_audio

    def tokens_after_next(self) -> int:
        """Tokens in the cache once the next frame has been made: the prompt and all frames but that one."""
        return self.length + self.launched
