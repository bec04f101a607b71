"""WS /v1/audio/speech/stream: text arrives while audio is sent, and a cancel reports how much was
played.

docs/serving/streaming.md has the protocol. Names are vLLM-Omni's, with SGLang-Omni's commit and
nari's cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, MutableMapping, Sequence
from typing import Any

from fastapi import APIRouter, WebSocket

from stentor.server.errors import ApiError, invalid, validated
from stentor.server.limits import LIMITS
from stentor.server.schemas import Ignored
from stentor.server.sessions import CloseSession, SocketSession, check_size, read_json, serve
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server
from stentor.server.wire_json import json_response, loads_with_halves, may_hold_halves
from stentor.server.ws.utterance import (
    KINDS,
    Append,
    Cancel,
    Close,
    Commit,
    Configure,
    Done,
    Message,
    MessageSender,
    Utterance,
)

router = APIRouter()

CONFIG_SECONDS = LIMITS.ws_config_seconds  # for the first message
MAX_WAITING = LIMITS.ws_waiting  # utterances that wait for the one that is being spoken


@router.websocket("/v1/audio/speech/stream")
async def stream(ws: WebSocket) -> None:
    """One session, as docs/serving/streaming.md describes it."""
    await serve(ws, Session)


@router.websocket("/{path:path}")
async def nothing(ws: WebSocket, path: str) -> None:
    """404 for a WebSocket elsewhere. It would be a 403, as for a page of another origin."""
    error = ApiError(
        404, f"there is no WebSocket at /{path[:80]}; it is at /v1/audio/speech/stream"
    )
    await ws.send_denial_response(json_response(error.body, error.status, error.headers))


class Session(SocketSession):
    """A connection. It has one configuration at a time and speaks utterances in the order they were
    written."""

    out: MessageSender

    def __init__(self, ws: WebSocket, server: Server) -> None:
        super().__init__(ws, server)
        self.out = MessageSender(ws, self.max_buffered)
        self.configured: tuple[SpeechPlan, Configure] | None = None
        self.count = 0
        self.writing: Utterance | None = None  # takes the text that arrives
        self.last: Utterance | None = None  # being spoken, or spoken last
        self.waiting: asyncio.Queue[Utterance | None] = asyncio.Queue()  # None: close the session
        self.speaking: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being spoken, or will be without another message."""
        if self.speaking is not None:
            return self.last is None or not self.last.waiting_for_text
        return not self.waiting.empty()

    @property
    def patience(self) -> tuple[float, str]:
        if self.configured is None:
            return CONFIG_SECONDS, "config_timeout"
        return self.config.ws_idle_seconds, "idle_timeout"

    def report(self, error: ApiError) -> None:
        self.out.error(error)

    def parts(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._speak(),)

    # -- from the client --

    async def handle(self, message: MutableMapping[str, Any]) -> None:
        await self._handle(parse(message))

    async def _handle(self, message: Message) -> None:
        if not isinstance(message, Configure):
            _note_unknown(message, Ignored(self.config.strict))
        match message:
            case Configure():
                await self._configure(message)
            case Close():
                if self.writing is not None:
                    await self.writing.feed.end()
                    self.writing = None
                self.waiting.put_nowait(None)  # once everything has been spoken
            case _ if self.configured is None:
                raise CloseSession(
                    1008,
                    ApiError(
                        400, "type: the first message must be session.config", code="no_config"
                    ),
                )
            case Append():
                await self._append(message)
            case Commit():
                if self.writing is not None:
                    await self.writing.feed.flush()
                if message.commit_id is None:
                    commit = {}
                else:
                    commit = {"commit_id": message.commit_id}
                self.out.event("input.committed", utterance_index=self._index, **commit)
            case Done():
                await self._open().feed.end()
                self.writing = None
            case Cancel():
                await self._cancel(message)

    @property
    def _index(self) -> int:
        if self.writing is None:
            return self.count
        return self.writing.index

    async def _configure(self, settings: Configure) -> None:
        if self.writing is not None or self.speaking is not None or not self.waiting.empty():
            raise ApiError(
                409, "session.config: wait for session.done, or cancel", code="session_busy"
            )
        words = self.server.planner.word_times(settings, settings.word_timestamps)
        plan = await self.planned(settings, words)
        self.configured = plan, settings
        self.out.event(
            "session.configured",
            session_id=self.id,
            model=plan.host.name,
            response_format=plan.output.format,
            sample_rate=plan.output.rate,
            channels=1,
            stream_audio=settings.streams(plan.output.format),
            split_granularity=settings.split_granularity,
            **plan.ignored.as_json(),
        )

    async def _append(self, message: Append) -> None:
        limit = self.config.max_input_chars
        if self.writing is None:
            size = 0
        else:
            size = len(self.writing.feed.text)
        if size + len(message.text) > limit:
            raise invalid(
                "text", f"the utterance has more than {limit} characters", "text_too_long"
            )
        utterance = self._open()
        _note_unknown(message, utterance.plan.ignored)
        await utterance.feed.write(message.text)
        if message.sequence is not None:
            self.out.event("input.ack", sequence=message.sequence, utterance_index=self._index)

    def _open(self) -> Utterance:
        """The utterance that takes text now."""
        if self.writing is None:
            assert self.configured is not None
            if self.waiting.qsize() >= MAX_WAITING:
                raise ApiError(
                    429, f"{MAX_WAITING} utterances are waiting already", code="too_many_utterances"
                )
            self.writing = Utterance(
                self.server, self.out, *self.configured, self.count, self.traceparent
            )
            self.count += 1
            self.waiting.put_nowait(self.writing)
        return self.writing

    async def _cancel(self, message: Cancel) -> None:
        """Drop waiting utterances, stop the current one, and report how much of it was played. A
        session.close that was sent before still counts."""
        closes = False
        while not self.waiting.empty():
            closes |= self.waiting.get_nowait() is None
        self.writing = None
        utterance = self.last
        seconds = 0.0
        if utterance is not None:
            seconds = utterance.played_seconds(message.played_ms)  # before it takes time to stop
        if self.speaking is not None:
            self.speaking.cancel()
            await asyncio.wait([self.speaking])
        self.out.drop_audio()
        if utterance is None:
            report = {}
        else:
            report = await utterance.played_report(seconds)
        self.out.event("response.cancelled", **report)
        if closes:
            self.waiting.put_nowait(None)

    # -- to the client --

    async def _speak(self) -> None:
        while True:
            utterance = await self.waiting.get()
            if utterance is None:
                raise CloseSession(1000)
            self.last = utterance
            self.speaking = self.begin(utterance.speak())
            try:
                await asyncio.wait([self.speaking])
            finally:
                if self.speaking.done():
                    self.speaking = None


def _note_unknown(message: Message, ignored: Ignored) -> None:
    """Note the fields of a message that are not known. ApiError in a strict server."""
    for name in message.model_extra or {}:
        ignored.field(name, f"is not a field of {message.type}")


def parse(message: Mapping[str, Any]) -> Message:
    """Parse a WebSocket frame. Raises ApiError if it is invalid. CloseSession 1009: it is too
    large."""
    value = read_json(message)
    if isinstance(value, dict):
        kind = value.get("type")
    else:
        kind = None
    if not isinstance(kind, str) or kind not in KINDS:
        raise invalid("type", f"must be one of {', '.join(KINDS)}", "invalid_message")
    if kind != "session.config":
        check_size(message, kind)
    parsed = validated(KINDS[kind], value)
    # the other half may be in the next message
    if isinstance(parsed, Append) and may_hold_halves(message["text"]):
        return parsed.model_copy(update={"text": loads_with_halves(message["text"])["text"]})
    return parsed
