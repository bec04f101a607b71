"""Driver of `Speaking` for the engine of this process: texts whole (`speak`), from threads and
asyncio, and a stream for threads. `awaited` has the streams of asyncio."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stentor.engine.stream import AudioStream, Chunk
from stentor.errors import Overloaded, StentorError, request_failed
from stentor.output.encode import serial_number
from stentor.output.render import AS_IT_IS, Output, Rendering
from stentor.speech.guard import runaway_frames
from stentor.speech.result import Speech
from stentor.speech.speaking import Speaking, SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.speech.words import Span, WordClock
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.align.aligner import Aligners
    from stentor.engine.engine import Engine
    from stentor.models.base import Prompt
    from stentor.models.info import SpeechRequest

log = logging.getLogger("stentor.speech")


class SpokenText:
    """One text of a call: its segments become prompts, streams of the engine and `Speech`.

    prompt: makes a request's prompt. speakable: whether the model can speak a text. aligners: the
    times of words are wanted, and these find them where the model does not. output: what is made of
    the samples. For the others see `Speaking`. It is made with its first prompt, which raises for
    an invalid request. Nothing is queued.
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
        self.spec = spec = engine.model.spec
        fades = growing or len(segments) > 1 or segments[0].after is not None
        self.speaking = Speaking(
            spec, requests, segments, streaming, tries, output.speed, growing, fades
        )
        self.error: StentorError | None = None  # why it has no speech
        self._engine = engine
        self._prompt = prompt
        self._speakable = speakable
        self._aligners = aligners
        self._request = next(iter(requests.values()))
        self._output = output
        text = " ".join(segment.text for segment in segments)
        serial = serial_number(self._request.seed, text)
        self._rendering = Rendering(output, spec.sample_rate, whole=not streaming, serial=serial)
        self._ignored: list[
            str
        ] = []  # pieces of its text that the model cannot speak, and nobody was told of
        self._prepared: SpokenSegment | None = None  # its prompt is made, and it is not queued
        self._prompts: dict[SpokenSegment, Prompt] = {}  # of segments that have not ended
        self._streams: dict[SpokenSegment, AudioStream] = {}  # of tries that have not ended
        self._clocks: dict[SpokenSegment, WordClock] = {}  # of tries that have not ended
        self._parts: list[np.ndarray] = []  # joined so far, of a text that is not streamed
        self._spoken: list[SpokenSegment] = []  # its segments that have ended
        self.prepare()

    @property
    def prepared(self) -> bool:
        """Whether `start` has no prompt to make."""
        return self._prepared is not None

    def prepare(self) -> None:
        """Make the prompt of the next segment, if it is not made yet. It may wait for the encoding
        of a recording."""
        if self._prepared is None and (current := self.speaking.next()) is not None:
            if current not in self._prompts:
                self._make_prompt(current)
            self._prepared = current

    def _make_prompt(self, current: SpokenSegment) -> None:
        segment = current.segment
        if not self._speakable(segment.spoken):
            log.warning("cannot speak %r: silence instead", segment.spoken)
            self._ignored.append(segment.text)
            current.unspoken = True
            return
        if segment.unread:
            log.warning("cannot speak %s: left out", ", ".join(map(repr, segment.unread)))
            self._ignored += segment.unread
        prompt = self._prompt(current.voiced(self.spec))
        self._engine.fit(prompt)
        self._prompts[current] = prompt

    def start(self) -> SpokenSegment | None:
        """Queue the next segment. None: see `Speaking.next`. Overloaded if it is the first and the
        queue is full."""
        self.prepare()
        current = self._prepared
        speaking = self.speaking
        if current is None:
            return None
        if not current.unspoken:
            prompt = self._prompts[current]
            place = speaking.place(current)
            self._streams[current] = self._engine.submit(
                prompt, current.request.seed, speaking.streaming, place
            )
            speaking.admit()
        clock = self._word_clock(current)
        if clock is not None:
            self._clocks[current] = clock
        self._prepared = None
        return current

    def chunks(self, current: SpokenSegment) -> Iterator[Chunk]:
        """The audio of a segment that was started, as it comes."""
        if current.unspoken:
            return iter([self._silence(current)])
        return iter(self._streams[current])

    async def achunks(self, current: SpokenSegment) -> AsyncIterator[Chunk]:
        """Its audio, for asyncio."""
        if current.unspoken:
            yield self._silence(current)
            return
        async for chunk in self._streams[current]:
            yield chunk

    def stream(self, current: SpokenSegment) -> AudioStream | None:
        """The engine's stream of a segment that was started. None: it is a silence."""
        return self._streams.get(current)

    def take(self, current: SpokenSegment, chunk: Chunk) -> Speech:
        """The speech of the next chunk of a stream."""
        ended = len(self.speaking.joined.timings)
        samples = self._feed(current, chunk)
        return self._speech(samples, chunk.frames, self.speaking.joined.timings[ended:])

    def keep(self, current: SpokenSegment, chunk: Chunk) -> None:
        """Keep the next chunk of a segment of a text that is not streamed, for its `outcome`."""
        self._parts.append(self._feed(current, chunk))

    def _feed(self, current: SpokenSegment, chunk: Chunk) -> np.ndarray:
        """The next chunk of a segment -> the samples that may go out now."""
        if not current.unspoken:
            chunk = self.speaking.check(current, chunk, runaway_frames(self._prompts[current]))
        samples = self.speaking.feed(current, chunk)
        if current in self._clocks:
            self._clocks[current].add(chunk)
        if chunk.finish is None:
            return samples
        clock = self._clocks.pop(current, None)
        if not current.unspoken:
            self._streams.pop(current).cancel()
        if self.speaking.again(current):
            self.prepare()  # its prompt is made
            return samples
        self._prompts.pop(current, None)
        if current.empty:
            log.warning("the model ended %r before its first sound", current.segment.text)
            self._ignored.append(current.segment.text)
        if not self.speaking.streaming:
            self._spoken.append(current)
        spans: Sequence[Span | None] = ()
        if clock is not None:
            spans = clock.spans(current.segment)
        return np.concatenate((samples, self.speaking.ended(current, spans)))

    def finish(self, silence: float) -> Speech:
        """Return the end of a text that grew, with its seconds of silence there."""
        samples = self.speaking.end(silence)
        return self._speech(samples, np.zeros((0, *self.spec.frame.shape), np.float32), ())

    def outcome(self) -> Speech | StentorError:
        """All of a text that is not streamed and has ended, or why it has no speech."""
        try:
            return self.error or self._whole()
        except Exception as e:
            return self.fail(e)

    def _whole(self) -> Speech:
        spoken = sorted(self._spoken, key=lambda current: current.index)
        frames = [chunk.frames for current in spoken for chunk in current.chunks]
        joined = np.concatenate([f for f in frames if len(f)] or frames[:1])
        return self._speech(np.concatenate(self._parts), joined, self.speaking.joined.timings)

    def fail(self, error: Exception) -> StentorError:
        """End it with an error. What stentor did not raise on purpose, such as no memory to encode
        audio, is its cause."""
        if isinstance(error, StentorError):
            self.error = error
        else:
            self.error = request_failed(error)
        self.cancel()
        return self.error

    def cancel(self) -> None:
        """Cancel what is running, and begin no more."""
        self.speaking.close()
        for stream in self._streams.values():
            stream.cancel()

    def _silence(self, current: SpokenSegment) -> Chunk:
        """A silence in place of a segment that cannot be spoken."""
        frames = np.zeros((0, *self.spec.frame.shape), np.float32)
        return current.silence(self.spec.sample_rate, frames)

    def _word_clock(self, current: SpokenSegment) -> WordClock | None:
        if self._aligners is None:
            return None
        words: Sequence[range] = ()
        if current in self._prompts:
            words = self._prompts[current].words
        language = self._request.language
        return WordClock(self.spec, words, self._aligners, language, current.segment.text)

    def _speech(
        self, samples: np.ndarray, frames: np.ndarray, timings: Sequence[SegmentTiming]
    ) -> Speech:
        finish = self.speaking.finish
        ignored = tuple(self._ignored)
        rate = self.spec.sample_rate
        self._ignored.clear()
        if finish is not None:
            self._warn_if_cut(finish)
        samples, data = self._rendering.feed(samples, last=finish is not None)
        line = self._output.marks.comment
        return Speech(
            samples, rate, frames, finish, self.speaking.seed, tuple(timings), ignored, data, line
        )

    def _warn_if_cut(self, finish: str) -> None:
        """Log that a default limit has cut the speech."""
        option = self.spec.options.get("max_frames")
        if option is None:
            usual = None
        else:
            usual = option.default
        if finish == "length" and self._request.options.get("max_frames") == usual:
            log.warning("max_frames cut the speech before the end of its text")


class Waiting(Protocol):
    """How `speak` waits: in its caller's thread, or in an event loop."""

    async def prepare(self, text: SpokenText) -> None:
        """Make the prompt of a text's next segment."""
        ...

    async def read(self, text: SpokenText, current: SpokenSegment) -> None:
        """Keep all audio of a segment that was started."""
        ...


class ThreadWaiting:
    """Waits in the caller's thread."""

    async def prepare(self, text: SpokenText) -> None:
        text.prepare()

    async def read(self, text: SpokenText, current: SpokenSegment) -> None:
        for chunk in text.chunks(current):
            text.keep(current, chunk)


def speak_in_thread(texts: Sequence[SpokenText]) -> list[Speech | StentorError]:
    """Return what `speak` does, without an event loop."""
    try:
        speak(texts, ThreadWaiting()).send(None)
    except StopIteration as end:
        results: list[Speech | StentorError] = end.value
        return results
    raise AssertionError("ThreadWaiting suspends nothing")


Running = deque[tuple[SpokenText, SpokenSegment]]


async def speak(texts: Sequence[SpokenText], waiting: Waiting) -> list[Speech | StentorError]:
    """Speak all of them together, and return the speech of each, or its error. While the queue is
    full, what is running ends before another text begins.

    Overloaded if others fill the queue before the first one.
    """
    running: Running = deque()
    try:
        for text in texts:
            await _begin(text, running, waiting, first=text is texts[0])
        while running:
            await _end_oldest(running, waiting)
    except BaseException:
        for text in texts:
            text.cancel()
        raise
    return [text.outcome() for text in texts]


async def _begin(text: SpokenText, running: Running, waiting: Waiting, first: bool) -> None:
    """Queue the first segments of a text. While there is no room, have what runs end. If nothing
    runs, others fill the queue: they stand before it, and it is not refused once another of its
    call was taken."""
    while text.error is None:
        try:
            await waiting.prepare(text)
            current = text.start()
        except Overloaded:
            if first:
                raise
            if running:
                await _end_oldest(running, waiting)
            else:
                text.speaking.admit()
        except Exception as e:
            text.fail(e)
        else:
            if current is None:
                return
            running.append((text, current))


async def _end_oldest(running: Running, waiting: Waiting) -> None:
    """Wait for the oldest segment. Its next try, or the next segment of its text, takes its
    place."""
    text, current = running.popleft()
    if text.error is not None:
        return
    try:
        await waiting.read(text, current)
        await waiting.prepare(text)
        following = text.start()
    except Exception as e:
        text.fail(e)
        return
    if following is not None:
        running.append((text, following))


class SpeechStream(Iterator[Speech]):
    """The audio of a text as it is generated, one segment after another. Closing it cancels the
    rest, and so does dropping it, which drops the engine's stream."""

    def __init__(self, text: SpokenText) -> None:
        self._text = text
        self._current = text.start()
        self._chunks: Iterator[Chunk] | None = None  # of the present segment

    def __next__(self) -> Speech:
        self._current = current = self._current or self._text.start()
        if current is None:
            raise StopIteration
        self._chunks = self._chunks or self._text.chunks(current)
        chunk = next(self._chunks)
        if chunk.finish is not None:
            self._current = self._chunks = None
        return self._text.take(current, chunk)

    def close(self) -> None:
        """Cancel the rest."""
        self._text.cancel()
