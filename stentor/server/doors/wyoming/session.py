"""A connection of a Wyoming client: it asks what there is, and has text spoken, at once or while it is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, SelectProgram
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

from stentor.errors import InvalidRequest
from stentor.server.backpressure import Disconnected
from stentor.server.doors.wyoming import frames
from stentor.server.doors.wyoming.info import info
from stentor.server.errors import ApiError, from_pydantic, invalid, translate
from stentor.server.ignored import Ignored
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Shared, Text
from stentor.server.sessions import CloseSession, Outbox, Session
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

MAX_WAITING = LIMITS.ws_waiting  # texts that wait for the one that is being spoken
FIRST_SECONDS = LIMITS.ws_config_seconds  # for the first event
PCM = {"width": 2, "channels": 1}  # bytes of a sample


class Voice(Body):
    """A voice as clients name it."""

    name: str | None = Field(None, max_length=LIMITS.name_chars)
    language: str | None = Field(None, max_length=LIMITS.name_chars)
    speaker: str | None = Field(None, max_length=LIMITS.name_chars)


class Start(Body):
    """Data of synthesize-start. SSML is read in any text."""

    voice: Voice | None = None
    text_format: Literal["text", "ssml"] = "text"
    context: Any = None


class Whole(Start):
    """Data of synthesize."""

    text: Text


class Chunk(Body):
    """Data of synthesize-chunk."""

    text: Text


class Spoken(LiveSpeech):
    """A text, and the events that its client gets. bit_by_bit: it is written while it is spoken."""

    def __init__(self, session: WyomingSession, plan: SpeechPlan, id: str, bit_by_bit: bool) -> None:
        super().__init__(session.server, plan, id)
        self.session, self.bit_by_bit = session, bit_by_bit
        self.begun = False

    def segment_begins(self, index: int, segment: Segment) -> None:
        self._begin()

    def audio(self, data: bytes) -> None:
        self.session.send(AudioChunk(self.plan.output.rate, audio=data, **PCM).event(), audio=True)

    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        return

    def failure(self, error: ApiError) -> None:
        self.session.stop(CloseSession(1011, error))

    def end(self, running: RunningRequest | None) -> None:
        self._begin()
        stop = AudioStop().event()
        stop.data |= self.plan.ignored.as_json()
        self.session.send(stop)
        if self.bit_by_bit:
            self.session.send(SynthesizeStopped().event())

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            start = AudioStart(self.plan.output.rate, **PCM).event()
            start.data |= self.plan.output.marks.as_json()
            self.session.send(start)


class WyomingSession(Session):
    """One connection. Texts are spoken in their order. An event that is refused ends it, as a client would wait for
    the audio of it."""

    def __init__(self, server: Server, id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(server, id)
        self.reader, self.writer = reader, writer
        self.out = Outbox(self._write, self.max_buffered)
        self.events: asyncio.Queue[Event] = asyncio.Queue(1)
        self.model: str | None = None
        self.count = 0
        self.writing: Spoken | None = None  # takes the text that arrives
        self.last: Spoken | None = None  # being spoken, or spoken last
        self.waiting: asyncio.Queue[Spoken] = asyncio.Queue()
        self.speaking = self.known = False  # known: an event has come

    # -- the connection --

    @property
    def busy(self) -> bool:
        if self.speaking:
            return self.last is None or not self.last.waiting_for_text
        return not self.waiting.empty()

    @property
    def patience(self) -> tuple[float, str]:
        return (self.config.ws_idle_seconds if self.known else FIRST_SECONDS), "idle_timeout"

    @property
    def connected(self) -> bool:
        return not self.writer.is_closing()

    async def open(self) -> None:
        return

    def parts(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self._read_events(), self._speak()

    async def _read_events(self) -> None:
        """Read on while an event is handled or text is spoken, so that it is known when the client leaves."""
        while (event := await self._read_event()) is not None:
            await self.events.put(event)
        raise CloseSession(1000)

    async def _read_event(self) -> Event | None:
        try:
            return await frames.read(self.reader)
        except ApiError as e:
            raise CloseSession(1008, e) from e

    async def receive(self) -> Event:
        event = await self.events.get()
        self.known = True
        return event

    async def hang_up(self, code: int, reason: str) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    async def _write(self, frame: str | bytes) -> None:
        assert isinstance(frame, bytes)
        try:
            self.writer.write(frame)
            await self.writer.drain()
        except ConnectionError as e:
            raise Disconnected from e

    def send(self, event: Event, audio: bool = False) -> None:
        """Queue an event."""
        self.out.put(frames.encoded(event), audio)

    def report(self, error: ApiError) -> None:
        self.send(Error(error.message, error.code).event())

    # -- events --

    async def handle(self, message: Event) -> None:
        try:
            await self._handle(message)
        except ValidationError as e:
            raise CloseSession(1008, from_pydantic(e)) from None
        except (ApiError, InvalidRequest, TimeoutError) as e:
            raise CloseSession(1008, translate(e)) from e

    async def _handle(self, event: Event) -> None:
        kind, data = event.type, event.data
        if Describe.is_type(kind):
            self.send((await asyncio.to_thread(info, self.server)).event())
        elif Ping.is_type(kind):
            text = data.get("text")
            self.send(Pong(text if isinstance(text, str) else None).event())
        elif SelectProgram.is_type(kind):
            self.model = self.server.hosts.named(str(data.get("name"))).name
        elif Synthesize.is_type(kind):
            if self.writing is None:  # else it repeats what came bit by bit, for servers that do not take that
                whole = Whole.model_validate(data)
                self._check_length(whole.text)
                (await self._begin(whole, bit_by_bit=False)).feed.end(whole.text)
        elif SynthesizeStart.is_type(kind):
            self._end_writing()
            self.writing = await self._begin(Start.model_validate(data), bit_by_bit=True)
        elif SynthesizeChunk.is_type(kind):
            self._append(Chunk.model_validate(data).text)
        elif SynthesizeStop.is_type(kind):
            self._end_writing()
        # others are of other services, and the protocol wants them dropped

    def _append(self, text: str) -> None:
        if self.writing is None:
            raise invalid("type", "synthesize-chunk needs synthesize-start before it")
        self._check_length(self.writing.feed.text + text)
        self.writing.feed.write(text)

    def _end_writing(self) -> None:
        if self.writing is not None:
            self.writing.feed.end()
            self.writing = None

    def _check_length(self, text: str) -> None:
        limit = self.config.max_input_chars
        if len(text) > limit:
            raise invalid("text", f"has {len(text)} characters, at most {limit}", "text_too_long")

    async def _begin(self, start: Start, bit_by_bit: bool) -> Spoken:
        """A text in its turn."""
        if self.waiting.qsize() >= MAX_WAITING:
            raise ApiError(429, f"{MAX_WAITING} texts are waiting already", code="too_many_utterances")
        ignored, named = Ignored(self.config.strict), start.voice
        for name in [*(start.model_extra or {}), *(["context"] if start.context else [])]:
            ignored.field(name, "means nothing for speech from text")
        voice = {} if named is None else {"voice": named.name, "speaker": named.speaker, "language": named.language}
        body = Shared.model_validate({"model": self.model, "response_format": "pcm", **voice})
        async with asyncio.timeout(self.config.request_timeout):
            plan = await self.server.planner.live(body, self.id, word_timestamps=False)
        plan.ignored.extend(ignored)
        spoken = Spoken(self, plan, f"{self.id}-{self.count}", bit_by_bit)
        self.count += 1
        self.waiting.put_nowait(spoken)
        return spoken

    async def _speak(self) -> None:
        while True:
            self.last = await self.waiting.get()
            self.speaking = True
            try:
                await self.last.speak()
            finally:
                self.speaking = False
                self.last_active = time.monotonic()
