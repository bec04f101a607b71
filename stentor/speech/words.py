"""When each word of a segment is spoken: from where in the text its frames look
(engine/running/step.py), or by an aligner of the audio (stentor/align).

Where frames look, the text is passed once, forwards: of all such ways through it, their attention
chooses the likeliest. A word begins and ends where that way crosses its borders, between the
middles of two frames.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stentor.align.aligner import failing
from stentor.models.info import REACH
from stentor.speech.timing import WordTiming
from stentor.text.marks import PLACEHOLDERS, TextMarks, masked
from stentor.text.trace import WORD

if TYPE_CHECKING:
    from stentor.align.aligner import Aligners, Alignment
    from stentor.engine.stream import Chunk
    from stentor.models.info import ModelInfo
    from stentor.text.sentences import Segment, Word

# attention of a position that a frame does not look at: a frame astray costs no more
UNLIKELY = 1e-3
_UNLIKELY_SCORE = math.log(UNLIKELY)
_AROUND = np.arange(-REACH, REACH + 1)
_NO_MARKS = dict.fromkeys(map(ord, PLACEHOLDERS))


class Span(NamedTuple):
    """Seconds from the beginning of the segment's audio."""

    start: float
    end: float


class WordClock:
    """Collects where the frames of a segment look, or its audio, and returns the times of its
    words.

    words: their positions (Prompt.words). aligners: find them by the audio, for a model without
    attention to the text. They read `text` in `language`.
    """

    def __init__(
        self,
        spec: ModelInfo,
        words: Sequence[range],
        aligners: Aligners,
        language: str,
        text: str,
    ) -> None:
        self._spec = spec
        self._words = words
        self._alignment = aligners.segment(spec, language, text)
        self._attended: list[np.ndarray] = []

    def add(self, chunk: Chunk) -> None:
        """The next chunk of the segment. EngineError if its aligner fails."""
        if self._words and len(chunk.frames):
            self._attended.append(chunk.attended)
        if self._alignment is not None and len(chunk.samples):
            with failing():
                self._alignment.add(chunk.samples)

    def spans(self, segment: Segment) -> list[Span | None]:
        """When each word of the segment is spoken in what was added. None for one that is not.
        EngineError if its aligner fails."""
        if self._alignment is not None:
            return _aligned(self._alignment, sounding_words(segment.text, self._spec.marks))

        heads = self._spec.alignment
        if heads is None or not self._attended:
            return []
        attended = np.concatenate(self._attended)
        frame_seconds = self._spec.hop / self._spec.sample_rate
        return word_spans(attended, self._words, frame_seconds, heads.lag)


def _aligned(alignment: Alignment, words: list[str]) -> list[Span | None]:
    spans: list[Span | None] = []
    with failing():
        for span in alignment.spans(words):
            if span is None:
                spans.append(None)
            else:
                start, end = span
                spans.append(Span(float(start), float(end)))
        if len(spans) != len(words):
            raise ValueError(f"spans() must say {len(words)} of as many words, got {len(spans)}")
    return spans


def sounding_words(text: str, marks: TextMarks) -> list[str]:
    """The words of a text without a family's marks, of which an empty one may be left."""
    plain = masked(text, marks)
    words = []
    for m in WORD.finditer(text):
        start, end = m.span()
        word = plain[start:end]
        words.append(word.translate(_NO_MARKS))
    return words


def timed(
    words: Sequence[Word], spans: Sequence[Span | None], start: float, end: float, speed: float
) -> tuple[WordTiming, ...]:
    """Words with their times in audio in which their segment lasts from `start` to `end`, `speed`
    times as fast as the spans count. A mark that is not spoken belongs to the word before it, and
    what was cut off is left out."""
    timings: list[WordTiming] = []
    marks: list[Word] = []  # before the first word
    missing = [None] * (len(words) - len(spans))
    for word, span in zip(words, [*spans, *missing], strict=True):
        same = bool(timings) and _is_at(timings[-1], word)
        if span is None:
            if not timings:
                marks.append(word)
            elif not same:
                text = f"{timings[-1].text} {word.text}"
                timings[-1] = replace(timings[-1], text=text, end_char=word.end)
            continue

        begin = start + span.start / speed
        stop = min(end, start + span.end / speed)
        if same:
            timings[-1] = replace(timings[-1], end=stop)
            continue
        if begin >= end:
            break
        marks.append(word)
        text = " ".join(part.text for part in marks)
        first = marks[0].start
        timings.append(WordTiming(text, begin, stop, first, word.end))
        marks = []
    return tuple(timings)


def _is_at(timing: WordTiming, word: Word) -> bool:
    return timing.start_char == word.start and timing.end_char == word.end


def word_spans(
    attended: np.ndarray, words: Sequence[range], frame_seconds: float, lag: float
) -> list[Span | None]:
    """When each word is spoken. None for one that is not.

    attended: [frames, ATTENDED_WIDTH]. words: their positions (Prompt.words). lag: seconds by which
    attention is late.
    """
    if not len(attended) or not any(words):
        return [None] * len(words)
    length = max(w.stop for w in words) + 1
    place, is_sure = _way(attended, length)
    frames = np.flatnonzero(is_sure)
    all_times = (np.arange(len(attended)) + 0.5) * frame_seconds - lag
    times = all_times[frames]
    total = len(attended) * frame_seconds
    way = np.maximum.accumulate(place[frames]) + 1e-6 * frames  # strictly ascending

    # When the way passes the borders between two positions: the beginning and the end of each word.
    borders = np.array([(w.start, w.stop) for w in words]) - 0.5
    crossed = np.interp(borders, way, times, left=times[0], right=total)
    bounded = crossed.clip(0.0, total).tolist()
    return [Span(*both) if word else None for word, both in zip(words, bounded, strict=True)]


def _way(attended: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The position [frames] at which each frame is, between 0 and `length`, and which frames have
    their own."""
    places = attended[:, :1].astype(int)
    attention = attended[:, 1:].astype(np.float64)
    around = places + _AROUND
    inside = (around >= 0) & (around < length)
    weights = np.where(inside, attention, 0.0)
    path = _likeliest(around, weights, length)

    distance = np.abs(around - path[:, None])
    near = weights * (distance <= REACH)
    mass = near.sum(1)
    weighted = near * around
    middle = weighted.sum(1) / np.maximum(mass, UNLIKELY)
    sure = mass > 0.1
    place = np.where(sure, middle, path)
    if not sure.any():
        sure[:] = True  # each is where the path has it
    return place, sure


def _likeliest(around: np.ndarray, weights: np.ndarray, length: int) -> np.ndarray:
    """The path [frames] that never goes back, with the largest product of weights [frames, n] at
    positions `around`."""
    frames = np.arange(len(around))
    top = weights.argmax(1)
    path: np.ndarray = around[frames, top]
    has_weights = weights[frames, top] > 0
    is_forwards = path[1:] >= path[:-1]
    if has_weights.all() and is_forwards.all():
        return path  # of each frame the likeliest position, as mostly

    scores = np.full((len(around), length), _UNLIKELY_SCORE)
    frame, column = np.nonzero(weights)
    position = around[frame, column]
    likelihood = weights[frame, column] + UNLIKELY
    scores[frame, position] = np.log(likelihood)
    return _forwards(scores)


def _forwards(scores: np.ndarray) -> np.ndarray:
    """The path [frames] with the largest sum of scores [frames, positions] that never goes back
    (Viterbi). scores is overwritten."""
    best = np.empty_like(scores[0])
    # to the largest sum of a path that ends at each position
    for before, now in itertools.pairwise(scores):
        np.maximum.accumulate(before, out=best)
        np.add(now, best, out=now)
    path = np.empty(len(scores), int)
    place = int(scores[-1].argmax())
    path[-1] = place
    for frame in range(len(scores) - 2, -1, -1):
        back = scores[frame, place::-1].argmax()  # of equal ones the last
        place -= int(back)
        path[frame] = place
    return path
