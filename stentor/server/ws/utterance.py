"""One utterance of a WebSocket session: its text as it comes, its audio as it goes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.server.audio.effects import Joint
from stentor.server.backpressure import Disconnected, SlowClient
from stentor.server.errors import ApiError, translate
from stentor.server.http.responses import INLINE, Line, Voicing, done
from stentor.server.speech.live_text import Cut, Feed, Tail, place
from stentor.server.speech.plan import Plan
from stentor.server.speech.run import PAUSE, Take, Timing
from stentor.server.speech.sentences import Piece
from stentor.server.ws.messages import Configure, Outgoing

if TYPE_CHECKING:
    from stentor.server.app import Server


QUIET_SECONDS = 1.0  # without audio, after which a piece that may go on is taken to wait for text


class Utterance:
    """Text between two input.done. `speak` once; every field may be read meanwhile."""

    def __init__(self, server: Server, out: Outgoing, plan: Plan, settings: Configure, index: int) -> None:
        self.server, self.out, self.settings, self.index = server, out, settings, index
        seed = plan.seed if plan.seed_given else secrets.randbelow(2**31)
        self.plan = replace(plan, id=f"{plan.id}-{index}", seed=seed)
        granularity = settings.split_granularity
        self.feed = Feed(granularity, min(server.config.split_chars, plan.host.spec.max_text), plan.live)
        self.voicing: Voicing | None = None
        self.now: tuple[Take, float] | None = None  # what is being spoken, and where its audio begins
        self.spoke = 0.0  # when it began, or last gave audio
        self.bytes = self.pieces = 0

    @property
    def starving(self) -> bool:
        """Whether all text so far has been spoken and more is expected."""
        quiet = self.now is None or (self.plan.live and time.monotonic() - self.spoke > QUIET_SECONDS)
        return quiet and self.feed.hungry

    async def speak(self) -> None:
        """Every piece in turn, then session.done; failures are told to the client and end only this utterance.

        Raises SlowClient.
        """
        pieces = self.feed.pieces()
        first = await anext(pieces, None)
        if first is None:
            self._done(total_sentences=0)
            return
        try:
            voicing = self.voicing = Voicing(self.server.kitchen, self.plan, Timing())
        except Exception as e:
            await self._failed(translate(e, self.plan.host.retry_after))
            return
        live = self.server.metrics.live
        live[voicing.playback] = self.plan.host.name
        try:
            await self._all(voicing, first, pieces)
        except asyncio.CancelledError:
            voicing.failed(Disconnected())
            raise
        except SlowClient as e:
            voicing.failed(e)
            raise
        except Exception as e:
            error = voicing.failed(e)
            assert error is not None
            await self._failed(error)
        finally:
            live.pop(voicing.playback, None)

    async def _all(self, voicing: Voicing, first: Cut, rest: AsyncIterator[Cut]) -> None:
        run, joint = voicing.run, Joint(voicing.run.spec.sample_rate)
        line = self._line(voicing) if self.settings.stream_audio else None
        await self._piece(voicing, joint, line, *first)
        async for cut in rest:
            await self._piece(voicing, joint, line, *cut)
        if line is not None:
            self._send(await line.finish())
        run.finish = run.finish or "stop"
        run.timing.done = time.monotonic()
        voicing.completed()
        self._done(total_sentences=self.pieces, total_bytes=self.bytes, **done(voicing, "json"))

    async def _piece(self, voicing: Voicing, joint: Joint, line: Line | None, piece: Piece, tail: Tail | None) -> None:
        run, output, index, before = voicing.run, self.plan.output, self.pieces, self.bytes
        self.pieces += 1
        own = line or self._line(voicing)
        if index and line is not None:
            await self._feed(voicing, own, np.zeros(round(PAUSE * run.spec.sample_rate), np.float32))
        take = run.take(piece, tail)
        self.now, self.spoke = (take, run.duration), time.monotonic()
        self.out.event(
            "audio.start",
            utterance_index=self.index,
            sentence_index=index,
            sentence_text=piece.text,
            start_char=piece.start,
            end_char=piece.end,
            format=output.format,
            sample_rate=output.rate,
        )
        async with asyncio.timeout(self.server.config.request_timeout), aclosing(run.say(take, joint)) as blocks:
            async for samples in blocks:
                await self._feed(voicing, own, samples)
        await self._feed(voicing, own, joint.close_piece(0.0, fade=True))
        self.now = None
        if line is None:
            self._send(await own.finish())
        times = run.segments[-1]
        self.out.event(
            "audio.done",
            utterance_index=self.index,
            sentence_index=index,
            total_bytes=self.bytes - before,
            start=round(times.start, 4),
            end=round(times.end, 4),
            start_char=times.start_char,
            end_char=times.end_char,
            finish_reason=take.finish,
            error=False,
        )

    def _line(self, voicing: Voicing) -> Line:
        pool = None if self.plan.output.format in INLINE else self.server.kitchen.pool
        return Line(self.plan.output, voicing.run.spec.sample_rate, not self.settings.stream_audio, pool)

    async def _feed(self, voicing: Voicing, line: Line, samples: np.ndarray) -> None:
        if not len(samples):
            return
        voicing.run.tally.samples += len(samples)
        voicing.playback.add(samples)
        self.spoke = time.monotonic()
        self._send(await line.feed(samples))

    def _send(self, data: bytes) -> None:
        if data:
            self.bytes += len(data)
            self.out.audio(data, self.settings.encoding, self.index)

    async def _failed(self, error: ApiError) -> None:
        """Say so; what is still written to this utterance is not spoken, and its input.done is answered."""
        action = {"partial_audio": self.bytes > 0, "action": "discard", "utterance_index": self.index}
        self.out.error(error, **action)
        async for _ in self.feed.pieces():
            pass
        self._done(total_sentences=self.pieces, finish_reason="error")

    def _done(self, **body: Any) -> None:
        self.out.event("session.done", utterance_index=self.index, **{"request_id": self.plan.id, **body})

    def heard(self, played_ms: float | None) -> dict[str, Any]:
        """What a listener who plays at once has heard: `played_ms` as the client knows it, else by the clock."""
        body: dict[str, Any] = {"utterance_index": self.index, "request_id": self.plan.id}
        voicing = self.voicing
        if voicing is None:
            return {**body, "heard_ms": 0, "spoken_ms": 0, "text_index": 0, "heard_text": ""}
        playback = voicing.playback
        seconds = playback.heard if played_ms is None else min(playback.sent, played_ms / 1000)
        now = None if self.now is None else (self.now[0].piece, self.now[1])
        index = place(voicing.run.segments, now, seconds)
        return {
            **body,
            "heard_ms": round(seconds * 1000),
            "spoken_ms": round(playback.sent * 1000),
            "text_index": index,
            "heard_text": self.feed.text[:index],
        }
