"""How long a stream's next chunk is, and when it is due. Plain Python on plain data."""

from __future__ import annotations

import sys
from typing import Protocol

from stentor.config import Policy
from stentor.engine.scheduling.sequence import RUNNING, Phase, Sequence
from stentor.models.codec_timing import CodecTiming, PieceTiming, UtteranceTiming

RAMP = (1, 2, 4, 8, 16, 25)
GENTLE_RAMP = (1, 1, 1, 2, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25)
"""For a device that needs more than half of real time. Up to a real-time factor of 0.75 no chunk
takes longer to generate than the client has buffered."""


class Chunks(Protocol):
    """Rules for the chunks of one codec.

    starts_at_once: whether frame 0 is a stream's first chunk.
    """

    starts_at_once: bool

    def next_chunk(self, seq: Sequence) -> tuple[int, bool]:
        """Return the frames of the next chunk (0: it is not due), and whether it is the last."""
        ...

    def reads(self, seq: Sequence, count: int, last: bool) -> int:
        """Return the frames that the codec reads to decode the next `count`."""
        ...

    def due_at(self, seq: Sequence) -> int:
        """Return the frames that a request must have generated before its next chunk is due."""
        ...

    def waiting(self, seq: Sequence) -> int:
        """Return the frames at most that wait for later ones before they are decoded."""
        ...

    def decodable(self, seq: Sequence, frames: int) -> int:
        """Return the frames that can be decoded once a stream that goes on has `frames`."""
        ...


class RampChunks:
    """Chunks of a codec with state: short at first, for early audio, and longer later."""

    def __init__(self, policy: Policy, timing: CodecTiming) -> None:
        self.chunk, self.ramp = chunk_sizes(policy, timing)
        self.starts_at_once = self.ramp[0] == 1 and not timing.late
        sizes = {*self.ramp, self.chunk}
        self._longest = [
            max((size for size in sizes if size <= ready), default=ready)
            for ready in range(self.chunk + 1)
        ]
        """By ready frames: the longest chunk that they fill."""

    def next_chunk(self, seq: Sequence) -> tuple[int, bool]:
        ended = seq.status != RUNNING
        ready = ready_frames(seq)
        size = self._wanted(seq)
        if ready < size and not ended:
            if ready <= 0 or (seq.may_go_on and not is_held_up(seq)):
                return 0, False
            # Nothing follows for now. These can be played until then.
            size = self._longest[min(ready, self.chunk)]
        elif seq.audio_chunks and seq.streaming:
            # More frames wait than were due: longer chunks cost the codec less.
            size = max(size, self._longest[min(ready, self.chunk)])
        count = min(ready, size)
        return count, ended and count == ready

    def reads(self, seq: Sequence, count: int, last: bool) -> int:
        return count

    def due_at(self, seq: Sequence) -> int:
        if is_held_up(seq):
            return 0
        frames = seq.num_hidden + seq.audio_scheduled + self._wanted(seq)
        return min(frames, seq.max_schedulable)

    def waiting(self, seq: Sequence) -> int:
        return 0

    def decodable(self, seq: Sequence, frames: int) -> int:
        return frames

    def _wanted(self, seq: Sequence) -> int:
        """Frames of the next chunk, unless the stream ends."""
        if not seq.streaming:
            return self.chunk
        step = self.ramp[min(seq.audio_chunks, len(self.ramp) - 1)]
        if not seq.audio_chunks:
            step += seq.trim_frames
        return min(step, self.chunk)


class UtteranceChunks:
    """Chunks of a codec that decodes each one from the utterance so far.

    A request that is not streamed is one chunk, when it has ended.
    """

    starts_at_once = False

    def __init__(self, timing: UtteranceTiming) -> None:
        self.timing = timing

    def next_chunk(self, seq: Sequence) -> tuple[int, bool]:
        ready = ready_frames(seq)
        if seq.streaming and ready >= self._needs(seq):
            return self.timing.hop(seq.codec_prefix, seq.audio_chunks), False
        if seq.status != RUNNING:
            return ready, True
        return 0, False

    def reads(self, seq: Sequence, count: int, last: bool) -> int:
        frames = seq.codec_prefix + seq.audio_scheduled + count
        if last:
            return frames
        return frames + self.timing.ahead

    def due_at(self, seq: Sequence) -> int:
        if not seq.streaming:
            return sys.maxsize
        return seq.num_hidden + seq.audio_scheduled + self._needs(seq)

    def waiting(self, seq: Sequence) -> int:
        if not seq.streaming:
            return sys.maxsize
        return self._needs(seq) - 1

    def decodable(self, seq: Sequence, frames: int) -> int:
        if frames >= seq.audio_scheduled + self._needs(seq):
            return frames - self.timing.ahead
        return seq.audio_scheduled

    def _needs(self, seq: Sequence) -> int:
        return self.timing.needs(seq.codec_prefix, seq.audio_chunks)


class WholePieces:
    """Chunks of a family without steps: a request is one chunk, streamed or not."""

    starts_at_once = False

    def next_chunk(self, seq: Sequence) -> tuple[int, bool]:
        if seq.status == RUNNING:
            return 0, False
        return ready_frames(seq), True

    def reads(self, seq: Sequence, count: int, last: bool) -> int:
        """Return 1: the codec's queue counts pieces, as launched calls are bounded by them."""
        return 1

    def due_at(self, seq: Sequence) -> int:
        return sys.maxsize

    def waiting(self, seq: Sequence) -> int:
        return sys.maxsize

    def decodable(self, seq: Sequence, frames: int) -> int:
        return seq.audio_scheduled


def chunks_for(policy: Policy, timing: CodecTiming) -> Chunks:
    """Return the rules for a codec's chunks."""
    if isinstance(timing, PieceTiming):
        return WholePieces()
    if isinstance(timing, UtteranceTiming):
        return UtteranceChunks(timing)
    return RampChunks(policy, timing)


def chunk_sizes(policy: Policy, timing: CodecTiming) -> tuple[int, tuple[int, ...]]:
    """Return the frames of the longest chunk, and of a stream's first ones."""
    chunk = timing.chunk if policy.chunk is None else policy.chunk
    return chunk, tuple(min(size, chunk) for size in policy.ramp or RAMP)


def ready_frames(seq: Sequence) -> int:
    """Frames that exist and that the codec has not decoded."""
    if seq.decoded:
        return 0
    return seq.num_emitted - seq.audio_scheduled


def is_held_up(seq: Sequence) -> bool:
    """Whether a stream lacks pages for its next frame.

    Its client plays on, so the frames that exist are decoded.
    """
    return seq.phase is Phase.PREEMPTED and seq.streaming
