"""How a codec takes a stream: the length of its chunks and the samples that it owes. Plain Python,
no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class CodecTiming:
    """A codec with state. Each frame is decoded once, as soon as it exists.

    chunk: frames of one call at most, unless the policy sets the number.
    late: samples at the end of a chunk that come with the next one, or with this one if the stream
    ends. The last frame of a stream must be known as the last: the model keeps frames that stop,
    or the codec's chunks end before a stream's last frame.
    calls: large calls that are launched at once. Launched calls cannot be overtaken, so a first
    chunk waits for them.
    """

    chunk: int = 25
    late: int = 0
    calls: int = 1
    batch_invariant: ClassVar[bool] = True
    """Whether `kernels.batch_invariant` reaches all sums of a call of several rows. Else an engine
    that needs it compares such calls with calls of one row when it starts."""


@dataclass(frozen=True)
class UtteranceTiming(CodecTiming):
    """A codec that decodes each chunk from the whole utterance so far, its codec prefix included.

    Its result for a stream's last chunk, and so for a request that is not streamed, differs from
    that of the chunks before: all frames of the utterance are known then.

    chunk: frames that a call of several rows reads at most. So many fill a GPU.
    hops: frames of a stream's chunks in order. The last number repeats. The first chunk is longer
    by as many frames as bring prefix and chunk to a multiple of `hops[0]`.
    ahead: frames behind a chunk that must exist before it is decoded, unless the stream ends.
    lengths: frames of captured calls, the codec prefix included. A call is padded to the next one.
    """

    batch_invariant: ClassVar[bool] = False
    hops: tuple[int, ...] = (25,)
    ahead: int = 0
    lengths: tuple[int, ...] = ()

    def hop(self, prefix: int, number: int) -> int:
        """Frames of a stream's chunk `number`, counted from 0. prefix: frames of its codec
        prefix."""
        if number == 0:
            return self.hops[0] + -prefix % self.hops[0]
        return self.hops[min(number, len(self.hops) - 1)]

    def needs(self, prefix: int, number: int) -> int:
        """Frames that must exist from the beginning of chunk `number` on, unless the stream
        ends."""
        return self.hop(prefix, number) + self.ahead

    @property
    def longest(self) -> int:
        """Frames of a stream's longest chunk, the last one included."""
        return max(self.hops[0] * 2 - 1, *self.hops) + self.ahead


@dataclass(frozen=True)
class PieceTiming(CodecTiming):
    """A family without steps (models/piece_model.py), whose pieces are decoded whole.

    rows: pieces of one call at most. frames: of one call at most, each row as long as its longest.
    A piece that is longer has a call by itself. similar: the longest piece of a call is at most so
    many times as long as the shortest. The others compute padding. padding: frames, or tokens of a
    plan, of padding that take no longer than one more call. A call always takes them.
    """

    rows: int = 1
    frames: int = 0
    similar: float = 1.25
    padding: int = 0

    @property
    def pieces(self) -> int:
        """Pieces that are launched at once."""
        return self.rows * self.calls


CAUSAL = CodecTiming()
