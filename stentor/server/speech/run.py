"""Speaking a plan: pieces through the engine one after another (or side by side), guarded, joined and timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stentor.audio import Reference
from stentor.engine.stream import Chunk, Stream
from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec, Prompt
from stentor.server.audio.effects import Joint
from stentor.server.speech.live_text import Tail, grown
from stentor.server.speech.outcomes import Segment
from stentor.server.speech.plan import Plan, carried
from stentor.server.speech.sentences import Piece
from stentor.silence import GUARD_PEAK

PAUSE, PARAGRAPH_PAUSE = 0.15, 0.4  # seconds of silence between pieces
SILENT_SECONDS = 5.0  # of silence, after which a piece is taken to have ended
SIDE_BY_SIDE = 8  # pieces of one whole answer spoken together when none depends on another


@dataclass
class Tally:
    """What a request has used and made so far."""

    input_tokens: int = 0
    audio_tokens: int = 0  # of those, positions that hold reference audio
    frames: int = 0
    samples: int = 0  # at the model's rate, pauses included

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object; output tokens are frames."""
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.frames,
            "total_tokens": self.input_tokens + self.frames,
            "input_token_details": {
                "text_tokens": self.input_tokens - self.audio_tokens,
                "audio_tokens": self.audio_tokens,
            },
        }


class Guard:
    """Ends a piece whose audio has run far beyond its text, or has fallen silent; at the same frame however the audio
    is cut into chunks."""

    def __init__(self, spec: ModelSpec, prompt: Prompt) -> None:
        self.spec, self.prompt = spec, prompt
        self.frames = self.silent = 0

    @property
    def most(self) -> int | None:
        """Frames that are too many. It grows with live text; turns of several prompts add up, so they have none."""
        return self.prompt.runaway_frames if self.prompt.continuation is None else None

    def check(self, chunk: Chunk) -> tuple[np.ndarray, str | None]:
        """The samples to deliver, and why nothing follows them (None: more may)."""
        hop = self.spec.hop
        peaks = np.abs(chunk.samples).reshape(-1, hop).max(axis=1, initial=0.0)
        for i, loud in enumerate((peaks > GUARD_PEAK).tolist()):
            self.frames += 1
            self.silent = 0 if loud else self.silent + 1
            if self.silent * hop > SILENT_SECONDS * self.spec.sample_rate:
                return chunk.samples[: (i + 1) * hop], "guard_silence"
            if self.frames == self.most and (chunk.finish is None or i + 1 < len(peaks)):
                return chunk.samples[: (i + 1) * hop], "guard_length"
        return chunk.samples, None


@dataclass
class Timing:
    """Moments of one request, on time.monotonic()'s clock."""

    asked: float = field(default_factory=time.monotonic)
    submitted: float | None = None
    first: float | None = None
    done: float | None = None

    def header(self) -> str:
        """Server-Timing of what is known."""
        marks = [("prepare", self.asked, self.submitted), ("first-audio", self.submitted, self.first)]
        marks.append(("total", self.asked, self.done))
        return ", ".join(f"{n};dur={(b - a) * 1000:.1f}" for n, a, b in marks if a is not None and b is not None)


class Run:
    """One plan being spoken. `audio()` once; the rest is what is known of it at any moment."""

    def __init__(self, plan: Plan, timing: Timing) -> None:
        self.plan, self.timing = plan, timing
        self.tts = plan.host.tts
        self.spec = self.tts.spec
        self.seed = plan.seed
        self.tally = Tally()
        self.finish: str | None = None
        self.segments: list[Segment] = []
        self.guarded: list[str] = []  # actions of the guard: "cut", "retried"
        self._references, self._prompt = plan.references, plan.prompt  # of the next piece

    @property
    def duration(self) -> float:
        """Seconds of audio so far, as they are heard."""
        return self.tally.samples / self.spec.sample_rate / self.plan.output.speed

    async def audio(self) -> AsyncGenerator[np.ndarray, None]:
        """float32 samples at the model's rate, as they come. Closing it cancels what is running."""
        joint = Joint(self.spec.sample_rate)
        side_by_side = len(self.plan.pieces) > 1 and not self.plan.streaming and not self.plan.continues
        pieces = self._together(joint) if side_by_side else self._in_turn(joint)
        async with aclosing(pieces):
            async for samples in pieces:
                if len(samples):
                    self.tally.samples += len(samples)
                    yield samples
        self.finish = self.finish or "stop"
        self.timing.done = time.monotonic()

    async def _in_turn(self, joint: Joint) -> AsyncGenerator[np.ndarray, None]:
        for i, piece in enumerate(self.plan.pieces):
            take = self.take(piece)
            async with aclosing(self.say(take, joint)) as blocks:
                async for samples in blocks:
                    yield samples
            yield self._end(joint, i, take)

    def take(self, piece: Piece, tail: Tail | None = None) -> Take:
        """The next piece, in the voice of the one before where the plan says so. tail: what it goes on with."""
        instructions = not self.segments or not self.plan.continues
        return Take(self, piece, self._references, self._prompt, instructions, tail)

    async def say(self, take: Take, joint: Joint) -> AsyncGenerator[np.ndarray, None]:
        """One piece, its times noted at its end. The last samples stay in the joint."""
        start, spoken = self._position(joint), []
        async with aclosing(take.stream()) as blocks:
            async for samples in blocks:
                spoken.append(samples)
                yield joint.feed(samples)
        self._close(take.piece, start, take)
        if not self.plan.continues or not spoken:
            return
        follow = carried(np.concatenate(spoken), self.spec, take.piece.text)
        if follow is not None and self.spec.takes_prompt:
            self._prompt = follow
        elif follow is not None:
            self._references = [follow]

    async def _together(self, joint: Joint) -> AsyncGenerator[np.ndarray, None]:
        slots = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(piece: Piece) -> tuple[Take, list[np.ndarray]]:
            async with slots:
                take = Take(self, piece, self.plan.references, self.plan.prompt, instructions=True)
                async with aclosing(take.stream()) as blocks:
                    return take, [b async for b in blocks]

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(p)) for p in self.plan.pieces]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        for i, task in enumerate(tasks):
            take, blocks = task.result()
            start = self._position(joint)
            for samples in blocks:
                yield joint.feed(samples)
            self._close(take.piece, start, take)
            yield self._end(joint, i, take)

    def _position(self, joint: Joint) -> int:
        return self.tally.samples + len(joint.held)

    def _close(self, piece: Piece, start: int, take: Take) -> None:
        """Note a piece's times and how it ended."""
        if take.finish != "stop":
            self.finish = take.finish
        rate = self.spec.sample_rate * self.plan.output.speed
        begin, end = start / rate, (start + take.samples) / rate
        self.segments.append(Segment(len(self.segments), piece.text, begin, end, piece.start, piece.end))

    def _end(self, joint: Joint, i: int, take: Take) -> np.ndarray:
        last = i + 1 == len(self.plan.pieces)
        pause = 0.0 if last else PARAGRAPH_PAUSE if take.piece.paragraph else PAUSE
        return joint.close_piece(pause, fade=not last or take.finish.startswith("guard"))


class Take:
    """One piece through the engine; a whole answer that runs on is spoken again with the next seed."""

    def __init__(
        self,
        run: Run,
        piece: Piece,
        references: list[Reference],
        prompt: Reference | None,
        instructions: bool,
        tail: Tail | None = None,
    ) -> None:
        self.run, self.piece, self.references, self.prompt = run, piece, references, prompt
        self.instructions, self.tail = instructions, tail
        self.finish = "stop"
        self.samples = self.frames = 0

    async def stream(self) -> AsyncGenerator[np.ndarray, None]:
        plan = self.run.plan
        prompt, seed = await self._prepare(), plan.seed
        if plan.streaming:
            async with aclosing(self._once(prompt, seed)) as blocks:
                async for samples in blocks:
                    yield samples
            return
        tries = 1 if plan.seed_given or not plan.guard else 1 + plan.host.config.guard_retries
        spoken: list[np.ndarray] = []
        for left in range(tries - 1, -1, -1):
            async with aclosing(self._once(prompt, seed)) as blocks:
                spoken = [b async for b in blocks]
            if self.finish != "guard_length" or not left:
                break
            self._again()
            seed += 1
        if len(plan.pieces) == 1:
            self.run.seed = seed
        for samples in spoken:
            yield samples

    def _again(self) -> None:
        """Forget the last try."""
        self.run.guarded[-1] = "retried"
        self.run.tally.frames -= self.frames
        self.samples, self.frames, self.finish = 0, 0, "stop"

    async def _prepare(self) -> Prompt:
        """Tokens and encoded references, made in a thread."""
        run, plan = self.run, self.run.plan
        arguments = {**plan.arguments, "live": self.tail is not None}
        if not self.instructions:
            arguments["instructions"] = None  # the voice is in the audio that is continued

        def work() -> Prompt:
            req = run.tts.request(
                self.piece.text, reference=self.references, prompt=self.prompt, seed=plan.seed, **arguments
            )
            return run.tts.prompt(req)

        made = await asyncio.get_running_loop().run_in_executor(plan.host.pool, work)
        run.tally.input_tokens += made.tokens
        run.tally.audio_tokens += len(made.frames)
        return made

    async def _once(self, prompt: Prompt, seed: int) -> AsyncGenerator[np.ndarray, None]:
        run = self.run
        guard = Guard(run.spec, prompt) if run.plan.guard else None
        stream = run.tts.engine.submit(prompt, seed, run.plan.streaming)
        if run.timing.submitted is None:
            run.timing.submitted = time.monotonic()
        writing = None if self.tail is None else asyncio.create_task(self._write(prompt, stream, self.tail))
        try:
            async for chunk in stream:
                if run.timing.first is None and len(chunk.samples):
                    run.timing.first = time.monotonic()
                samples, cut = (chunk.samples, None) if guard is None else guard.check(chunk)
                self.samples += len(samples)
                self.frames += len(chunk.frames)
                run.tally.frames += len(chunk.frames)
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
            stream.cancel()
            if writing is not None:
                writing.cancel()
            if self.tail is not None:
                self.tail.close()

    async def _write(self, prompt: Prompt, stream: Stream, tail: Tail) -> None:
        """Give the model the text that comes while it speaks."""
        try:
            async for text, last in tail.parts():
                before = prompt.tokens
                stream.append(text, last)
                self.run.tally.input_tokens += prompt.tokens - before
                self.piece = grown(self.piece, text)
        except InvalidRequest:
            stream.cancel()
            raise
