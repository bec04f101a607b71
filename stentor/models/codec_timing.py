"""How a codec takes a stream: the grid of its chunks, its look-ahead and its delay. Plain Python, no torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class CodecTiming:
    """All in frames. A causal codec without delay decodes any frame as soon as it exists: the defaults.

    grid: every chunk but a stream's last has a multiple of so many. The prompt's codec prefix counts.
    lookahead: so many frames behind a chunk must exist before it is decoded, unless the stream ends.
    delay: the audio of so many last frames of a chunk comes with the next one, or with this one if the stream ends.
    whole: an utterance that is not streamed is decoded in one call when it has ended, since that is another result.
    wholes: lengths of such calls that are captured, the codec prefix included. Utterances are padded to the next.
    chunks: whether streams are decoded in chunks. Otherwise their audio comes when they have ended, as a whole.
    window: so many pages of codec state a stream keeps, one for each `grid` frames, those of its codec prefix first.
    What is older than the rest is cut. 0: the codec has no pages.
    chunk: frames of one call at most, unless the policy says how many.
    late: so many samples, less than a frame's, at the end of a chunk come with the next one, or with this one if the
    stream ends. The last frame of a stream must tell that it is the last: the model keeps frames that stop.
    chunk_pages: with a window, a chunk has one page or so many, 2 at most. It has one where pages are cut.
    batch_invariant: whether `kernels.batch_invariant` reaches all sums, so that they do not depend on a call's shape.
    alone: each row is decoded in a call of its own.
    """

    grid: int = 1
    lookahead: int = 0
    delay: int = 0
    whole: bool = False
    wholes: tuple[int, ...] = ()
    chunks: bool = True
    window: int = 0
    chunk_pages: int = 1
    chunk: int = 25
    late: int = 0
    batch_invariant: bool = True
    alone: bool = False

    def __post_init__(self) -> None:
        # Otherwise a stream could end after its last chunk, and the audio that is owed would never come.
        assert self.delay == 0 or self.lookahead > 0, "a codec with a delay needs a look-ahead"
        assert self.chunks or self.whole, "a codec decodes chunks, or an utterance as a whole"
        assert not self.late or not (self.delay or self.lookahead or self.whole), (
            "late samples are of a causal codec"
        )
        assert self.chunk_pages <= 2, "a last chunk would have a length that is not captured"
        assert self.batch_invariant or self.window or not self.chunks, (
            "calls would have other lengths under load"
        )

    def for_engine(self, deterministic: bool) -> CodecTiming:
        """The timing of an engine. If it is `deterministic`, calls have one shape each where sums depend on that."""
        if deterministic and not self.batch_invariant:
            return replace(self, chunk_pages=1, alone=True)
        return self

    @property
    def held(self) -> int:
        """So many last frames, at most, wait for those that follow."""
        return self.grid - 1 + self.lookahead

    def on_grid(self, count: int) -> int:
        """`count` frames, up to the grid."""
        return -(-count // self.grid) * self.grid

    def chunks_of(self, frames: int) -> int:
        """Frames of whole chunks that can be decoded of so many, while more follow."""
        if self.chunks:
            return max(0, frames - self.lookahead) // self.grid * self.grid
        return 0

    def num_chunks(self, frames: int) -> int:
        """How many chunks of the grid those are."""
        return self.chunks_of(frames) // self.grid

    def offset(self, prefix: int) -> int:
        """Last frames of a codec prefix that are decoded with the stream's first chunks, since those complete them."""
        return prefix - self.chunks_of(prefix)

    def start(self, prefix: int, streaming: bool) -> int:
        """The frame of a stream that is decoded first. Below 0 it is one of the codec prefix."""
        return -(self.offset(prefix) if streaming or not self.whole else prefix)

    def window_end(self, prefix: int) -> int:
        """The frame of a stream from which on its oldest pages are cut."""
        own = self.window - self.num_chunks(prefix)
        if self.window:
            return own * self.grid - self.offset(prefix)
        return sys.maxsize

    def audio(self, start: int, count: int, last: bool) -> range:
        """The frames whose audio comes with a chunk. Those before 0 are the prompt's, and are not heard."""
        end = start + count - (0 if last else self.delay)
        first = max(0, start - self.delay)
        return range(first, max(first, end))


CAUSAL = CodecTiming()
