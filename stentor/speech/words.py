"""When each word of a segment is spoken, from where in the text its frames look (engine/alignment.py).

The text is passed once, forwards: of all such ways through it, the frames' attention chooses the likeliest. A word
begins and ends where that way crosses its borders, between the middles of two frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stentor.engine.alignment import REACH
from stentor.speech.timing import WordTiming

if TYPE_CHECKING:
    from stentor.engine.stream import Chunk
    from stentor.models.base import ModelSpec
    from stentor.text.sentences import Word

UNLIKELY = 1e-3  # attention of a position that a frame does not look at: a frame astray costs no more


class Span(NamedTuple):
    """Seconds from the beginning of the segment's audio."""

    start: float
    end: float


class WordClock:
    """Collects where the frames of a segment look, and says when its words are spoken.

    wanted: whether anybody asks. words: their positions (Prompt.words).
    """

    def __init__(self, spec: ModelSpec, words: Sequence[range], wanted: bool) -> None:
        self._spec, self._words = spec, words if wanted else ()
        self._attended: list[np.ndarray] = []

    def add(self, chunk: Chunk) -> None:
        """The next chunk of the segment."""
        if self._words and len(chunk.frames):
            self._attended.append(chunk.attended)

    def spans(self) -> list[Span | None]:
        """When each word is spoken in what was added. None for one that is not."""
        heads = self._spec.alignment
        if heads is None or not self._attended:
            return []
        frame_seconds = self._spec.hop / self._spec.sample_rate
        return word_spans(np.concatenate(self._attended), self._words, frame_seconds, heads.lag)


def timed(
    words: Sequence[Word], spans: Sequence[Span | None], start: float, end: float, speed: float
) -> tuple[WordTiming, ...]:
    """Words with their times in audio in which their segment lasts from `start` to `end`, `speed` times as fast as the
    spans count. A mark that is not spoken belongs to the word before it, and what was cut off is left out."""
    found: list[WordTiming] = []
    marks: list[Word] = []  # before the first word
    for word, span in zip(words, [*spans, *[None] * (len(words) - len(spans))], strict=True):
        same = bool(found) and (word.start, word.end) == (found[-1].start_char, found[-1].end_char)
        if span is None or same:
            if not found:
                marks.append(word)
            elif not same:
                found[-1] = replace(found[-1], text=f"{found[-1].text} {word.text}", end_char=word.end)
            elif span is not None:
                found[-1] = replace(found[-1], end=min(end, start + span.end / speed))
            continue
        begin = start + span.start / speed
        if begin >= end:
            break
        text = " ".join(w.text for w in [*marks, word])
        first = marks[0].start if marks else word.start
        found.append(WordTiming(text, begin, min(end, start + span.end / speed), first, word.end))
        marks = []
    return tuple(found)


def word_spans(attended: np.ndarray, words: Sequence[range], frame_seconds: float, lag: float) -> list[Span | None]:
    """When each word is spoken. None for one that is not.

    attended: [frames, alignment.WIDTH]. words: their positions (Prompt.words). lag: seconds by which attention is late.
    """
    if not len(attended) or not any(words):
        return [None] * len(words)
    place, seen = _way(attended, max(w.stop for w in words) + 1)
    times = (np.arange(len(attended)) + 0.5) * frame_seconds - lag
    total = len(attended) * frame_seconds
    known = np.arange(len(seen))[seen]
    way = np.maximum.accumulate(place[known]) + 1e-6 * known  # strictly ascending

    # When the way passes the borders between two positions: the beginning and the end of each word.
    borders = np.array([(w.start, w.stop) for w in words]) - 0.5
    crossed = np.interp(borders, way, times[known], left=times[known[0]], right=total).clip(0.0, total).tolist()
    return [Span(*both) if w else None for w, both in zip(words, crossed, strict=True)]


def _way(attended: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The position [frames] at which each frame is, between 0 and `length`, and which frames say so themselves."""
    count = len(attended)
    around = attended[:, :1].astype(int) + np.arange(-REACH, REACH + 1)
    inside = (around >= 0) & (around < length)
    weights = np.zeros((count, length))
    weights[np.nonzero(inside)[0], around[inside]] = attended[:, 1:][inside]
    path = _forwards(np.log(weights + UNLIKELY))
    near = np.abs(np.arange(length) - path[:, None]) <= REACH
    own = np.where(near, weights, 0.0)
    mass = own.sum(1)
    seen = mass > 0.1
    seen |= ~seen.any()  # nothing is sure: each is where the path has it
    middle = (own * np.arange(length)).sum(1) / np.maximum(mass, UNLIKELY)
    return np.where(mass > 0.1, middle, path), seen


def _forwards(scores: np.ndarray) -> np.ndarray:
    """The path [frames] with the largest sum of scores [frames, positions] that never goes back (Viterbi)."""
    count, length = scores.shape
    positions = np.arange(length)
    came = np.zeros((count, length), int)
    total = scores[0]
    for i in range(1, count):
        best = np.maximum.accumulate(total)
        came[i] = np.maximum.accumulate(np.where(total == best, positions, 0))
        total = best + scores[i]
    path = np.zeros(count, int)
    path[-1] = int(total.argmax())
    for i in range(count - 1, 0, -1):
        path[i - 1] = came[i, path[i]]
    return path
