"""One text on its way through an engine, piece by piece, for callers in threads: whole (`speak`) or as a stream."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stentor.errors import Overloaded, StentorError, request_failed
from stentor.retry import Tries
from stentor.speech.joiner import JoinedAudio
from stentor.speech.piece import EnginePiece, Piece, SilentPiece
from stentor.speech.pieces import (
    SIDE_BY_SIDE,
    GeneratedSegment,
    PieceQueue,
    VoicesSoFar,
    continues,
    segment_request,
    with_tail_reference,
)
from stentor.speech.result import Speech
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.engine.engine import Engine
    from stentor.engine.stream import Chunk
    from stentor.models.base import Prompt, SpeechRequest

log = logging.getLogger("stentor.speech")


class Passage:
    """The segments of one request, and what they share.

    prompt: makes a request's prompt. speakable: whether the model can speak a text. request: holds the text of the
    first segment. tries: of each segment. streaming: audio comes in small chunks at first. words: their times are
    wanted.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Callable[[SpeechRequest], Prompt],
        speakable: Callable[[str], bool],
        request: SpeechRequest,
        segments: Sequence[Segment],
        tries: int,
        streaming: bool,
        words: bool = False,
    ) -> None:
        self.spec, self.request, self.segments, self.tries = engine.model.spec, request, segments, tries
        self.words = words
        self.carries = len(segments) > 1 and continues(self.spec, request)
        self.queue = PieceQueue(streaming)
        self.pieces: list[Piece] = []
        self.error: StentorError | None = None  # why it has no speech
        self._engine, self._prompt, self._speakable = engine, prompt, speakable
        self._voices = VoicesSoFar(self.spec)
        self._prepared: Piece | None = self._prepare()

    @property
    def begun(self) -> bool:
        """Whether the engine has taken a piece of it."""
        return bool(self.pieces)

    def start(self) -> list[Piece]:
        """Queue the pieces that may run first: one, or several where none needs another."""
        first = self.next()
        most = 1 if self.carries else SIDE_BY_SIDE
        return [p for p in (first, *(self.next() for _ in range(most - 1))) if p is not None]

    def next(self) -> Piece | None:
        """Queue the next piece. None: there is none left. Overloaded if it is the first and the queue is full."""
        piece = self._prepared or self._prepare()
        if piece is not None:
            self._prepared = piece
            piece.start()
            self._prepared = None
            self.pieces.append(piece)
        return piece

    def ended(self, piece: Piece) -> None:
        """Note a piece that has ended: the next one may take its voice."""
        if self.carries:
            self._voices.add(GeneratedSegment(piece.samples, piece.segment.spoken))

    def is_last(self, piece: Piece) -> bool:
        return piece.segment is self.segments[-1]

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
        joined, parts = JoinedAudio(self.spec.sample_rate, alone=len(self.segments) == 1), []
        for piece in self.pieces:
            parts.append(joined.begin(piece.segment))
            parts.append(joined.feed(piece.samples))
            clock = piece.clock(self.words)
            for chunk in piece.chunks:
                clock.add(chunk)
            joined.note_end(piece.segment, len(piece.samples), piece.finish, clock.spans())
            parts.append(joined.close(piece.segment, self.is_last(piece)))
        chunks = [c.frames for piece in self.pieces for c in piece.chunks if len(c.frames)]
        frames = np.concatenate(chunks) if chunks else self.pieces[0].chunks[0].frames
        timings = tuple(joined.timings)
        return Speech(np.concatenate(parts), joined.rate, frames, joined.ending, self._seed(), timings)

    def _seed(self) -> int:
        """The seed that repeats it: of the last try where there is one piece."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only.tries.seed if isinstance(only, EnginePiece) else self.request.seed

    def warn_if_cut(self, finish: str | None) -> None:
        """Log that a limit that nobody asked for has cut the speech."""
        if finish == "length" and self.request.options.get("max_frames") == self._usual_limit():
            log.warning("the speech was cut before the end of its text: max_frames was reached")

    def _usual_limit(self) -> float | None:
        option = self.spec.options.get("max_frames")
        return None if option is None else option.default

    def _prepare(self) -> Piece | None:
        at = len(self.pieces)
        if at == len(self.segments):
            return None
        segment = self.segments[at]
        if not self._speakable(segment.spoken):
            log.info("cannot speak %r: a silence is in its place", segment.spoken)
            return SilentPiece(segment, self.spec)
        spoken = any(not isinstance(p, SilentPiece) for p in self.pieces)
        request = self.request
        if len(self.segments) > 1:
            request = segment_request(request, segment, first=not spoken or not self.carries)
        if tails := self._voices.of(segment.spoken):
            request = with_tail_reference(request, self.spec, tails)
        return EnginePiece(self._engine, self.queue, segment, self._prompt(request), Tries(request.seed, self.tries))


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
    results = [p.error or p.speech() for p in passages]
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


class SpeechStream(Iterator[Speech]):
    """The audio of a passage as it is generated, one piece after another. Closing it cancels the rest, and so does
    dropping it, which drops the piece's stream."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage
        self._joined = JoinedAudio(passage.spec.sample_rate, alone=len(passage.segments) == 1)
        self._closed = False
        self._samples = 0  # of the present piece, so far
        self._chunks: Iterator[Chunk] = iter(())
        self._before = np.zeros(0, np.float32)  # silence before the present piece
        self._piece = self._next_piece()

    def __next__(self) -> Speech:
        if self._piece is None and not self._closed:
            self._piece = self._next_piece()
        if self._piece is None:
            raise StopIteration
        chunk = next(self._chunks)
        self._samples += len(chunk.samples)
        self._clock.add(chunk)
        if self._passage.carries and not isinstance(self._piece, SilentPiece):
            self._piece.chunks.append(chunk)
        samples = np.concatenate((self._before, self._joined.feed(chunk.samples)))
        self._before = self._before[:0]
        if chunk.finish is None:
            return self._speech(samples, chunk, None)
        return self._ended(self._piece, samples, chunk, chunk.finish)

    def _next_piece(self) -> Piece | None:
        piece = self._passage.next()
        if piece is not None:
            self._chunks, self._samples = piece.stream(), 0
            self._clock = piece.clock(self._passage.words)
            self._before = self._joined.begin(piece.segment)
        return piece

    def _ended(self, piece: Piece, samples: np.ndarray, chunk: Chunk, finish: str) -> Speech:
        """The last chunk of a piece, with the pause behind it."""
        passage, joined = self._passage, self._joined
        joined.note_end(piece.segment, self._samples, finish, self._clock.spans())
        piece.leave()
        passage.ended(piece)
        last = passage.is_last(piece) or finish == "cancelled"
        end = joined.close(piece.segment, last)
        self._piece, piece.chunks = None, []
        if last:
            self._closed = True
            passage.warn_if_cut(joined.ending)
        return self._speech(np.concatenate((samples, end)), chunk, joined.ending if last else None, joined.timings[-1:])

    def _speech(
        self, samples: np.ndarray, chunk: Chunk, finish: str | None, timings: Sequence[SegmentTiming] = ()
    ) -> Speech:
        seed = self._passage.request.seed
        return Speech(samples, self._joined.rate, chunk.frames, finish, seed, tuple(timings))

    def close(self) -> None:
        """Cancel the rest."""
        self._closed = True
        self._passage.cancel()
