"""Running a plan: its segments go through the engine one after another or side by side, and are joined and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stentor.engine.stream import AudioStream
from stentor.errors import EngineError, InvalidRequest
from stentor.models.base import Prompt, SpeechRequest
from stentor.retry import Tries
from stentor.server.preparation import make_prompt, prepare
from stentor.server.speech.guard import Guard
from stentor.server.speech.live_text import TextTail, extended
from stentor.server.speech.outcomes import Timing, Usage
from stentor.server.speech.plan import SpeechPlan
from stentor.speech.joiner import JoinedAudio, unspoken
from stentor.speech.pieces import (
    SIDE_BY_SIDE,
    GeneratedSegment,
    PieceQueue,
    VoicesSoFar,
    segment_request,
    with_tail_reference,
)
from stentor.speech.timing import SegmentTiming
from stentor.speech.words import Span, WordClock
from stentor.text.front_end import Check
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.api import TTS


class SpeechRun:
    """One plan while it runs. Call `audio()` once. The other fields may be read at any time."""

    def __init__(self, plan: SpeechPlan, timing: Timing) -> None:
        self.plan, self.timing = plan, timing
        self.spec = plan.host.spec
        self.seed = plan.seed
        self.usage = Usage()
        self.finish: str | None = None
        self.guarded: list[str] = []  # actions of the guard: "cut", "retried"
        self.unspoken: list[SegmentTiming] = []  # segments that cannot be spoken, with the silence in their place
        self.joined = JoinedAudio(self.spec.sample_rate, plan.output.speed)
        self.queue = PieceQueue(plan.streaming)
        self._voices = VoicesSoFar(self.spec)

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
        """Note the segments that cannot be spoken before the first is."""
        texts = [s.spoken for s in self.plan.segments]
        async with self.plan.host.in_use() as tts:

            def work(check: Check) -> list[str]:
                return [t for t in texts if not tts.speakable(t, check)]

            for text in await prepare(self.plan.host.pool, work):
                self.plan.ignored.piece(text)

    def end(self) -> None:
        """All segments have been spoken."""
        self.finish = self.joined.ending
        self.timing.done = time.monotonic()

    def next_segment(self, segment: Segment, tail: TextTail | None = None) -> SegmentRun:
        """Prepare a segment, in the voice of the one before if the plan says so. tail: its text that is yet to come."""
        first = len(self.timings) == len(self.unspoken) or not self.plan.continues
        return SegmentRun(self, segment, first, self._voices.of(segment.spoken), tail)

    async def segment_audio(self, current: SegmentRun) -> AsyncGenerator[np.ndarray, None]:
        """Run one segment and note its times at its end. Its last samples are kept."""
        yield self.joined.begin(current.segment)
        generated = []
        async with aclosing(current.stream()) as blocks:
            async for samples in blocks:
                generated.append(samples)
                yield self.joined.feed(samples)
        self.note_end(current)
        if self.plan.continues and generated:
            self._voices.add(GeneratedSegment(np.concatenate(generated), current.segment.spoken))

    def note_end(self, current: SegmentRun) -> None:
        """Note a segment's times, and whether it was spoken."""
        self.joined.note_end(current.segment, current.samples, current.finish, current.word_spans())
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
                current = SegmentRun(self, segment, first=True)
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
            self.note_end(current)
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
        first: bool,
        tails: tuple[GeneratedSegment, ...] = (),
        tail: TextTail | None = None,
    ) -> None:
        """first: no segment before it sets its voice. tails: the segments whose voices it takes, if any were fit."""
        self.run, self.segment, self.first, self.tails, self.tail = run, segment, first, tails, tail
        self.finish = "stop"
        self.unspoken = False  # there is nothing in it to speak: it is a silence
        self.samples = self.frames = 0
        self._clock = WordClock(run.spec, (), run.plan.words)

    def word_spans(self) -> list[Span | None]:
        """When its words were spoken, by its own audio."""
        return self._clock.spans()

    async def stream(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples [n] as they are generated. Where a retry is possible, all come at the end.

        The model is in use meanwhile, and only then: a session that waits for text does not keep it in memory.
        """
        async with self.run.plan.host.in_use() as tts:
            prompt = await self._prepare(tts)
            if prompt is None:
                yield self._silence()
                return
            if not self.run.plan.streaming:
                for samples in await self._retried(tts, prompt):
                    yield samples
                return
            async with aclosing(self._once(tts, prompt, self.run.plan.seed)) as blocks:
                async for samples in blocks:
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

    async def _retried(self, tts: TTS, prompt: Prompt) -> list[np.ndarray]:
        """The samples of the first try that does not run on, or of the last one."""
        plan = self.run.plan
        tries = Tries(plan.seed, 1 if plan.seed_given or not plan.guard else 1 + plan.host.config.guard_retries)
        while True:
            async with aclosing(self._once(tts, prompt, tries.seed)) as blocks:
                generated = [b async for b in blocks]
            if not tries.again(self.finish == "guard_length"):
                break
            self._discard()
        if len(plan.segments) == 1:
            self.run.seed = tries.seed
        return generated

    def _discard(self) -> None:
        """Drop the result of the last try."""
        self.run.guarded[-1] = "retried"
        self.run.usage.frames -= self.frames
        self.samples, self.frames, self.finish = 0, 0, "stop"

    async def _prepare(self, tts: TTS) -> Prompt | None:
        """Tokens and encoded references. Their making stops when the segment has been given up. None: there is nothing
        to speak in it."""
        run = self.run
        host, request = run.plan.host, segment_request(run.plan.request, self.segment, self.first)
        if self.tails:
            request = await prepare(host.references, self._with_tails(request))
        prompt = await make_prompt(host.pool, tts, replace(request, live=self.tail is not None))
        if prompt is None:
            return None
        run.usage.input_tokens += prompt.tokens
        run.usage.audio_tokens += len(prompt.frames)
        return prompt

    def _with_tails(self, request: SpeechRequest) -> Callable[[Check], SpeechRequest]:
        """Work that puts the segments before into the request."""

        def work(check: Check) -> SpeechRequest:
            check()
            return with_tail_reference(request, self.run.spec, self.tails)

        return work

    async def _once(self, tts: TTS, prompt: Prompt, seed: int) -> AsyncGenerator[np.ndarray, None]:
        run = self.run
        guard = Guard(run.spec, prompt) if run.plan.guard else None
        stream = run.queue.submit(tts.engine, prompt, seed)
        self._clock = WordClock(run.spec, prompt.words, run.plan.words)
        if run.timing.submitted is None:
            run.timing.submitted = time.monotonic()
        writing = None if self.tail is None else asyncio.create_task(self._append_text(prompt, stream, self.tail))
        try:
            async for chunk in stream:
                if run.timing.first is None and len(chunk.samples):
                    run.timing.first = time.monotonic()
                samples, cut = (chunk.samples, None) if guard is None else guard.check(chunk)
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
            if writing is not None and writing.done():
                writing.result()
        finally:
            run.queue.left(stream)
            if writing is not None:
                writing.cancel()
            if self.tail is not None:
                self.tail.close()

    async def _append_text(self, prompt: Prompt, stream: AudioStream, tail: TextTail) -> None:
        """Give the model the text that arrives while it speaks."""
        try:
            async for text, last in tail.parts():
                before = prompt.tokens
                stream.append(text, last)
                self.run.usage.input_tokens += prompt.tokens - before
                self.segment = extended(self.segment, text)
        except InvalidRequest:
            stream.cancel()
            raise
        except EngineError:
            return  # the engine has stopped, which the stream says too
