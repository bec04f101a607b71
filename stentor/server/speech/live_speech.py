"""Text that is spoken while it is still written: the part of it that no protocol changes."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stentor.engine.seeds import random_seed
from stentor.server.backpressure import Disconnected, SlowClient
from stentor.server.errors import ApiError, translate
from stentor.server.limits import LIMITS
from stentor.server.speech.outcomes import Timing
from stentor.server.speech.output import OutputPipeline, RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.server.speech.run import SegmentRun
from stentor.speech.live_text import FedSegment, TextFeed, TextTail, played_characters
from stentor.speech.script import reading
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.server.state import Server

# without audio, after which a segment with a tail is taken to wait for text
QUIET_SECONDS = LIMITS.ws_quiet_seconds


class LiveSpeech(ABC):
    """Speaks what is written to `feed`, segment by segment. Call `speak` once. Fields may be read
    meanwhile.

    A protocol's subclass sends what is made. Its methods may raise SlowClient.
    """

    def __init__(
        self,
        server: Server,
        plan: SpeechPlan,
        id: str,
        granularity: str = "auto",
        cleanup: str | None = None,
        streamed: bool = True,
        traceparent: str | None = None,
    ) -> None:
        """plan: of `Planner.live`. streamed: audio is sent while it is made, else each segment
        becomes its own file. traceparent: the header of that name, to which its spans belong."""
        self.server = server
        self.streamed = streamed
        self.traceparent = traceparent
        if plan.seed_given:
            seed = plan.request.seed
        else:
            seed = random_seed()
        requests = {voice: replace(r, seed=seed) for voice, r in plan.requests.items()}
        self.plan = replace(plan, id=id, requests=requests, ignored=plan.ignored.copy())
        spec = plan.host.spec
        max_chars = min(server.config.split_chars, spec.max_text)
        how = reading(
            spec, plan.host.lexicon, cleanup or server.config.cleanup, plan.request.language
        )
        self.feed = TextFeed(granularity, max_chars, plan.live, how, spec.split_granularity)
        self.running: RunningRequest | None = None
        # the segment being spoken, and where its audio begins
        self.current: tuple[SegmentRun, float] | None = None
        self.failed = False  # what follows of its text is dropped
        self.last_audio = 0.0  # when the current segment began, or last gave audio
        self.bytes = self.segments = 0  # made so far
        self.bytes_before = 0  # the current segment

    # -- what a protocol sends --

    @abstractmethod
    def segment_begins(self, index: int, segment: Segment) -> None:
        """A segment is about to be spoken."""

    @abstractmethod
    def audio(self, data: bytes) -> None:
        """Audio has been made, of the segment that began last."""

    @abstractmethod
    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        """All audio of a segment has been made."""

    @abstractmethod
    def failure(self, error: ApiError) -> None:
        """It goes no further. Text that still comes is dropped, and `end` follows it."""

    @abstractmethod
    def end(self, running: RunningRequest | None) -> None:
        """All text has come and is spoken. None: there was nothing to speak, or it has failed."""

    # -- the speech --

    @property
    def waiting_for_text(self) -> bool:
        """Whether all text so far has been spoken and the next segment needs more."""
        quiet = (
            self.failed
            or self.current is None
            or (self.plan.live and time.monotonic() - self.last_audio > QUIET_SECONDS)
        )
        return quiet and self.feed.needs_text

    async def played(self, seconds: float) -> int:
        """Return the number of characters of the text whose audio is played after `seconds`."""
        if self.running is None:
            return 0
        timings = self.running.run.timings
        while (speaking := self.current) is not None:
            segment_run, begin = speaking
            words = await segment_run.words_so_far(begin)
            if self.current is speaking:  # else it has ended meanwhile, and another may have begun
                segment = segment_run.current.segment
                return played_characters(timings, (segment, begin), seconds, words)
        return played_characters(timings, None, seconds)

    async def speak(self) -> None:
        """Speak every segment. Errors are reported through `failure` and end only this speech.
        Raises SlowClient."""
        segments = self.feed.segments()
        first = await anext(segments, None)
        if first is None:
            self.end(None)
            return
        try:
            self.plan = await self.server.planner.begun(self.plan)
            running = self.running = RunningRequest(
                self.server, self.plan, Timing(), self.traceparent
            )
        except Exception as e:
            await self._fail(translate(e, self.plan.host.retry_after))
            return
        live = self.server.metrics.live
        live[running.playback] = self.plan.host.name
        try:
            await self._all(running, first, segments)
        except asyncio.CancelledError:
            running.failed(Disconnected())
            raise
        except SlowClient as e:
            running.failed(e)
            raise
        except Exception as e:
            error = running.failed(e)
            assert error is not None
            await self._fail(error)
        finally:
            live.pop(running.playback, None)

    async def _all(
        self, running: RunningRequest, first: FedSegment, rest: AsyncIterator[FedSegment]
    ) -> None:
        if self.streamed:
            pipeline = running.pipeline(whole=False, text=first[0].text)
        else:
            pipeline = None
        await self._segment(running, pipeline, *first)
        async for fed in rest:
            await self._segment(running, pipeline, *fed)
        silence = self.feed.silence
        ending = running.run.end(silence)
        if pipeline is not None:
            await self._encode(running, pipeline, ending)
            self._made(running, await pipeline.finish())
        elif silence:
            # no file follows that could begin with it
            self.plan.ignored.piece(f"[pause {silence:g}s]")
        running.completed()
        self.end(running)

    async def _segment(
        self,
        running: RunningRequest,
        pipeline: OutputPipeline | None,
        segment: Segment,
        tail: TextTail | None,
    ) -> None:
        """Speak one segment. `pipeline` is the stream of all. With None, the segment becomes its
        own file."""
        run = running.run
        index = self.segments
        self.segments += 1
        self.bytes_before = self.bytes
        segment_pipeline = pipeline or running.pipeline(whole=True, text=segment.text)
        run.speaking.add(segment, live=tail is not None, apart=pipeline is None)
        await self._encode(running, segment_pipeline, run.speaking.silence())
        current = run.next(tail)
        assert current is not None
        self.current = (current, run.speaking.joined.segment_start)
        self.last_audio = time.monotonic()
        self.segment_begins(index, segment)
        limit = asyncio.timeout(self.server.config.request_timeout)
        async with limit, aclosing(current.audio()) as blocks:
            async for samples in blocks:
                await self._encode(running, segment_pipeline, samples)
        self.current = None
        if pipeline is None:
            self._made(running, await segment_pipeline.finish())
        elif self.feed.exhausted:  # its last 5 ms need not wait for what follows
            await self._encode(running, pipeline, run.end(self.feed.silence))
        self.segment_ends(index, run.timings[-1], current.current)

    async def _encode(
        self, running: RunningRequest, pipeline: OutputPipeline, samples: np.ndarray
    ) -> None:
        if not len(samples):
            return
        running.playback.add(samples)
        self.last_audio = time.monotonic()
        self._made(running, await pipeline.feed(samples))

    def _made(self, running: RunningRequest, data: bytes) -> None:
        if data:
            running.encoded()
            self.bytes += len(data)
            self.audio(data)
            running.left()

    async def _fail(self, error: ApiError) -> None:
        """Report a failure, and drop the text that still arrives."""
        self.failed = True
        self.failure(error)
        async for _ in self.feed.segments():
            pass
        self.end(None)
