"""Driver of `Speaking` for a plan of the server: its segments go to the model's engine process,
guarded and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stentor.engine.stream import Chunk
from stentor.server.engines.client import EngineStream, Facts
from stentor.server.engines.pool import EnginePool
from stentor.server.limits import LIMITS
from stentor.server.speech.outcomes import Timing, Usage
from stentor.speech.guard import NOTES_ONLY, GuardRule
from stentor.speech.live_text import TextTail
from stentor.speech.speaking import Speaking, SpokenSegment
from stentor.speech.timing import SegmentTiming, WordTiming
from stentor.speech.words import Span, WordClock, timed

if TYPE_CHECKING:
    from stentor.server.speech.plan import SpeechPlan
    from stentor.text.sentences import Segment


SILENT_SECONDS = LIMITS.silent_seconds  # after which a segment is taken to have ended


class SpeechRun:
    """One plan while it runs. Call `audio()` once. The other fields may be read at any time."""

    def __init__(self, plan: SpeechPlan, timing: Timing, traced: bool = False) -> None:
        self.plan = plan
        self.timing = timing
        self.traced = traced
        self.spec = plan.host.spec
        self.usage = Usage()
        self.finish: str | None = None
        self.guarded: list[str] = []  # actions of the guard: "cut", "retried"
        # of the last segment, if they are streamed: the next ones stay on its engine
        self.stream: EngineStream | None = None
        if plan.guard:
            guard = GuardRule(cuts=True, silent_seconds=SILENT_SECONDS)
            tries = 1 + plan.host.config.guard_retries
        else:
            guard = NOTES_ONLY
            tries = 1
        self.speaking = Speaking(
            self.spec,
            plan.requests,
            plan.segments,
            plan.streaming,
            tries,
            plan.output.speed,
            growing=not plan.segments,
            guard=guard,
        )

    @property
    def seed(self) -> int:
        """The seed that repeats it."""
        return self.speaking.seed

    @property
    def duration(self) -> float:
        """Seconds of audio so far, as a client plays them."""
        return self.speaking.joined.duration

    @property
    def timings(self) -> list[SegmentTiming]:
        """When the segments that have ended are spoken."""
        return self.speaking.joined.timings

    @property
    def unspoken(self) -> list[SegmentTiming]:
        """Segments that cannot be spoken, with the times of the silence in their place."""
        return [t for t in self.timings if t.index in self.speaking.unspoken]

    async def audio(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples [n] at the model's rate, as they are generated. Closing it cancels what
        is running."""
        if self.plan.streaming and len(self.plan.segments) > 1:
            await self._name_unspeakable()  # in the headers, which the first audio takes with it
        if self.speaking.at_once == 1:
            blocks = self._one_by_one()
        else:
            blocks = self._side_by_side()
        async with aclosing(blocks):
            async for samples in blocks:
                if len(samples):
                    yield samples
        self.end()

    async def _name_unspeakable(self) -> None:
        """Note what cannot be spoken before the first is."""
        segments = self.plan.segments
        async with self.plan.host.in_use() as engines:
            speakable = await engines.speakable([s.spoken for s in segments])
        for segment, can in zip(segments, speakable, strict=True):
            for text in segment.unread if can else [segment.spoken]:
                self.plan.ignored.piece(text)

    def end(self, silence: float = 0.0) -> np.ndarray:
        """Note that all segments have been spoken. For the rest see `Speaking.end`."""
        rest = self.speaking.end(silence)
        self.finish = self.speaking.finish
        self.timing.ended = time.monotonic()
        return rest

    def next(self, tail: TextTail | None = None) -> SegmentRun | None:
        """The next try of a segment, from `Speaking.next`. tail: its text that is yet to
        come."""
        current = self.speaking.next()
        if current is None:
            return None
        return SegmentRun(self, current, tail)

    async def _one_by_one(self) -> AsyncGenerator[np.ndarray, None]:
        while (current := self.next()) is not None:
            async with aclosing(current.audio()) as blocks:
                async for samples in blocks:
                    yield samples

    async def _side_by_side(self) -> AsyncGenerator[np.ndarray, None]:
        pieces: list[np.ndarray] = []

        async def worker() -> None:
            async with aclosing(self._one_by_one()) as blocks:
                async for samples in blocks:
                    pieces.append(samples)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.speaking.at_once):
                    group.create_task(worker())
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        for samples in pieces:
            yield samples


class SegmentRun:
    """One try of a segment in the engine. The model is in use meanwhile, and only then: a session
    that waits for text does not keep it in memory."""

    def __init__(
        self, run: SpeechRun, current: SpokenSegment, tail: TextTail | None = None
    ) -> None:
        self.run = run
        self.current = current
        self.tail = tail
        self._clock: ThreadedClock | None = None
        self._facts = Facts(0, 0, None, ())

    async def words_so_far(self, begin: float) -> tuple[WordTiming, ...]:
        """Its words with their times, as far as it is spoken, where its audio begins at `begin`
        seconds."""
        speed = self.run.plan.output.speed
        end = begin + self.current.samples / self.run.spec.sample_rate / speed
        spans = await self._spans()
        if spans:
            return timed(self.current.segment.words, spans, begin, end, speed)
        return ()

    async def audio(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples [n] of the response, as this try makes them known, and at its end those
        that follow it."""
        run = self.run
        current = self.current
        speaking = run.speaking
        for piece in current.segment.unread:
            run.plan.ignored.piece(piece)
        # silence before the first audio waits: the request may still be refused
        if run.timing.first is not None:
            yield speaking.silence()
        async with run.plan.host.in_use() as engines, aclosing(self._chunks(engines)) as chunks:
            async for chunk in chunks:
                yield speaking.feed(current, chunk)
        if speaking.again(current):
            run.guarded.append("retried")
            self._discard()
        else:
            if current.finish.startswith("guard"):
                run.guarded.append("cut")
            if current.empty:  # the model ended in its first draw
                run.plan.ignored.piece(current.segment.spoken)
            yield speaking.ended(current, await self._spans())

    async def _spans(self) -> list[Span | None]:
        """When its words were spoken, by its own audio. EngineError if an aligner failed."""
        if self._clock is None:
            return []
        return await self._clock.spans(self.current.segment)

    def _discard(self) -> None:
        """Take back what was counted for it."""
        usage = self.run.usage
        facts = self._facts
        usage.frames -= self.current.frames
        usage.input_tokens -= facts.tokens
        usage.audio_tokens -= facts.audio_tokens

    async def _chunks(self, engines: EnginePool) -> AsyncGenerator[Chunk, None]:
        """Its audio, up to where the guard cuts it, or a silence where there is nothing to
        speak."""
        run = self.run
        plan = run.plan
        timing = run.timing
        current = self.current
        if current.tails:
            voiced = partial(current.voiced, run.spec)
            request = await asyncio.get_running_loop().run_in_executor(plan.host.references, voiced)
        else:
            request = current.voiced(run.spec)
        place = run.speaking.place(current)
        traced = run.traced and not timing.engine
        stream = engines.submit(
            request, plan.streaming, place, request_id=plan.id, traced=traced, near=run.stream
        )
        if plan.streaming:
            run.stream = stream
        if self.tail is None:
            writing = None
        else:
            writing = asyncio.create_task(self.tail.give(stream.append, current))
        try:
            facts = await stream.accepted()
            if facts is None:
                yield self._silence()
                return
            self._note_accepted(facts)
            async for chunk in stream:
                if timing.first is None and len(chunk.samples):
                    timing.first = time.monotonic()
                    if traced:
                        timing.engine = (stream.sent, *stream.moments)
                    else:
                        timing.engine = ()
                self._note_facts(stream.facts or facts)
                checked = run.speaking.check(current, chunk, self._facts.runaway_frames)
                if self._clock is not None:
                    self._clock.add(checked)
                run.usage.frames += len(checked.frames)
                yield checked
                if checked.finish is not None:
                    return
        finally:
            stream.cancel()
            if writing is not None:
                writing.cancel()
            if self.tail is not None:
                self.tail.close()

    def _silence(self) -> Chunk:
        run = self.run
        run.plan.ignored.piece(self.current.segment.spoken)
        run.timing.first = run.timing.first or time.monotonic()
        return self.current.silence(run.spec.sample_rate, np.zeros((0, 0), np.float32))

    def _note_accepted(self, facts: Facts) -> None:
        """The engine has taken the segment."""
        run = self.run
        run.speaking.admit()
        run.timing.submitted = run.timing.submitted or time.monotonic()
        run.usage.audio_tokens += facts.audio_tokens
        self._facts = replace(facts, tokens=0)
        self._note_facts(facts)
        if run.plan.words:
            self._clock = ThreadedClock(
                run.plan.host.clocks, partial(self._word_clock, facts.words)
            )

    def _word_clock(self, words: Sequence[range]) -> WordClock:
        aligners = self.run.plan.host.aligners
        language = self.current.request.language
        return WordClock(self.run.spec, words, aligners, language, self.current.segment.text)

    def _note_facts(self, facts: Facts) -> None:
        """Count the tokens of text that has come since."""
        self.run.usage.input_tokens += facts.tokens - self._facts.tokens
        self._facts = facts


class ThreadedClock:
    """A WordClock in the one thread of `pool`, which runs its calls in order: alignment must not
    block the event loop."""

    def __init__(self, pool: ThreadPoolExecutor, make: Callable[[], WordClock]) -> None:
        """make: makes the clock, in the thread."""
        self._pool = pool
        self._clock = pool.submit(make)
        self._added: list[Future[None]] = []

    def add(self, chunk: Chunk) -> None:
        """Have the next chunk of the segment added."""
        self._added.append(self._pool.submit(lambda: self._clock.result().add(chunk)))

    async def spans(self, segment: Segment) -> list[Span | None]:
        """When each word of the segment is spoken in what was added. EngineError if an aligner
        failed."""

        def found() -> list[Span | None]:
            for added in self._added:
                added.result()  # raises what it raised
            return self._clock.result().spans(segment)

        return await asyncio.get_running_loop().run_in_executor(self._pool, found)
