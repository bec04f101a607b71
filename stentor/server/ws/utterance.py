"""One utterance of a WebSocket session: text is written to it while its audio is sent."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np

from stentor.retry import random_seed
from stentor.server.backpressure import Disconnected, SlowClient
from stentor.server.errors import ApiError, translate
from stentor.server.limits import LIMITS
from stentor.server.speech.live_text import FedSegment, TextFeed, TextTail, played_characters
from stentor.server.speech.outcomes import Timing, timing_as_dict, word_as_dict
from stentor.server.speech.output import OutputPipeline, RunningRequest, final_report
from stentor.server.speech.plan import SpeechPlan
from stentor.server.speech.run import SegmentRun
from stentor.server.state import Server
from stentor.server.ws.messages import Configure, MessageSender
from stentor.text.segments import Reading
from stentor.text.sentences import Segment

QUIET_SECONDS = LIMITS.ws_quiet_seconds  # without audio, after which a segment with a tail is taken to wait for text


class Utterance:
    """The text up to an input.done. Call `speak` once. Every field may be read meanwhile."""

    def __init__(self, server: Server, out: MessageSender, plan: SpeechPlan, settings: Configure, index: int) -> None:
        self.server, self.out, self.settings, self.index = server, out, settings, index
        self.session_id = plan.id
        self.streamed = settings.streams(plan.output.format)
        self.timed = settings.word_timestamps and plan.output.format == "pcm"  # chunks as vLLM-Omni sends them
        seed = plan.seed if plan.seed_given else random_seed()
        self.plan = replace(plan, id=f"{plan.id}-{index}", seed=seed, ignored=plan.ignored.copy())
        granularity = settings.split_granularity
        spec = plan.host.spec
        most = min(server.config.split_chars, spec.max_text)
        reading = Reading(spec.marks, spec.phonemes, plan.host.lexicon)
        self.feed = TextFeed(granularity, most, plan.live, reading, spec.split_granularity)
        self.running: RunningRequest | None = None
        self.current: tuple[SegmentRun, float] | None = None  # the segment being spoken, and where its audio begins
        self._last = Segment("", 0, 0)  # the segment that was spoken last
        self.failed = False  # what follows of its text is dropped
        self.last_audio = 0.0  # when the current segment began, or last gave audio
        self.bytes = self.segments = 0  # sent so far
        self.sent = self.chunks = 0  # bytes before the current segment, and its chunks so far

    @property
    def waiting_for_text(self) -> bool:
        """Whether all text so far has been spoken and the next segment needs more."""
        quiet = (
            self.failed
            or self.current is None
            or (self.plan.live and time.monotonic() - self.last_audio > QUIET_SECONDS)
        )
        return quiet and self.feed.needs_text

    async def speak(self) -> None:
        """Speak every segment, then send session.done. A failure is sent to the client and ends only this utterance.

        Raises SlowClient.
        """
        segments = self.feed.segments()
        first = await anext(segments, None)
        if first is None:
            self._done(total_sentences=0)
            return
        try:
            self.plan = await self.server.planner.begun(self.plan)
            running = self.running = RunningRequest(self.server, self.plan, Timing())
        except Exception as e:
            await self._failed(translate(e, self.plan.host.retry_after))
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
            await self._failed(error)
        finally:
            live.pop(running.playback, None)

    async def _all(self, running: RunningRequest, first: FedSegment, rest: AsyncIterator[FedSegment]) -> None:
        pipeline = running.pipeline(whole=False) if self.streamed else None
        await self._segment(running, pipeline, *first)
        async for fed in rest:
            await self._segment(running, pipeline, *fed)
        if pipeline is not None:
            self._send(await pipeline.finish())
        running.run.end()
        running.completed()
        self._done(total_sentences=self.segments, total_bytes=self.bytes, **final_report(running, "json"))

    async def _segment(
        self,
        running: RunningRequest,
        pipeline: OutputPipeline | None,
        segment: Segment,
        tail: TextTail | None,
    ) -> None:
        """Speak one segment. `pipeline` is the utterance's stream. With None, the segment becomes its own file."""
        run, index = running.run, self.segments
        self.sent, self.chunks = self.bytes, 0
        self.segments += 1
        own = pipeline or running.pipeline(whole=True)
        if index and pipeline is not None:
            await self._encode(running, own, run.joined.pause(self._last, segment))
        self._last = segment
        current = run.next_segment(segment, tail)
        self.current, self.last_audio = (current, run.duration), time.monotonic()
        self._announce(index, segment)
        limit = asyncio.timeout(self.server.config.request_timeout)
        async with limit, aclosing(run.segment_audio(current)) as blocks:
            async for samples in blocks:
                await self._encode(running, own, samples)
        await self._encode(running, own, run.joined.close_early())
        self.current = None
        if pipeline is None:
            self._send(await own.finish())
        times = run.timings[-1]
        if current.unspoken:
            self.out.event("input.ignored", utterance_index=self.index, sentence_index=index, **timing_as_dict(times))
        self.out.event(
            "audio.done",
            id=f"{self.plan.id}-{index}",
            utterance_index=self.index,
            sentence_index=index,
            total_bytes=self.bytes - self.sent,
            start=round(times.start, 4),
            end=round(times.end, 4),
            start_char=times.start_char,
            end_char=times.end_char,
            finish_reason=current.finish,
            error=False,
            **({"words": [word_as_dict(w) for w in times.words]} if self.plan.words else {}),
        )

    def _announce(self, index: int, segment: Segment) -> None:
        self.out.event(
            "audio.start",
            id=f"{self.plan.id}-{index}",
            utterance_index=self.index,
            sentence_index=index,
            sentence_text=segment.text,
            start_char=segment.start,
            end_char=segment.end,
            format=self.plan.output.format,
            sample_rate=self.plan.output.rate,
            channels=1,
        )

    async def _encode(self, running: RunningRequest, pipeline: OutputPipeline, samples: np.ndarray) -> None:
        if not len(samples):
            return
        running.playback.add(samples)
        self.last_audio = time.monotonic()
        self._send(await pipeline.feed(samples))

    def _send(self, data: bytes) -> None:
        if not data:
            return
        self.bytes += len(data)
        if self.timed:
            self._send_timed(data)
        elif self.settings.encoding == "base64":
            self.out.audio_chunk(utterance_index=self.index, audio=base64.b64encode(data).decode())
        else:
            self.out.audio(data)

    def _send_timed(self, data: bytes) -> None:
        """A chunk as vLLM-Omni sends it beside word times. They are null: a sentence's come with its audio.done."""
        ms = 1000 / (2 * self.plan.output.rate)
        self.out.audio_chunk(
            utterance_index=self.index,
            sentence_index=self.segments - 1,
            chunk_id=self.chunks,
            chunk_start_ms=round((self.bytes - self.sent - len(data)) * ms),
            chunk_end_ms=round((self.bytes - self.sent) * ms),
            sample_rate=self.plan.output.rate,
            channels=1,
            audio_b64=base64.b64encode(data).decode(),
            timestamps=None,
        )
        self.chunks += 1

    async def _failed(self, error: ApiError) -> None:
        """Report a failure. Text that still arrives for this utterance is dropped, and its input.done is answered."""
        self.failed = True
        action = {"partial_audio": self.bytes > 0, "action": "discard", "utterance_index": self.index}
        self.out.error(error, **action)
        async for _ in self.feed.segments():
            pass
        self._done(total_sentences=self.segments, finish_reason="error")

    def _done(self, **body: Any) -> None:
        ids = {"session_id": self.session_id, "request_id": self.plan.id}
        self.out.event("session.done", utterance_index=self.index, **{**ids, **body})

    def played_report(self, played_ms: float | None) -> dict[str, Any]:
        """How much a client has played: `played_ms` as it says itself, else an estimate for immediate playback."""
        body: dict[str, Any] = {"utterance_index": self.index, "request_id": self.plan.id}
        if self.running is None:
            return {**body, "heard_ms": 0, "spoken_ms": 0, "text_index": 0, "heard_text": ""}
        playback = self.running.playback
        seconds = playback.played_seconds if played_ms is None else min(playback.sent, played_ms / 1000)
        current = None if self.current is None else (self.current[0].segment, self.current[1])
        index = played_characters(self.running.run.timings, current, seconds)
        return {
            **body,
            "heard_ms": round(seconds * 1000),
            "spoken_ms": round(playback.sent * 1000),
            "text_index": index,
            "heard_text": self.feed.text[:index],
        }
