"""Running a plan: its segments go through the engine one after another or side by side, and are joined and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stentor.models.info import SpeechRequest
from stentor.retry import Tries
from stentor.server.engines.client import EngineClient, EngineStream, Facts
from stentor.server.speech.clock import ThreadedClock
from stentor.server.speech.guard import Guard
from stentor.server.speech.outcomes import Timing, Usage
from stentor.speech.joiner import JoinedAudio, unspoken
from stentor.speech.live_text import TextTail, extended
from stentor.speech.pieces import (
    SIDE_BY_SIDE,
    Cast,
    GeneratedSegment,
    PieceQueue,
    with_tail_reference,
)
from stentor.speech.timing import SegmentTiming, WordTiming
from stentor.speech.words import Span, WordClock, timed
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.server.speech.plan import SpeechPlan


class SpeechRun:
    """One plan while it runs. Call `audio()` once. The other fields may be read at any time."""

    def __init__(self, plan: SpeechPlan, timing: Timing, traced: bool = False) -> None:
        self.plan, self.timing, self.traced = plan, timing, traced
        self.spec = plan.host.spec
        self.seed = plan.seed
        self.usage = Usage()
        self.finish: str | None = None
        self.guarded: list[str] = []  # actions of the guard: "cut", "retried"
        self.unspoken: list[SegmentTiming] = []  # segments that cannot be spoken, with the silence in their place
        self.joined = JoinedAudio(self.spec.sample_rate, plan.output.speed)
        self.queue = PieceQueue()
        self._cast = Cast(self.spec, {None: plan.request, **plan.cast}, plan.continues)

    @property
    def duration(self) -> float:
        """Seconds of audio so far, as a client plays them."""
        return self.joined.duration

    @property
    def timings(self) -> list[SegmentTiming]:
        """When the segments that have ended are spoken."""
        return self.joined.timings

    async def audio(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples [n] at the model's rate, as they are generated. Closing it cancels what is running."""
        if self.plan.streaming and len(self.plan.segments) > 1:
            await self._name_unspeakable()  # in the headers, which the first audio takes with it
        side_by_side = len(self.plan.segments) > 1 and not self.plan.streaming and not self.plan.continues
        blocks = self._side_by_side() if side_by_side else self._one_by_one()
        async with aclosing(blocks):
            async for samples in blocks:
                if len(samples):
                    yield samples
        self.end()

    async def _name_unspeakable(self) -> None:
        """Note what cannot be spoken before the first is."""
        segments = self.plan.segments
        async with self.plan.host.in_use() as client:
            speakable = await client.speakable([s.spoken for s in segments])
        for segment, can in zip(segments, speakable, strict=True):
            for text in segment.unread if can else [segment.spoken]:
                self.plan.ignored.piece(text)

    def end(self) -> None:
        """All segments have been spoken."""
        self.finish = self.joined.ending
        self.timing.done = time.monotonic()

    def next_segment(self, segment: Segment, tail: TextTail | None = None) -> SegmentRun:
        """Prepare a segment, in the voice of the one before if the plan says so. tail: its text that is yet to come."""
        for piece in segment.unread:
            self.plan.ignored.piece(piece)
        return SegmentRun(self, segment, self._cast.request(segment), self._cast.tails(segment), tail)

    async def segment_audio(self, current: SegmentRun) -> AsyncGenerator[np.ndarray, None]:
        """Run one segment and note its times at its end. Its last samples are kept."""
        before = self.joined.begin(current.segment)
        if self.timing.first is not None:  # silence before the first audio waits: the request may still be refused
            yield before
            before = before[:0]
        generated = []
        async with aclosing(current.stream()) as blocks:
            async for samples in blocks:
                generated.append(samples)
                yield np.concatenate((before, self.joined.feed(samples)))
                before = before[:0]
        await self.note_end(current)
        if self._cast.carries_on(current.segment) and generated and not current.unspoken:
            self._cast.spoken(current.segment, np.concatenate(generated))

    async def note_end(self, current: SegmentRun) -> None:
        """Note a segment's times, and whether it was spoken."""
        self.joined.note_end(current.segment, current.samples, current.finish, await current.word_spans())
        if current.unspoken:
            self.unspoken.append(self.timings[-1])

    async def _one_by_one(self) -> AsyncGenerator[np.ndarray, None]:
        for i, segment in enumerate(self.plan.segments):
            current = self.next_segment(segment)
            async with aclosing(self.segment_audio(current)) as blocks:
                async for samples in blocks:
                    yield samples
            yield self._close(i, current)

    async def _side_by_side(self) -> AsyncGenerator[np.ndarray, None]:
        slots = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(segment: Segment) -> tuple[SegmentRun, list[np.ndarray]]:
            async with slots:
                current = SegmentRun(self, segment, self._cast.request(segment))
                async with aclosing(current.stream()) as blocks:
                    return current, [b async for b in blocks]

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(s)) for s in self.plan.segments]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        for i, task in enumerate(tasks):
            current, blocks = task.result()
            yield self.joined.begin(current.segment)
            for samples in blocks:
                yield self.joined.feed(samples)
            await self.note_end(current)
            yield self._close(i, current)

    def _close(self, i: int, current: SegmentRun) -> np.ndarray:
        last = i + 1 == len(self.plan.segments)
        return self.joined.close(current.segment, last, cut=current.finish.startswith("guard"))


class SegmentRun:
    """One segment in the engine. A segment of a whole (not streamed) response that runs on is tried again with the
    next seed."""

    def __init__(
        self,
        run: SpeechRun,
        segment: Segment,
        request: SpeechRequest,
        tails: tuple[GeneratedSegment, ...] = (),
        tail: TextTail | None = None,
    ) -> None:
        """request: of the segment. tails: the segments whose voices it takes, if any were fit."""
        self.run, self.segment, self.request, self.tails, self.tail = run, segment, request, tails, tail
        self.finish = "stop"
        self.unspoken = False  # there is nothing in it to speak: it is a silence
        self.samples = self.frames = 0
        self._clock: ThreadedClock | None = None
        self._facts = Facts(0, 0, None, ())

    async def word_spans(self) -> list[Span | None]:
        """When its words were spoken, by its own audio. EngineError if an aligner failed."""
        return [] if self._clock is None else await self._clock.spans(self.segment)

    async def words_so_far(self, begin: float) -> tuple[WordTiming, ...]:
        """Its words with their times, as far as it is spoken, where its audio begins at `begin` seconds."""
        speed = self.run.plan.output.speed
        end = begin + self.samples / self.run.spec.sample_rate / speed
        spans = await self.word_spans()
        return timed(self.segment.words, spans, begin, end, speed) if spans else ()

    async def stream(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples [n] as they are generated. Where a retry is possible, all come at the end.

        The model is in use meanwhile, and only then: a session that waits for text does not keep it in memory.
        """
        async with self.run.plan.host.in_use() as client:
            request = await self._request()
            if self.run.plan.streaming:
                async with aclosing(self._once(client, request, self.run.plan.seed)) as blocks:
                    async for samples in blocks:
                        yield samples
            else:
                for samples in await self._retried(client, request):
                    yield samples

    def _silence(self) -> np.ndarray:
        """Samples in place of a text in which there is nothing to speak."""
        run = self.run
        self.unspoken = True
        run.plan.ignored.piece(self.segment.spoken)
        run.timing.first = run.timing.first or time.monotonic()
        silence = unspoken(run.spec.sample_rate)
        self.samples = len(silence)
        return silence

    async def _retried(self, client: EngineClient, request: SpeechRequest) -> list[np.ndarray]:
        """The samples of the first try that does not run on, or of the last one."""
        plan = self.run.plan
        tries = Tries(plan.seed, 1 if plan.seed_given or not plan.guard else 1 + plan.host.config.guard_retries)
        while True:
            async with aclosing(self._once(client, request, tries.seed)) as blocks:
                generated = [b async for b in blocks]
            if not tries.again(self.finish == "guard_length"):
                break
            self._discard()
        if len(plan.segments) == 1:
            self.run.seed = tries.seed
        return generated

    def _discard(self) -> None:
        """Drop the result of the last try."""
        usage, facts = self.run.usage, self._facts
        self.run.guarded[-1] = "retried"
        usage.frames -= self.frames
        usage.input_tokens -= facts.tokens
        usage.audio_tokens -= facts.audio_tokens
        self.samples, self.frames, self.finish = 0, 0, "stop"

    async def _request(self) -> SpeechRequest:
        """The request for this segment, in the voices of those before."""
        run, request = self.run, self.request
        if self.tails:
            with_tails = partial(with_tail_reference, request, run.spec, self.tails)
            request = await asyncio.get_running_loop().run_in_executor(run.plan.host.references, with_tails)
        return replace(request, live=self.tail is not None)

    async def _once(self, client: EngineClient, request: SpeechRequest, seed: int) -> AsyncGenerator[np.ndarray, None]:
        run = self.run
        place, traced = run.queue.take(), run.traced and not run.timing.engine
        stream = client.submit(request, seed, run.plan.streaming, place, request_id=run.plan.id, traced=traced)
        writing = None if self.tail is None else asyncio.create_task(self._append_text(stream, self.tail))
        try:
            facts = await stream.accepted()
            if facts is None:
                yield self._silence()
                return
            self._note_accepted(facts)
            guard = Guard(run.spec, request) if run.plan.guard else None
            async for chunk in stream:
                if run.timing.first is None and len(chunk.samples):
                    run.timing.first = time.monotonic()
                    run.timing.engine = (stream.sent, *stream.moments) if traced else ()
                self._note_facts(stream.facts or facts)
                samples, cut = (
                    (chunk.samples, None) if guard is None else guard.check(chunk, self._facts.runaway_frames)
                )
                if self._clock is not None:
                    self._clock.add(chunk)
                self.samples += len(samples)
                self.frames += len(chunk.frames)
                run.usage.frames += len(chunk.frames)
                yield samples
                if cut is not None:
                    self.finish = cut
                    run.guarded.append("cut")
                    return
                if chunk.finish is not None:
                    self.finish = chunk.finish
        finally:
            stream.cancel()
            run.queue.leave()
            if writing is not None:
                writing.cancel()
            if self.tail is not None:
                self.tail.close()

    def _note_accepted(self, facts: Facts) -> None:
        """The engine has taken the segment."""
        run = self.run
        run.queue.admit()
        run.timing.submitted = run.timing.submitted or time.monotonic()
        run.usage.audio_tokens += facts.audio_tokens
        self._facts = replace(facts, tokens=0)
        self._note_facts(facts)
        if run.plan.words:
            self._clock = ThreadedClock(run.plan.host.clocks, partial(self._word_clock, facts.words))

    def _word_clock(self, words: Sequence[range]) -> WordClock:
        run = self.run
        hears = run.plan.host.aligners.segment(run.spec, self.request.language, self.segment.text)
        return WordClock(run.spec, words, True, hears)

    def _note_facts(self, facts: Facts) -> None:
        """Count the tokens of text that has come since."""
        self.run.usage.input_tokens += facts.tokens - self._facts.tokens
        self._facts = facts

    async def _append_text(self, stream: EngineStream, tail: TextTail) -> None:
        """Give the model the text that arrives while it speaks."""
        async for text, last in tail.parts():
            stream.append(text, last)
            self.segment = extended(self.segment, text)
