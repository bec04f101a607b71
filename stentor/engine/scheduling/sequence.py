"""The life of one request, as the scheduler sees it. Plain Python, no tensors."""

from __future__ import annotations

import sys
from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from math import inf

RUNNING = 0
STOPPED = 1
LENGTH = 2
BROKEN = 3
"""A row's `stop` value: running, stopped by the model, ended at `max_frames`, or a frame was not
finite."""


class Phase(Enum):
    """Where a request is. MOVES lists the legal changes."""

    QUEUED = "queued"  # waits for a slot
    # has a slot and pages. Its prompt, or what it had generated, is computed piece by piece
    PREFILLING = "prefilling"
    RUNNING = "running"  # has a slot and pages, generates frames
    PREEMPTED = "preempted"  # has a slot but no pages. Its frames will be replayed
    PARKED = (
        "parked"  # waits for text or its reader without slot and pages; its row is kept on the host
    )
    DRAINING = "draining"  # generates no more frames. Audio or steps are in flight
    DONE = "done"  # holds nothing


MOVES = {
    Phase.QUEUED: {Phase.PREFILLING, Phase.DONE},
    Phase.PREFILLING: {Phase.RUNNING, Phase.PREEMPTED, Phase.DRAINING},
    Phase.RUNNING: {Phase.PREEMPTED, Phase.PARKED, Phase.DRAINING},
    Phase.PREEMPTED: {Phase.PREFILLING, Phase.PARKED, Phase.DRAINING},
    Phase.PARKED: {Phase.PREFILLING, Phase.DONE},
    Phase.DRAINING: {Phase.DONE},
    Phase.DONE: set(),
}


class Place(Enum):
    """Where a request enters the queue. Only a new one is refused when the queue is full."""

    NEW = "new"  # at the end
    ADMITTED = "admitted"  # at the end: part of a request that has been admitted
    NEXT = "next"  # before the others: it follows a part that has ended, whose place it takes


@dataclass(eq=False)
class Sequence:
    """Counters of one request. `num_scheduled` frames have been launched. The host has read
    `num_generated` of them.

    Fields up to `given_frames` are set when it is made. Each other one has one writer
    (tests/engine/test_sequence.py):

        Sequence: phase, in_flight, num_scheduled
        Scheduler: arrival, slot, num_generated, num_hidden, status, max_schedulable, cancelled
        PageTables: pages, frame_pages, room, num_cached
        PrefillPlanner: piece
        AudioScheduler: audio_scheduled, audio_chunks, audio_due, audio_waiting, audio_delivered,
            last_audio, first_audio, plays_until
    """

    id: int
    length: int  # prompt tokens
    max_frames: int
    num_evals: int  # loop length that emit needs
    trim_frames: (
        int  # first frames that may be trimmed as silent. The first chunk is longer by as many
    )
    hop_seconds: float  # audio per frame
    streaming: bool
    place: Place = Place.NEW
    late_seconds: float = 0.0  # of the delivered frames' audio that comes with the next chunk
    codec_prefix: int = 0  # frames of its voice before frame 0, in the codec's count
    emitted_is_free: bool = False  # live text: frames with audio need none (models.base.LiveText)
    prefix: tuple[bytes, ...] = ()  # a key for what each full page of the prompt holds
    continues: bool = (
        False  # repeats its request's last prompt and frames, which are in pages that it can find
    )
    keeps_pages: bool = (
        False  # holds its pages until it is complete: the request's next prompt may repeat them
    )
    has_voice: bool = (
        False  # its prompt has frames of reference audio, or keys and values of a voice
    )
    frame_at: tuple[
        int, ...
    ] = ()  # positions of its prompt's frames, in a family with page sets by frame
    frame_keys: tuple[
        bytes, ...
    ] = ()  # a key for what the page of each such frame holds, in full pages of the prompt
    num_given: int = (
        0  # first positions that are not computed: its prompt brings their keys and values
    )
    given_frames: int = 0  # frames that its prompt brings in page sets by frame, before all others

    phase: Phase = Phase.QUEUED
    in_flight: int = 0  # launches that name this sequence and whose result the host has not read
    num_scheduled: int = 0
    arrival: float = 0.0
    slot: int = -1
    num_generated: int = 0
    num_hidden: int = 0  # of those, given neither to the codec nor to the caller
    status: int = 0  # the row's `stop` value as last reported
    max_schedulable: int = (
        sys.maxsize
    )  # frames for which there is text. Below max_frames only for live text
    cancelled: bool = False
    pages: list[int] = field(default_factory=list)
    frame_pages: list[int] = field(
        default_factory=list
    )  # of page sets by frame: one for each frame
    room: int = 0  # frames for which its pages have room behind its prompt
    num_cached: int = 0  # prompt tokens that its first pages held when it was last started
    piece: range = range(
        0
    )  # positions that its last prefill computes. All before them are in its pages
    audio_scheduled: int = 0  # frames handed to the codec
    audio_chunks: int = 0
    audio_due: int = 0  # generated frames from which on its next chunk is due
    audio_waiting: int = 0  # frames at most that wait for later ones before they are decoded
    audio_delivered: int = 0  # frames whose audio has arrived
    last_audio: float = 0.0  # when audio last arrived
    first_audio: float | None = (
        None  # when the first audio arrived, moved on by as long as the client ran dry
    )
    plays_until: float = (
        -inf
    )  # when the client of a stream has played what has come. -inf: nothing has

    def __post_init__(self) -> None:
        self.piece = range(self.length)

    def move(self, phase: Phase) -> None:
        assert phase in MOVES[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    def launch(self, frames: int = 0) -> None:
        """Note a launch that makes `frames` of its frames."""
        self.in_flight += 1
        self.num_scheduled += frames

    def landed(self, lost: int = 0) -> None:
        """Note that the host has read a launch, or that it has failed. lost: frames that it did not
        make."""
        self.in_flight -= 1
        self.num_scheduled -= lost

    def rewind(self) -> None:
        """It is prefilled again. Frames that the host has not read are made anew."""
        self.num_scheduled = self.num_generated

    @property
    def has_row(self) -> bool:
        """Whether it has a slot and may generate more."""
        return self.phase in (Phase.PREFILLING, Phase.RUNNING, Phase.PREEMPTED)

    @property
    def prefill_length(self) -> int:
        """Positions that must be in its pages before it is decoded: its prompt, and all its frames
        but the last."""
        return self.length + max(0, self.num_generated - 1)

    @property
    def num_frames(self) -> int:
        """Frames of its prompt and those that were scheduled, with the one that is made next."""
        return self.given_frames + len(self.frame_at) + self.num_scheduled + 1

    def frames_before(self, position: int) -> int:
        """How many of its prompt's frames stand before a position. Those that it brings stand at
        the first."""
        if position == 0:
            return 0
        return self.given_frames + bisect_left(self.frame_at, position)

    @property
    def first_computed(self) -> int:
        """The position from which on its prefill computes."""
        return max(self.num_cached, self.num_given)

    @property
    def num_emitted(self) -> int:
        return self.num_generated - self.num_hidden

    @property
    def emits(self) -> bool:
        """Whether frame 0 is made behind its last prefill. That of a request which has frames
        already makes none."""
        return not self.num_generated and self.piece.stop == self.length

    @property
    def replays(self) -> bool:
        """Whether its last prefill computes frames that it had before it was preempted, and nothing
        of its prompt."""
        return self.piece.start >= self.length

    @property
    def may_go_on(self) -> bool:
        """Whether there is text for its next frame."""
        return self.num_generated < self.max_schedulable

    @property
    def idle(self) -> bool:
        """Whether it has a slot, and all that its text allows has been generated and delivered."""
        open = (
            self.phase in (Phase.RUNNING, Phase.PREEMPTED)
            and self.status == RUNNING
            and not self.in_flight
        )
        return (
            open
            and not self.may_go_on
            and self.num_emitted - self.audio_scheduled <= self.audio_waiting
        )

    @property
    def decoded(self) -> bool:
        """Whether the codec has had all frames of a request that has ended."""
        return self.num_emitted in (0, self.audio_scheduled)

    def lead(self, now: float) -> float:
        """Seconds of audio that a client still has buffered if it plays the stream as it comes."""
        return self.audio_delivered * self.hop_seconds - self.played(now)

    def played(self, now: float) -> float:
        """Seconds that a client has played by now, if its buffer never ran dry."""
        if self.first_audio is None:
            return 0.0
        return now - self.first_audio
