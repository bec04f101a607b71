"""One text on its way through an engine, piece by piece, for callers in threads: whole (`speak`) or as a stream."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stentor.errors import Overloaded, StentorError, request_failed
from stentor.output.render import AS_IT_IS, Output, Rendering
from stentor.retry import Tries
from stentor.speech.joiner import JoinedAudio
from stentor.speech.piece import EnginePiece, Piece, SilentPiece
from stentor.speech.pieces import (
    SIDE_BY_SIDE,
    Cast,
    PieceQueue,
    with_tail_reference,
)
from stentor.speech.result import Speech
from stentor.speech.timing import SegmentTiming
from stentor.speech.words import WordClock
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.align.aligner import Aligners
    from stentor.engine.engine import Engine
    from stentor.engine.stream import Chunk
    from stentor.models.base import Prompt
    from stentor.models.info import SpeechRequest

log = logging.getLogger("stentor.speech")


class Passage:
    """The segments of one request, and what they share.

    prompt: makes a request's prompt. speakable: whether the model can speak a text. requests: of each voice by its name
    in the segments, with None for the request's own, each with the text of its first segment. tries: of each segment.
    streaming: audio comes in small chunks at first. aligners: the times of words are wanted, and these find them where
    the model does not. output: what is made of the samples.
    growing: segments are still added to it.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Callable[[SpeechRequest], Prompt],
        speakable: Callable[[str], bool],
        requests: Mapping[str | None, SpeechRequest],
        segments: Sequence[Segment],
        tries: int,
        streaming: bool,
        aligners: Aligners | None = None,
        output: Output = AS_IT_IS,
        growing: bool = False,
    ) -> None:
        self.spec, self.segments, self.tries = engine.model.spec, list(segments), tries
        self.aligners, self.output, self.growing = aligners, output, growing
        self.cast = Cast(self.spec, requests, growing or len(segments) > 1)
        self.request = next(iter(requests.values()))
        self.queue, self._streaming = PieceQueue(), streaming
        self.pieces: list[Piece] = []
        self.error: StentorError | None = None  # why it has no speech
        self.ignored: list[str] = []  # pieces of its text that the model cannot speak, so far
        self._engine, self._prompt, self._speakable, self._requests = engine, prompt, speakable, requests
        self._live = False  # text may be added to the last segment while it is spoken
        self._prepared: Piece | None = None
        self.prepare()

    @property
    def begun(self) -> bool:
        """Whether the engine has taken a piece of it."""
        return bool(self.pieces)

    @property
    def at_once(self) -> int:
        """How many pieces may run together: several where none needs another."""
        return 1 if self.cast.carries else SIDE_BY_SIDE

    def add(self, segment: Segment, live: bool) -> None:
        """Add a segment to one that grows. live: more of its text comes while it is spoken."""
        self.segments.append(segment)
        self._live = live

    def start(self) -> list[Piece]:
        """Queue the pieces that may run first: one, or several where none needs another."""
        return [p for p in (self.next() for _ in range(self.at_once)) if p is not None]

    def next(self) -> Piece | None:
        """Queue the next piece. None: there is none left. Overloaded if it is the first and the queue is full."""
        self.prepare()
        piece = self._prepared
        if piece is not None:
            piece.start()
            self._prepared = None
            self.pieces.append(piece)
        return piece

    def clock(self, piece: Piece) -> WordClock:
        """A clock of the words of a piece, if their times are wanted."""
        if self.aligners is None:
            return piece.clock(False, None)
        language, segment = self.request.language, piece.segment
        return piece.clock(True, self.aligners.segment(self.spec, language, segment.text))

    def ended(self, piece: Piece) -> None:
        """Note a piece that has ended: the next one may take its voice."""
        if self.cast.carries_on(piece.segment) and not isinstance(piece, SilentPiece):
            self.cast.spoken(piece.segment, piece.samples)

    def is_last(self, piece: Piece) -> bool:
        return not self.growing and piece.segment is self.segments[-1]

    def cancel(self) -> None:
        """Cancel what is running."""
        for piece in self.pieces:
            if not piece.done:
                piece.leave()

    def fail(self, error: Exception) -> None:
        """End it with an error. What stentor did not raise on purpose, such as no memory to encode audio, has it as
        its cause."""
        self.error = error if isinstance(error, StentorError) else request_failed(error)
        self.cancel()

    def speech(self) -> Speech:
        """All pieces joined. Every piece has ended."""
        joined, parts = JoinedAudio(self.spec.sample_rate, self.output.speed, alone=len(self.segments) == 1), []
        for piece in self.pieces:
            parts.append(joined.begin(piece.segment))
            parts.append(joined.feed(piece.samples))
            clock = self.clock(piece)
            for chunk in piece.chunks:
                clock.add(chunk)
            joined.note_end(piece.segment, len(piece.samples), piece.finish, clock.spans(piece.segment))
            parts.append(joined.close(piece.segment, self.is_last(piece)))
        chunks = [c.frames for piece in self.pieces for c in piece.chunks if len(c.frames)]
        frames = np.concatenate(chunks) if chunks else self.pieces[0].chunks[0].frames
        samples, data = Rendering(self.output, joined.rate, whole=True).feed(np.concatenate(parts), last=True)
        timings, ignored = tuple(joined.timings), tuple(self.ignored)
        line = self.output.marks.comment
        return Speech(samples, joined.rate, frames, joined.ending, self._seed(), timings, ignored, data, line)

    def outcome(self) -> Speech | StentorError:
        """All pieces joined, or why it has no speech. Every piece has ended."""
        try:
            return self.error or self.speech()
        except Exception as e:
            self.fail(e)
            assert self.error is not None
            return self.error

    def _seed(self) -> int:
        """The seed that repeats it: of the last try where there is one piece."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only.tries.seed if isinstance(only, EnginePiece) else self.request.seed

    def warn_if_cut(self, finish: str | None) -> None:
        """Log that a limit that nobody asked for has cut the speech."""
        if finish == "length" and self.request.options.get("max_frames") == self._usual_limit():
            log.warning("max_frames cut the speech before the end of its text")

    def _usual_limit(self) -> float | None:
        option = self.spec.options.get("max_frames")
        return None if option is None else option.default

    def prepare(self) -> None:
        """Make the prompt of the next piece, if it is not made yet."""
        at = len(self.pieces)
        if self._prepared is None and at < len(self.segments):
            self._prepared = self._made(self.segments[at])

    def _made(self, segment: Segment) -> Piece:
        if not self._speakable(segment.spoken):
            log.warning("cannot speak %r: silence instead", segment.spoken)
            self.ignored.append(segment.text)
            return SilentPiece(segment, self.spec)
        if segment.unread:
            log.warning("cannot speak %s: left out", ", ".join(map(repr, segment.unread)))
            self.ignored += segment.unread
        several = self.growing or len(self.segments) > 1
        request = self.cast.request(segment) if several else self._requests[segment.voice]
        if tails := self.cast.tails(segment):
            request = with_tail_reference(request, self.spec, tails)
        if self._live:
            request = replace(request, live=True)
        tries = Tries(request.seed, self.tries)
        return EnginePiece(self._engine, self.queue, segment, self._prompt(request), tries, self._streaming)


def speak(passages: Sequence[Passage]) -> list[Speech | StentorError]:
    """Speak all of them together, and give the speech of each, or its error. While the queue is full, what is running
    ends before another passage begins.

    Overloaded if others fill the queue before the first one.
    """
    running: deque[tuple[Passage, Piece]] = deque()
    try:
        for passage in passages:
            while not passage.begun and passage.error is None:
                _begin(passage, running, first=passage is passages[0])
        while running:
            _end_oldest(running)
    except BaseException:
        for passage in passages:
            passage.cancel()
        raise
    results = [p.outcome() for p in passages]
    for passage, result in zip(passages, results, strict=True):
        if isinstance(result, Speech):
            passage.warn_if_cut(result.finish_reason)
    return results


def _begin(passage: Passage, running: deque[tuple[Passage, Piece]], first: bool) -> None:
    """Queue the first pieces of a passage. While there is no room, have what runs end. If nothing runs, others fill
    the queue: they stand before it, and it is not refused once another of its call was taken."""
    try:
        running.extend((passage, piece) for piece in passage.start())
    except Overloaded:
        if first:
            raise
        if running:
            _end_oldest(running)
        else:
            passage.queue.admit()
    except Exception as e:
        passage.fail(e)


def _end_oldest(running: deque[tuple[Passage, Piece]]) -> None:
    """Wait for the oldest piece. Its next try, or the next piece of its passage, takes its place."""
    passage, piece = running.popleft()
    if passage.error is not None:
        return
    try:
        piece.wait()
        following: Piece | None = piece
        if piece.done:
            passage.ended(piece)
            following = passage.next()
    except Exception as e:
        passage.fail(e)
        return
    if following is not None:
        running.append((passage, following))


class JoinedPieces:
    """The chunks of a passage's pieces as `Speech`, one piece after another."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        alone = not passage.growing and len(passage.segments) == 1
        self._joined = JoinedAudio(passage.spec.sample_rate, passage.output.speed, alone)
        self._rendering = Rendering(passage.output, passage.spec.sample_rate, whole=False)
        self.ended = False  # nothing follows
        self.piece: Piece | None = None  # that is being spoken
        self._last: Segment | None = None  # of the piece before, in a passage that grows
        self._samples = 0  # of the present piece, so far
        self._before = np.zeros(0, np.float32)  # silence before the present piece

    def begin(self, piece: Piece) -> None:
        """The next piece begins."""
        self.piece, self._samples = piece, 0
        self._clock = self._passage.clock(piece)
        pause = self._before if self._last is None else self._joined.pause(self._last, piece.segment)
        self._before = np.concatenate((pause, self._joined.begin(piece.segment)))

    def take(self, chunk: Chunk) -> Speech:
        """The speech of the present piece's next chunk. After its last one there is no present piece."""
        piece = self.piece
        assert piece is not None
        self._samples += len(chunk.samples)
        self._clock.add(chunk)
        if self._passage.cast.carries_on(piece.segment) and not isinstance(piece, SilentPiece):
            piece.chunks.append(chunk)
        samples = np.concatenate((self._before, self._joined.feed(chunk.samples)))
        self._before = self._before[:0]
        if chunk.finish is None:
            return self._speech(samples, chunk.frames, None)
        return self._piece_ended(piece, samples, chunk, chunk.finish)

    def finish(self) -> Speech:
        """The end of a passage that grew."""
        self.ended = True
        self._passage.warn_if_cut(self._joined.ending)
        none = np.zeros((0, *self._passage.spec.frame.shape), np.float32)
        return self._speech(np.zeros(0, np.float32), none, self._joined.ending)

    def _piece_ended(self, piece: Piece, samples: np.ndarray, chunk: Chunk, finish: str) -> Speech:
        """The last chunk of a piece, with the pause behind it."""
        passage, joined = self._passage, self._joined
        joined.note_end(piece.segment, self._samples, finish, self._clock.spans(piece.segment))
        piece.leave()
        passage.ended(piece)
        self.piece, piece.chunks = None, []
        if passage.growing:
            self._last = piece.segment
            return self._speech(
                np.concatenate((samples, joined.close_early())), chunk.frames, None, joined.timings[-1:]
            )
        self.ended = passage.is_last(piece) or finish == "cancelled"
        end = joined.close(piece.segment, self.ended)
        if self.ended:
            passage.warn_if_cut(joined.ending)
        ending = joined.ending if self.ended else None
        return self._speech(np.concatenate((samples, end)), chunk.frames, ending, joined.timings[-1:])

    def _speech(
        self, samples: np.ndarray, frames: np.ndarray, finish: str | None, timings: Sequence[SegmentTiming] = ()
    ) -> Speech:
        seed, ignored = self._passage.request.seed, tuple(self._passage.ignored)
        line = self._passage.output.marks.comment
        self._passage.ignored.clear()
        samples, data = self._rendering.feed(samples, last=finish is not None)
        return Speech(samples, self._joined.rate, frames, finish, seed, tuple(timings), ignored, data, line)


class SpeechStream(Iterator[Speech]):
    """The audio of a passage as it is generated, one piece after another. Closing it cancels the rest, and so does
    dropping it, which drops the piece's stream."""

    def __init__(self, passage: Passage) -> None:
        self._passage, self._pieces = passage, JoinedPieces(passage)
        self._chunks: Iterator[Chunk] = iter(())
        self._begin()

    def __next__(self) -> Speech:
        if self._pieces.piece is None and not self._pieces.ended:
            self._begin()
        if self._pieces.piece is None:
            raise StopIteration
        return self._pieces.take(next(self._chunks))

    def _begin(self) -> None:
        piece = self._passage.next()
        if piece is not None:
            self._chunks = piece.stream()
            self._pieces.begin(piece)

    def close(self) -> None:
        """Cancel the rest."""
        self._pieces.ended = True
        self._passage.cancel()
