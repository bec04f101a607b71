"""Speaking a text: which segment is generated when, in whose voice and with which seed, and all audio in order.

`Speaking` decides and joins, and does nothing else: it has no thread, event loop or engine. A driver submits what
`next` gives and reports what comes: `feed` for each chunk, `again` at the end of a try, `ended` at that of a segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stentor.engine.scheduling.sequence import Place
from stentor.models.info import ModelInfo, SpeechRequest
from stentor.retry import Tries
from stentor.speech.cast import Cast, GeneratedSegment, with_tail_reference
from stentor.speech.joiner import JoinedAudio
from stentor.speech.words import Span
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.engine.stream import Chunk

SIDE_BY_SIDE = 8  # segments of one request in the engine together, where none depends on another
NO_SAMPLES = np.zeros(0, np.float32)


class SpokenSegment:
    """One segment of a text, from its first try to the end of its last.

    request: see `voiced`. tails: the segments whose voices it takes.
    """

    def __init__(
        self, index: int, segment: Segment, request: SpeechRequest, tails: tuple[GeneratedSegment, ...], tries: int
    ) -> None:
        self.index, self.segment, self.request, self.tails = index, segment, request, tails
        self.tries = Tries(request.seed, tries)
        self.unspoken = False  # there is nothing in it to speak: its driver feeds a silence
        self.spans: Sequence[Span | None] = ()  # of its words
        self.placed = False  # its try has a place in the engine's queue
        self.done = False
        self.begin_try()

    def begin_try(self) -> None:
        """Drop the audio of the try before."""
        self.samples = self.frames = 0
        self.finish = "stop"  # why the present try has ended
        self.chunks: list[Chunk] = []  # of the present try, where they are kept

    def voiced(self, spec: ModelInfo) -> SpeechRequest:
        """Its request in the voices of the segments before. It may read their audio: for a thread where there are
        `tails`."""
        if self.tails:
            self.request, self.tails = with_tail_reference(self.request, spec, self.tails), ()
        return self.request

    @property
    def audio(self) -> np.ndarray:
        """float32 samples [n] of the chunks that are kept."""
        return np.concatenate([NO_SAMPLES, *(chunk.samples for chunk in self.chunks)])


class Speaking:
    """The segments of one request on their way through an engine.

    requests: of each voice by its name in the segments, with None for the request's own. streaming: segments are spoken
    one by one, each chunk goes out at once and there is one try. Else as many run together as depend on no other, and
    the audio of a segment goes out once it and all before it have ended. tries: of each segment. speed: how much faster
    a client plays the samples than they are. growing: segments are added with `add` until `end`. fades: the last 5 ms
    of a segment are held back, to be faded where something follows or it is cut.
    """

    def __init__(
        self,
        spec: ModelInfo,
        requests: Mapping[str | None, SpeechRequest],
        segments: Sequence[Segment],
        streaming: bool,
        tries: int = 1,
        speed: float = 1.0,
        growing: bool = False,
        fades: bool = True,
    ) -> None:
        self.spec, self.segments, self.streaming, self.growing = spec, list(segments), streaming, growing
        self.joined = JoinedAudio(spec.sample_rate, speed, alone=not fades)
        self.seed = next(iter(requests.values())).seed  # repeats it: of the last try where there is one segment
        self.unspoken: set[int] = set()  # indices of segments that were silences
        self._cast = Cast(spec, requests, growing or len(segments) > 1)
        self.at_once = 1 if streaming or self._cast.carries else min(SIDE_BY_SIDE, len(segments))
        self._tries = 1 if streaming else tries
        self._given = self._running = 0  # segments
        self._again: deque[SpokenSegment] = deque()  # have run on
        self._open: deque[SpokenSegment] = deque()  # given and not yet joined, in their order
        self._before = NO_SAMPLES  # silence that the next audio of a stream brings
        self._live = self._closed = self._admitted = False
        self._places = 0  # in the engine's queue, of tries that have ended, for those that follow

    # -- what is to be submitted --

    def next(self) -> SpokenSegment | None:
        """The segment to submit now, perhaps once more. None: another has to end first, or none is left."""
        if self._closed or self._running == self.at_once:
            return None
        if self._again:
            current = self._again.popleft()
            current.begin_try()
        elif self._given < len(self.segments):
            current = self._begin(self.segments[self._given])
        else:
            return None
        self._running += 1
        return current

    def _begin(self, segment: Segment) -> SpokenSegment:
        request = replace(self._cast.request(segment), live=self._live)
        current = SpokenSegment(self._given, segment, request, self._cast.tails(segment), self._tries)
        self._given += 1
        self._open.append(current)
        if self.streaming:
            self._before = np.concatenate((self._before, self.joined.begin(segment)))
        return current

    def add(self, segment: Segment, live: bool = False, apart: bool = False) -> None:
        """Add a segment to a text that grows, once all before it have ended. live: more of its text comes while it is
        spoken. apart: its audio is a file of its own, and has no pause before it."""
        if self.segments and not apart:
            self._before = self.joined.pause(self.segments[-1], segment)
        self.segments.append(segment)
        self._live = live

    def place(self, current: SpokenSegment) -> Place:
        """Take a place in the engine's queue for a try that is submitted now."""
        current.placed = True
        place = Place.NEXT if self._places else Place.ADMITTED if self._admitted else Place.NEW
        self._places = max(0, self._places - 1)
        return place

    def admit(self) -> None:
        """Note that the engine has taken a segment of this request, or of the call it belongs to: none is refused
        now."""
        self._admitted = True

    # -- what has come of it --

    def silence(self) -> np.ndarray:
        """Take the silence before the next audio of a stream, to send it early."""
        before, self._before = self._before, NO_SAMPLES
        return before

    def feed(self, current: SpokenSegment, chunk: Chunk) -> np.ndarray:
        """The next chunk of a segment -> the samples that may go out now, float32 [n]."""
        current.samples += len(chunk.samples)
        current.frames += len(chunk.frames)
        current.finish = chunk.finish or current.finish
        if not self.streaming or self._cast.carries_on(current.segment):
            current.chunks.append(chunk)
        return np.concatenate((self.silence(), self.joined.feed(chunk.samples))) if self.streaming else NO_SAMPLES

    def again(self, current: SpokenSegment, ran_on: bool) -> bool:
        """Note the end of a try, which leaves its place in the engine's queue to the next. True: it ran on, its audio
        is dropped, and `next` gives the segment with another seed."""
        self._running -= 1
        self._places += current.placed
        current.placed = False
        if not current.tries.again(ran_on):
            return False
        self._again.append(current)
        return True

    def ended(self, current: SpokenSegment, spans: Sequence[Span | None] = ()) -> np.ndarray:
        """Note the end of a segment, after `again` -> the samples that may go out now, float32 [n]. spans: of its
        words."""
        current.spans, current.done = spans, True
        if current.unspoken:
            self.unspoken.add(current.index)
        elif current.chunks and self._cast.carries_on(current.segment):
            self._cast.spoken(current.segment, current.audio)
        if self.growing:
            self.segments[current.index] = current.segment  # with the text that came later
        elif len(self.segments) == 1:
            self.seed = current.tries.seed
        self._closed = self._closed or current.finish == "cancelled"
        parts = [NO_SAMPLES]
        while self._open and self._open[0].done:
            parts.append(self._join(self._open.popleft()))
        return np.concatenate(parts)

    def _join(self, current: SpokenSegment) -> np.ndarray:
        """The rest of a segment's audio, with the pause behind it."""
        joined, segment = self.joined, current.segment
        parts = [] if self.streaming else [joined.begin(segment), joined.feed(current.audio)]
        joined.note_end(segment, current.samples, current.finish, current.spans)
        if self.growing:
            return np.concatenate((*parts, joined.close_early()))
        last = self._closed or current.index + 1 == len(self.segments)
        return np.concatenate((*parts, joined.close(segment, last, cut=current.finish.startswith("guard"))))

    # -- its end --

    @property
    def finish(self) -> str | None:
        """How it ended: "stop", or as the last segment that did not end by itself. None: more follows."""
        complete = not self.growing and self._given == len(self.segments) and not self._open
        return self.joined.ending if self._closed or complete else None

    def end(self) -> None:
        """Nothing more is added to a text that grew."""
        self.growing = False

    def close(self) -> None:
        """Give no more segments."""
        self._closed = True
