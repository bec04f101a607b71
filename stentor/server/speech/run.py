"""Running a plan: its segments go through the engine one after another or side by side, and are joined and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from stentor.engine.sequence import Place
from stentor.engine.stream import AudioStream
from stentor.errors import EngineError, InvalidRequest
from stentor.models.base import Prompt, SpeechRequest
from stentor.retry import Tries
from stentor.server.audio.effects import SegmentJoiner
from stentor.server.preparation import prepare
from stentor.server.speech.guard import Guard
from stentor.server.speech.live_text import TextTail, extended
from stentor.server.speech.outcomes import SegmentTiming, Timing, Usage
from stentor.server.speech.plan import GeneratedSegment, SpeechPlan, VoicesSoFar, with_tail_reference
from stentor.server.speech.sentences import Segment
from stentor.text.front_end import Check

PAUSE, PARAGRAPH_PAUSE = 0.15, 0.4  # seconds of silence between segments
SIDE_BY_SIDE = 8  # segments of one request in the engine together, where none depends on another


class SpeechRun:
    """One plan while it runs. Call `audio()` once. The other fields may be read at any time."""

    def __init__(self, plan: SpeechPlan, timing: Timing) -> None:
        self.plan, self.timing = plan, timing
        self.tts = plan.host.tts
        self.spec = self.tts.spec
        self.seed = plan.seed
        self.usage = Usage()
        self.finish: str | None = None
        self.timings: list[SegmentTiming] = []
        self.guarded: list[str] = []  # actions of the guard: "cut", "retried"
        self._voices = VoicesSoFar(self.spec)
        self._admitted = False  # the engine has taken a prompt of it
        self._places = 0  # of prompts that have ended, for those that follow

    @property
    def duration(self) -> float:
        """Seconds of audio so far, as a client plays them."""
        return self.usage.samples / self.spec.sample_rate / self.plan.output.speed

    async def audio(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples [n] at the model's rate, as they are generated. Closing it cancels what is running."""
        joiner = SegmentJoiner(self.spec.sample_rate)
        side_by_side = len(self.plan.segments) > 1 and not self.plan.streaming and not self.plan.continues
        blocks = self._side_by_side(joiner) if side_by_side else self._one_by_one(joiner)
        async with aclosing(blocks):
            async for samples in blocks:
                if len(samples):
                    self.usage.samples += len(samples)
                    yield samples
        self.finish = self.finish or "stop"
        self.timing.done = time.monotonic()

    def submit(self, prompt: Prompt, seed: int) -> AudioStream:
        """Give the engine a prompt. Once one has been taken, the others are not refused, and keep its place."""
        place = Place.NEXT if self._places else Place.ADMITTED if self._admitted else Place.NEW
        stream = self.tts.engine.submit(prompt, seed, self.plan.streaming, place)
        self._admitted, self._places = True, max(0, self._places - 1)
        return stream

    def left(self, stream: AudioStream) -> None:
        """A prompt has ended, or is not needed any more. The next one takes its place."""
        stream.cancel()
        self._places += 1

    def next_segment(self, segment: Segment, tail: TextTail | None = None) -> SegmentRun:
        """Prepare a segment, in the voice of the one before if the plan says so. tail: its text that is yet to come."""
        first = not self.timings or not self.plan.continues
        return SegmentRun(self, segment, first, self._voices.of(segment.spoken), tail)

    async def segment_audio(self, current: SegmentRun, joiner: SegmentJoiner) -> AsyncGenerator[np.ndarray, None]:
        """Run one segment and note its times at its end. The joiner keeps its last samples."""
        start, generated = self._position(joiner), []
        async with aclosing(current.stream()) as blocks:
            async for samples in blocks:
                generated.append(samples)
                yield joiner.feed(samples)
        self._note_end(current, start)
        if self.plan.continues and generated:
            self._voices.add(GeneratedSegment(np.concatenate(generated), current.segment.spoken))

    async def _one_by_one(self, joiner: SegmentJoiner) -> AsyncGenerator[np.ndarray, None]:
        for i, segment in enumerate(self.plan.segments):
            current = self.next_segment(segment)
            async with aclosing(self.segment_audio(current, joiner)) as blocks:
                async for samples in blocks:
                    yield samples
            yield self._end(joiner, i, current)

    async def _side_by_side(self, joiner: SegmentJoiner) -> AsyncGenerator[np.ndarray, None]:
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
            start = self._position(joiner)
            for samples in blocks:
                yield joiner.feed(samples)
            self._note_end(current, start)
            yield self._end(joiner, i, current)

    def _position(self, joiner: SegmentJoiner) -> int:
        return self.usage.samples + len(joiner.held)

    def _note_end(self, current: SegmentRun, start: int) -> None:
        """Note a segment's times and how it ended."""
        if current.finish != "stop":
            self.finish = current.finish
        rate = self.spec.sample_rate * self.plan.output.speed
        begin, end = start / rate, (start + current.samples) / rate
        s = current.segment
        self.timings.append(SegmentTiming(len(self.timings), s.text, begin, end, s.start, s.end))

    def _end(self, joiner: SegmentJoiner, i: int, current: SegmentRun) -> np.ndarray:
        last = i + 1 == len(self.plan.segments)
        pause = 0.0 if last else PARAGRAPH_PAUSE if current.segment.paragraph else PAUSE
        return joiner.end_segment(pause, fade=not last or current.finish.startswith("guard"))


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
        self.samples = self.frames = 0

    async def stream(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples [n] as they are generated. Where a retry is possible, all come at the end."""
        plan = self.run.plan
        prompt = await self._prepare()
        if plan.streaming:
            async with aclosing(self._once(prompt, plan.seed)) as blocks:
                async for samples in blocks:
                    yield samples
            return
        for samples in await self._retried(prompt):
            yield samples

    async def _retried(self, prompt: Prompt) -> list[np.ndarray]:
        """The samples of the first try that does not run on, or of the last one."""
        plan = self.run.plan
        tries = Tries(plan.seed, 1 if plan.seed_given or not plan.guard else 1 + plan.host.config.guard_retries)
        while True:
            async with aclosing(self._once(prompt, tries.seed)) as blocks:
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

    async def _prepare(self) -> Prompt:
        """Tokens and encoded references, made in a thread. It stops when the segment has been given up."""
        run, request = self.run, self.run.plan.request
        request = replace(request, text=self.segment.spoken, live=self.tail is not None)
        if not self.first:
            request = replace(request, instructions=None)  # the voice is in the audio that is continued

        prompt = None
        if not self.tails:
            prompt = await prepare(run.plan.host.pool, self._if_encoded(request))
        if prompt is None:
            prompt = await prepare(run.plan.host.encoding, self._encoding(request))
        run.usage.input_tokens += prompt.tokens
        run.usage.audio_tokens += len(prompt.frames)
        return prompt

    def _if_encoded(self, request: SpeechRequest) -> Callable[[Check], Prompt | None]:
        """Work that makes the prompt, unless audio must be encoded first."""
        return lambda check: self.run.tts.prompt_if_encoded(replace(request, check=check))

    def _encoding(self, request: SpeechRequest) -> Callable[[Check], Prompt]:
        """Work that encodes the request's audio, or the segments before, and makes the prompt."""

        def work(check: Check) -> Prompt:
            tails, checked = self.tails, replace(request, check=check)
            return self.run.tts.prompt(with_tail_reference(checked, self.run.spec, tails) if tails else checked)

        return work

    async def _once(self, prompt: Prompt, seed: int) -> AsyncGenerator[np.ndarray, None]:
        run = self.run
        guard = Guard(run.spec, prompt) if run.plan.guard else None
        stream = run.submit(prompt, seed)
        if run.timing.submitted is None:
            run.timing.submitted = time.monotonic()
        writing = None if self.tail is None else asyncio.create_task(self._append_text(prompt, stream, self.tail))
        try:
            async for chunk in stream:
                if run.timing.first is None and len(chunk.samples):
                    run.timing.first = time.monotonic()
                samples, cut = (chunk.samples, None) if guard is None else guard.check(chunk)
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
            run.left(stream)
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
