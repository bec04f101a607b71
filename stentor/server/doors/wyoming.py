"""Wyoming, the protocol of Home Assistant's voice services, over TCP: a client queries models and
voices, and has text spoken, at once or while it is written.

Events on the wire have bounds here. The reader of the package `wyoming` accepts any announced
length. The protocol has no keys, so it is not served beside `--api-key`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import orjson
from pydantic import Field
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Attribution, Describe, Info, SelectProgram, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
)

import stentor
from stentor.errors import InvalidRequest
from stentor.server.backpressure import Disconnected, Outbox
from stentor.server.errors import ApiError, invalid, translate, validated
from stentor.server.http.middleware import write_access
from stentor.server.limits import LIMITS
from stentor.server.logs import REQUEST_ID
from stentor.server.model_hosts import ModelHost
from stentor.server.schemas import Body, Ignored, Shared, Text
from stentor.server.sessions import CloseSession, Session, counted, refusal
from stentor.server.speech.fields import code_of, codes
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import NO_WORD_TIMES, SpeechPlan
from stentor.server.state import Server
from stentor.server.voices.voice import own_voices
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

log = logging.getLogger("stentor.server")

MAX_BYTES = LIMITS.ws_message_kib << 10  # of the line of an event, of its data, and of its payload
SOURCE = Attribution("stentor", "")
AT = "@"  # between a voice and the language that it is listed for
MAX_WAITING = LIMITS.ws_waiting  # texts that wait for the one that is being spoken
FIRST_SECONDS = LIMITS.ws_config_seconds  # for the first event
PCM = {"width": 2, "channels": 1}  # bytes of a sample


async def read(reader: asyncio.StreamReader) -> Event | None:
    """The next event, None at the end. A payload is passed over. Raises ApiError for invalid data,
    after which nothing can be read. The reader's limit bounds the line."""
    try:
        line = await reader.readline()
        if not line:
            return None
        head = _object(line)
        data = head.get("data") or {}
        if not isinstance(data, dict):
            raise _malformed("its data must be an object")
        if size := _size(head, "data_length"):
            data |= _object(await reader.readexactly(size))
        if size := _size(head, "payload_length"):
            await reader.readexactly(size)
    except ValueError:  # asyncio's, for a line beyond the limit
        raise ApiError(
            413, f"an event is larger than {LIMITS.ws_message_kib} KiB", code="message_too_large"
        ) from None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    kind = head.get("type")
    if not isinstance(kind, str):
        raise _malformed("it has no type")
    return Event(kind, data)


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:  # a ValueError too
        raise _malformed("it is not valid JSON") from None
    if not isinstance(value, dict):
        raise _malformed("it is not a JSON object")
    return value


def _size(head: dict[str, Any], name: str) -> int:
    size = head.get(name) or 0
    if not isinstance(size, int) or size < 0:
        raise _malformed(f"{name} must be a whole number")
    if size > MAX_BYTES:
        message = f"{name} is more than {LIMITS.ws_message_kib} KiB"
        raise ApiError(413, message, code="message_too_large")
    return size


def _malformed(why: str) -> ApiError:
    return ApiError(400, f"this is not an event of Wyoming: {why}", code="invalid_message")


def encoded(event: Event) -> bytes:
    """An event as it is sent."""
    if event.data:
        data = orjson.dumps(event.data)
    else:
        data = b""
    payload = event.payload or b""
    head = {"type": event.type, "data_length": len(data), "payload_length": len(payload)}
    return orjson.dumps({k: v for k, v in head.items() if v}) + b"\n" + data + payload


def info(server: Server) -> Info:
    """A program for each model. ApiError 503 while one has not been loaded yet. It reads the folder
    of voices."""
    return Info(tts=[_program(server, host) for host in server.hosts.all])


def _program(server: Server, host: ModelHost) -> TtsProgram:
    spec = host.spec
    names = dict.fromkeys(own_voices(spec.voices, server.config.aliases), "")
    if spec.takes_reference or spec.speaker_size:
        names |= {v.name: v.description or "" for v in server.voices.list() if v.name not in names}
    # without a list, the model takes any
    languages = [code_of(name) for name in spec.languages] or codes()
    voices = [
        TtsVoice(id, SOURCE, True, names[name] or name, stentor.__version__, spoken)
        for id, name, spoken in _by_language(list(names), languages)
    ]
    return TtsProgram(
        host.name,
        SOURCE,
        True,
        f"{host.name}, spoken by stentor",
        stentor.__version__,
        voices,
        supports_synthesize_streaming=True,
    )


def _by_language(names: list[str], languages: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Voices as a client lists them: the name that it sends, the voice's own name, its languages.

    A client that names a voice cannot name a language (`SynthesizeVoice.to_dict`). So a voice that
    speaks several is listed once for each, as `name@code`, unless those are too many.
    """
    if len(languages) == 1 or len(names) * len(languages) > LIMITS.wyoming_voices:
        yield from ((name, name, languages) for name in names)
        return
    for name in names:
        yield from ((f"{name}{AT}{code}", name, [code]) for code in languages)


class Voice(Body):
    """A voice as clients name it. name: may end in the language that it was listed for."""

    name: str | None = Field(None, max_length=LIMITS.name_chars)
    language: str | None = Field(None, max_length=LIMITS.name_chars)
    speaker: str | None = Field(None, max_length=LIMITS.name_chars)

    def speech_fields(self) -> dict[str, str | None]:
        """The voice and its language as fields of a speech request."""
        name, _, code = (self.name or "").partition(AT)
        return {
            "voice": name or None,
            "speaker": self.speaker,
            "language": code or self.language,
        }


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

    def __init__(
        self, session: WyomingSession, plan: SpeechPlan, id: str, bit_by_bit: bool
    ) -> None:
        super().__init__(session.server, plan, id)
        self.session = session
        self.bit_by_bit = bit_by_bit
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
            start.data |= {"request_id": self.plan.id, **self.plan.output.marks.as_json()}
            self.session.send(start)


class WyomingSession(Session):
    """One connection. Texts are spoken in their order. An event that is refused ends it, as a
    client would wait for the audio of it."""

    def __init__(
        self, server: Server, id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(server, id)
        self.reader = reader
        self.writer = writer
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
        """Read on while an event is handled or text is spoken, so that it is known when the client
        leaves."""
        try:
            while (event := await read(self.reader)) is not None:
                await self.events.put(event)
        except ApiError as e:
            raise CloseSession(1008, e) from e
        raise CloseSession(1000)

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
        self.out.put(encoded(event), audio)

    def report(self, error: ApiError) -> None:
        self.send(Error(error.message, error.code).event())

    # -- events --

    async def handle(self, message: Event) -> None:
        try:
            await self._handle(message)
        except (ApiError, InvalidRequest, TimeoutError) as e:
            raise CloseSession(1008, translate(e)) from e

    async def _handle(self, event: Event) -> None:
        kind = event.type
        data = event.data
        if Describe.is_type(kind):
            self.send((await asyncio.to_thread(info, self.server)).event())
        elif Ping.is_type(kind):
            text = data.get("text")
            self.send(Pong(text if isinstance(text, str) else None).event())
        elif SelectProgram.is_type(kind):
            self.model = self.server.hosts.named(str(data.get("name"))).name
        elif Synthesize.is_type(kind):
            # else it repeats what came bit by bit, for servers that do not take that
            if self.writing is None:
                utterance = validated(Whole, data)
                self.check_length(utterance.text)
                spoken = await self._begin(utterance, bit_by_bit=False)
                await spoken.feed.end(utterance.text)
        elif SynthesizeStart.is_type(kind):
            await self._end_writing()
            self.writing = await self._begin(validated(Start, data), bit_by_bit=True)
        elif SynthesizeChunk.is_type(kind):
            await self._append(validated(Chunk, data).text)
        elif SynthesizeStop.is_type(kind):
            await self._end_writing()
        # others are of other services, and the protocol wants them dropped

    async def _append(self, text: str) -> None:
        if self.writing is None:
            raise invalid("type", "synthesize-chunk needs synthesize-start before it")
        self.check_length(self.writing.feed.text + text)
        await self.writing.feed.write(text)

    async def _end_writing(self) -> None:
        if self.writing is not None:
            await self.writing.feed.end()
            self.writing = None

    async def _begin(self, start: Start, bit_by_bit: bool) -> Spoken:
        """A text in its turn."""
        if self.waiting.qsize() >= MAX_WAITING:
            raise ApiError(
                429, f"{MAX_WAITING} texts are waiting already", code="too_many_utterances"
            )
        ignored = Ignored(self.config.strict)
        voice_field = start.voice
        for name in [*(start.model_extra or {}), *(["context"] if start.context else [])]:
            ignored.field(name, "means nothing for speech from text")
        voice = {} if voice_field is None else voice_field.speech_fields()
        body = validated(Shared, {"model": self.model, "response_format": "pcm", **voice})
        async with asyncio.timeout(self.config.request_timeout):
            plan = await self.server.planner.live(body, self.id, NO_WORD_TIMES)
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


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[None]:
    """Take clients inside, until the server drains. OSError: the port cannot be had."""
    config = server.config
    sessions = set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        sessions.add(task)
        id = "req-" + secrets.token_hex(12)
        began = time.monotonic()
        status = 500
        REQUEST_ID.set(id)
        try:
            status = await _serve(server, id, reader, writer)
        finally:
            sessions.discard(task)
            # what was to be sent has been sent, or the client does not read it
            writer.transport.abort()
            if config.log_requests:
                scope = {
                    "method": "WYOMING",
                    "path": "/",
                    "client": writer.get_extra_info("peername"),
                }
                write_access(scope, status, time.monotonic() - began)

    async def drained() -> None:
        await server.drain.wait()
        listener.close()

    if config.api_processes > 1:
        reuse_port = True
    else:
        reuse_port = None
    listener = await asyncio.start_server(
        connected, config.host, config.wyoming_port, limit=MAX_BYTES, reuse_port=reuse_port
    )
    server.wyoming_port = listener.sockets[0].getsockname()[1]
    log.info("Wyoming on tcp://%s:%d", config.host, server.wyoming_port)
    draining = asyncio.create_task(drained())
    try:
        yield
    finally:  # sessions have ended by themselves once the server drains
        tasks = [*sessions, draining]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listener.close()


async def _serve(
    server: Server, id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> int:
    """Run a session. Returns a status of HTTP for the log."""
    session = WyomingSession(server, id, reader, writer)
    refused = refusal(server)
    if refused is None:
        with counted(server, session):
            await session.run()
        return 200
    session.report(refused)
    async with asyncio.timeout(server.limits.flush_seconds):
        await session.out.flush()
        await session.hang_up(1008, "")
    return refused.status
