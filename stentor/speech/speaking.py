"""Speaking a text: which segment is generated when, in whose voice and with which seed, and all
audio in order.

`Speaking` decides and joins, and does nothing else: it has no thread, event loop or engine. A
driver submits the requests of `next` and reports what comes: `feed` for each chunk, `again` at the
end of a try, `ended` at that of a segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stentor.audio import Recording
from stentor.audio.silence import REFERENCE_PEAK
from stentor.engine.scheduling.sequence import Place
from stentor.engine.seeds import next_seed
from stentor.engine.stream import Chunk
from stentor.models.info import ModelInfo, ReferenceAudio, SpeechRequest
from stentor.speech.guard import NOTES_ONLY, Guard, GuardRule
from stentor.speech.timing import SegmentTiming
from stentor.speech.words import Span, timed
from stentor.text.marks import speakers
from stentor.text.pauses import PAUSES
from stentor.text.segments import shown
from stentor.text.sentences import Segment

SIDE_BY_SIDE = 8  # segments of one request in the engine together, where none depends on another
NO_SAMPLES = np.zeros(0, np.float32)
UNSPOKEN_SECONDS = 0.3  # of silence in place of a text that cannot be spoken
FADE_SECONDS = 0.005


class SpokenSegment:
    """One segment of a text, from its first try to the end of its last.

    request: of the present try, with its seed. tails: the segments whose voices it takes. tries: it
    has at most.
    """

    def __init__(
        self,
        index: int,
        segment: Segment,
        request: SpeechRequest,
        tails: tuple[GeneratedSegment, ...],
        tries: int,
    ) -> None:
        self.index = index
        self.segment = segment
        self.request = request
        self.tails = tails
        self.tries_left = tries  # the present one included
        self.unspoken = False  # there is nothing in it to speak: its driver feeds a silence
        self.spans: Sequence[Span | None] = ()  # of its words
        self.placed = False  # its try has a place in the engine's queue
        self.done = False
        self.begin_try()

    def begin_try(self) -> None:
        """Drop the audio of the try before."""
        self.samples = 0
        self.frames = 0
        self.ran_on = False  # the present try is far too long for its text
        self._guard: Guard | None = None
        self.finish = "stop"  # why the present try has ended
        self.chunks: list[Chunk] = []  # of the present try, where they are kept

    def voiced(self, spec: ModelInfo) -> SpeechRequest:
        """Return the request of the present try, in the voices of the segments before. It may read
        their audio: for a thread where there are `tails`."""
        if self.tails:
            self.request = with_tail_reference(self.request, spec, self.tails)
            self.tails = ()
        return self.request

    def retry(self) -> bool:
        """Whether to generate it once more: its try has ended, ran on and was not the last. The
        next try has the next seed."""
        self.tries_left -= 1
        if not self.ran_on or self.tries_left < 1:
            return False
        self.request = replace(self.request, seed=next_seed(self.request.seed))
        return True

    def check(self, spec: ModelInfo, rule: GuardRule, chunk: Chunk, runaway: int | None) -> Chunk:
        """Return what the guard leaves of the next chunk of the present try. For the arguments see
        `Guard`."""
        if self._guard is None:
            request = self.request
            references = (request.reference, *request.more_references, request.prompt)
            self._guard = Guard(spec, [r for r in references if r is not None], rule)
        checked = self._guard.check(chunk, runaway)
        self.ran_on = self._guard.ran_on
        return checked

    def silence(self, rate: int, frames: np.ndarray) -> Chunk:
        """Return a silence at `rate` Hz in its place, as there is nothing in it to speak. frames:
        none, in the model's shape."""
        self.unspoken = True
        samples = np.zeros(round(UNSPOKEN_SECONDS * rate), np.float32)
        return Chunk(samples, frames, "stop")

    @property
    def empty(self) -> bool:
        """Whether the present try has ended by itself without a sample."""
        return not self.samples and self.finish == "stop"

    @property
    def audio(self) -> np.ndarray:
        """float32 samples [n] of the chunks that are kept."""
        return np.concatenate([NO_SAMPLES, *(chunk.samples for chunk in self.chunks)])


class Speaking:
    """The segments of one request on their way through an engine.

    requests: of each voice by its name in the segments, with None for the request's own. streaming:
    segments are spoken one by one, each chunk goes out at once and there is one try. Else as many
    run together as depend on no other, and the audio of a segment goes out once it and all before
    it have ended. tries: of each segment. speed: how much faster a client plays the samples than
    they are. growing: segments are added with `add` until `end`. fades: the last 5 ms of a segment
    are held back, to be faded where something follows or it is cut. guard: what happens to run-ons.
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
        guard: GuardRule = NOTES_ONLY,
    ) -> None:
        self.spec = spec
        self.guard = guard
        self.segments = list(segments)
        self.streaming = streaming
        self.growing = growing
        self.joined = JoinedAudio(spec.sample_rate, speed, alone=not fades)
        # Repeats the audio: of the try that was kept where there is one segment, else of the first
        # tries, since the others follow from it.
        self.seed = next(iter(requests.values())).seed
        self.unspoken: set[int] = set()  # indices of segments that were silences
        self._cast = Cast(spec, requests, growing or len(segments) > 1)
        if streaming or self._cast.carries:
            self.at_once = 1
        else:
            self.at_once = min(SIDE_BY_SIDE, len(segments))
        if streaming:
            self._tries = 1
        else:
            self._tries = tries
        self._given = self._running = 0  # segments
        self._again: deque[SpokenSegment] = deque()  # have run on
        self._open: deque[SpokenSegment] = deque()  # given and not yet joined, in their order
        self._before = NO_SAMPLES  # silence that the next audio of a stream brings
        self._live = False
        self._apart = False
        self._closed = False
        self._admitted = False
        self._cut = False  # the last segment that was joined broke off inside its sound
        self._places = 0  # in the engine's queue, of tries that have ended, for those that follow

    # -- what is to be submitted --

    def next(self) -> SpokenSegment | None:
        """The segment to submit now, perhaps once more. None: another has to end first, or none is
        left."""
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
        current = SpokenSegment(
            self._given, segment, request, self._cast.tails(segment), self._tries
        )
        self._given += 1
        self._open.append(current)
        if self.streaming:
            self._before = np.concatenate((self._before, self.joined.begin(segment)))
        return current

    def add(self, segment: Segment, live: bool = False, apart: bool = False) -> None:
        """Add a segment to a text that grows, once all before it have ended.

        live: more of its text comes while it is spoken. apart: its audio is a file of its own, with
        the pauses of the text and no other.
        """
        if self.segments and not apart:
            before = self.segments[-1]
            if before.turn != segment.turn and before.after is None:
                before = replace(before, after=PAUSES["turn"])
            self._before = self.joined.go_on(before, segment)
        self.segments.append(segment)
        self._live = live
        self._apart = apart

    def place(self, current: SpokenSegment) -> Place:
        """Take a place in the engine's queue for a try that is submitted now."""
        current.placed = True
        if self._places:
            place = Place.NEXT
        elif self._admitted:
            place = Place.ADMITTED
        else:
            place = Place.NEW
        self._places = max(0, self._places - 1)
        return place

    def admit(self) -> None:
        """Note that the engine has taken a segment of this request, or of the call it belongs to:
        none is refused now."""
        self._admitted = True

    # -- what has come of it --

    def silence(self) -> np.ndarray:
        """Take the silence before the next audio of a stream, to send it early."""
        before = self._before
        self._before = NO_SAMPLES
        return before

    def check(self, current: SpokenSegment, chunk: Chunk, runaway: int | None) -> Chunk:
        """Return the part of a segment's next chunk that is delivered. The try has ended if it has
        a `finish`.

        runaway: see `guard.runaway_frames`.
        """
        return current.check(self.spec, self.guard, chunk, runaway)

    def feed(self, current: SpokenSegment, chunk: Chunk) -> np.ndarray:
        """The next checked chunk of a segment -> the samples that may go out now, float32 [n]."""
        current.samples += len(chunk.samples)
        current.frames += len(chunk.frames)
        current.finish = chunk.finish or current.finish
        if not self.streaming or self._cast.carries_on(current.segment):
            current.chunks.append(chunk)
        if self.streaming:
            return np.concatenate((self.silence(), self.joined.feed(chunk.samples)))
        return NO_SAMPLES

    def again(self, current: SpokenSegment) -> bool:
        """Note the end of a try, which leaves its place in the engine's queue to the next. True: it
        ran on, its audio is dropped, and `next` returns the segment with another seed."""
        self._running -= 1
        self._places += current.placed
        current.placed = False
        if not current.retry():
            return False
        self._again.append(current)
        return True

    def ended(self, current: SpokenSegment, spans: Sequence[Span | None] = ()) -> np.ndarray:
        """Note the end of a segment, after `again` -> the samples that may go out now, float32 [n].
        spans: of its words."""
        current.spans = spans
        current.done = True
        if current.unspoken:
            self.unspoken.add(current.index)
        elif current.chunks and self._cast.carries_on(current.segment):
            self._cast.spoken(current.segment, current.audio)
        if self.growing:
            self.segments[current.index] = current.segment  # with the text that came later
        elif len(self.segments) == 1 and not current.ran_on:
            self.seed = current.request.seed
        self._closed = self._closed or current.finish == "cancelled"
        parts = [NO_SAMPLES]
        while self._open and self._open[0].done:
            parts.append(self._join(self._open.popleft()))
        return np.concatenate(parts)

    def _join(self, current: SpokenSegment) -> np.ndarray:
        """The rest of a segment's audio, with the pause behind it."""
        joined = self.joined
        segment = current.segment
        if self.streaming:
            parts = []
        else:
            parts = [joined.begin(segment), joined.feed(current.audio)]
        joined.note_end(segment, current.samples, current.finish, current.spans)
        self._cut = current.finish.startswith("guard")
        if self.growing and not self._apart:
            return np.concatenate(parts or [NO_SAMPLES])  # its last 5 ms wait for what follows
        last = self.growing or self._closed or current.index + 1 == len(self.segments)
        return np.concatenate((*parts, joined.close(segment, last, self._cut)))

    # -- its end --

    @property
    def finish(self) -> str | None:
        """How it ended: "stop", or as the last segment that did not end by itself. None: more
        follows."""
        complete = not self.growing and self._given == len(self.segments) and not self._open
        if self._closed or complete:
            return self.joined.ending
        return None

    def end(self, silence: float = 0.0) -> np.ndarray:
        """Note that nothing more is added to a text that grew -> its last samples, float32 [n].

        silence: seconds of pause behind the text's last segment, besides `Segment.after`.
        """
        growing = self.growing
        self.growing = False
        if not growing or self._apart or not self.segments:
            return NO_SAMPLES
        last = self.segments[-1]
        if silence:
            last = replace(last, after=(last.after or 0.0) + silence)
        return self.joined.close(last, True, self._cut)

    def close(self) -> None:
        """End the segments."""
        self._closed = True


def continues(spec: ModelInfo, request: SpeechRequest) -> bool:
    """Whether a later segment can take its voice from the one before, and needs to."""
    if request.voice is not None or request.speaker_embedding is not None:
        return False
    return spec.takes_prompt or (spec.takes_reference and request.reference is None)


class GeneratedSegment(NamedTuple):
    """A segment whose voice the next one takes: float32 samples [n] at the model's rate, and their
    text."""

    samples: np.ndarray
    text: str

    def fits(self, spec: ModelInfo) -> bool:
        """Whether its length and level make it a reference."""
        shortest, longest = spec.reference_seconds
        peak = np.abs(self.samples).max(initial=0.0)
        in_range = shortest * spec.sample_rate <= len(self.samples) <= longest * spec.sample_rate
        return in_range and bool(REFERENCE_PEAK <= peak < np.inf)


class Cast:
    """The voices of one request, and what has been spoken in each so far.

    requests: of each voice by its name in the segments, with None for the request's own. several:
    there is more than one segment, or may be.
    """

    def __init__(
        self, spec: ModelInfo, requests: Mapping[str | None, SpeechRequest], several: bool
    ) -> None:
        self._spec = spec
        self._requests = requests
        self._carried = {
            voice for voice, request in requests.items() if several and continues(spec, request)
        }
        self._latest: dict[str | None, dict[str, GeneratedSegment]] = {
            voice: {} for voice in requests
        }  # by speaker
        self._begun: set[str | None] = set()

    @property
    def carries(self) -> bool:
        """Whether a segment may need one before it."""
        return bool(self._carried)

    def carries_on(self, segment: Segment) -> bool:
        """Whether later segments may take their voice from this one."""
        return segment.voice in self._carried

    def request(self, segment: Segment) -> SpeechRequest:
        """The request for a segment, without the audio that it takes its voice from. A text that is
        one segment keeps the spaces around it."""
        request = self._requests[segment.voice]
        continued = self.carries_on(segment) and segment.voice in self._begun
        if continued and not self._spec.marks.lead_continues:
            text = segment.transcript
        else:
            text = segment.spoken
        if request.text.strip() != text:
            request = replace(request, text=text)
        if continued:  # the audio has the voice
            return replace(request, instructions=None)
        return request

    def tails(self, segment: Segment) -> tuple[GeneratedSegment, ...]:
        """The segments that it takes its voice from: the latest of each of its speakers, or of all.
        None at first."""
        latest = self._latest[segment.voice]
        last_speakers = speakers(segment.transcript, self._spec.marks)
        voices = [latest[speaker] for speaker in latest if speaker in last_speakers] or list(
            latest.values()
        )[-1:]
        tails = list({id(one): one for one in voices}.values())
        if segment.spaced and self._spec.takes_prompt:  # its text and that behind it are one string
            tails = [one._replace(text=f"{one.text} ") for one in tails]
        return tuple(tails[-self._spec.max_references :])

    def spoken(self, segment: Segment, samples: np.ndarray) -> None:
        """Note a segment that has been spoken and that `carries_on`: float32 samples [n] at the
        model's rate."""
        self._begun.add(segment.voice)
        generated = GeneratedSegment(samples, segment.transcript)
        latest = self._latest[segment.voice]
        if generated.fits(self._spec):
            for speaker in speakers(segment.transcript, self._spec.marks) or [""]:
                latest.pop(speaker, None)
                latest[speaker] = generated


def with_tail_reference(
    request: SpeechRequest, spec: ModelInfo, tails: tuple[GeneratedSegment, ...]
) -> SpeechRequest:
    """The request with segments generated before as its prompt or its references."""
    references = [
        ReferenceAudio(Recording(t.samples, spec.sample_rate, cacheable=False), t.text)
        for t in tails
    ]
    if spec.takes_prompt:
        return replace(request, prompt=references[-1])
    return replace(request, reference=references[0], more_references=tuple(references[1:]))


class JoinedAudio:
    """Joins the segments of one request in their order, and counts its output.

    For each segment call `begin`, `feed` with its samples, `note_end` and `close`. rate: Hz of the
    samples. speed: how much faster a client plays them than they are. alone: there is one segment,
    of which nothing is kept back.
    """

    def __init__(self, rate: int, speed: float = 1.0, alone: bool = False) -> None:
        self.rate = rate
        self.speed = speed
        self.samples = 0  # given out so far, pauses included
        self.timings: list[SegmentTiming] = []
        self.ending = "stop"  # of the last segment that did not end by itself
        self._joiner = SegmentJoiner(rate, 0.0 if alone else FADE_SECONDS)
        self._start = 0

    @property
    def duration(self) -> float:
        """Seconds of audio so far, as a client plays them."""
        return self.samples / self.rate / self.speed

    @property
    def segment_start(self) -> float:
        """Seconds at which the latest segment's sound begins, behind the silence before it."""
        return self._start / self.rate / self.speed

    def begin(self, segment: Segment) -> np.ndarray:
        """A segment begins, with the silence of its text."""
        silence = self._out(np.zeros(round(segment.before * self.rate * self.speed), np.float32))
        self._start = self.samples + len(self._joiner.held)
        return silence

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 samples [n] of the segment -> what may go out now. The last 5 ms are kept."""
        return self._out(self._joiner.feed(samples))

    def note_end(
        self, segment: Segment, samples: int, finish: str, spans: Sequence[Span | None] = ()
    ) -> None:
        """Note the times of a segment of `samples` samples, and how it ended. spans: of its
        words."""
        if finish != "stop":
            self.ending = finish
        begin, end = (at / self.rate / self.speed for at in (self._start, self._start + samples))
        s = segment
        if spans:
            words = timed(segment.words, spans, begin, end, self.speed)
        else:
            words = ()
        at = len(self.timings)
        self.timings.append(
            SegmentTiming(at, shown(s.text), begin, end, s.start, s.end, words, s.voice, s.turn)
        )

    def close(self, segment: Segment, last: bool, cut: bool = False) -> np.ndarray:
        """The end of the segment, and the pause behind it. The last has one if its text has a pause
        there.

        cut: it broke off inside its sound.
        """
        if last:
            usual = 0.0
        else:
            usual = PAUSES[segment.ending]
        if segment.after is None:
            pause = usual
        else:
            pause = segment.after * self.speed
        return self._out(
            self._joiner.end_segment(pause, fade=not last or cut or segment.after is not None)
        )

    def go_on(self, before: Segment, following: Segment) -> np.ndarray:
        """Return the faded end of a segment that was not closed, and the pause before the next,
        besides what that begins with."""
        if before.after is not None:
            pause = before.after * self.speed
        elif following.before:
            pause = 0.0
        else:
            pause = PAUSES[before.ending_before(following)]
        return self._out(self._joiner.end_segment(pause, fade=True))

    def _out(self, samples: np.ndarray) -> np.ndarray:
        self.samples += len(samples)
        return samples


class SegmentJoiner:
    """Joins segments end to end without clicks: the first and last 5 ms of each are faded.

    Only the length of a fade is held back while a segment runs, so streaming loses 5 ms.
    """

    def __init__(self, rate: int, fade_seconds: float = FADE_SECONDS) -> None:
        self.rate = rate
        self.length = round(fade_seconds * rate)
        self.held = np.zeros(0, np.float32)
        self.fade_in = False  # the very first samples stay as they are

    @cached_property
    def ramp(self) -> np.ndarray:
        """Gains of a fade: float32 [length]. Speech of one segment needs none."""
        return np.linspace(0, 1, self.length, dtype=np.float32)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        joined = np.concatenate((self.held, samples))
        if self.fade_in and len(joined) >= 2 * self.length:
            joined[: self.length] *= self.ramp
            self.fade_in = False
        elif self.fade_in:
            self.held = joined
            return joined[:0]
        cut = max(0, len(joined) - self.length)
        self.held = joined[cut:]
        return joined[:cut]

    def end_segment(self, pause: float, fade: bool) -> np.ndarray:
        """The end of a segment, faded if another follows or if it was cut, and `pause` seconds of
        silence."""
        tail = self.held
        self.held = tail[:0]
        if fade and len(tail):
            tail = tail * np.linspace(1, 0, len(tail), dtype=np.float32)
        self.fade_in = fade
        return np.concatenate((tail, np.zeros(round(pause * self.rate), np.float32)))
