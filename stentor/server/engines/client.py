"""The API process's side of the border: requests of one engine, wherever it runs. It imports no
torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np

from stentor import request
from stentor.audio import Recording
from stentor.engine.health import Health
from stentor.engine.once import LruCache
from stentor.engine.scheduling.sequence import Place
from stentor.engine.stream import Chunk
from stentor.errors import EngineError, InvalidRequest, Overloaded, StentorError
from stentor.models.info import Adapter, ModelInfo, ReferenceAudio, SpeechRequest
from stentor.server.engines import messages as m
from stentor.server.engines.open_requests import OpenRequests
from stentor.server.limits import LIMITS

Send = Callable[[m.Command, Sequence[np.ndarray]], None]
"""Give the engine a command and the arrays that it announces. EngineError if it is gone."""

COMMAND_BYTES = 512
"""Bytes of a command without its text and its arrays, about."""

RECORDINGS_BYTES = LIMITS.voice_cache_mb << 20
"""Recordings that an engine keeps, in bytes, so that each crosses the border once."""


@dataclass(frozen=True)
class Facts:
    """Facts about a request once its prompt is made. With live text, as of the last audio."""

    tokens: int
    audio_tokens: int
    runaway_frames: int | None
    words: tuple[range, ...]


class EngineStream:
    """Audio of one request, by `async for` in one reader, as `engine.stream.AudioStream` has it
    to threads."""

    def __init__(self, client: EngineClient, id: int, resend: Callable[[], None]) -> None:
        """resend: submit it again, with all of its recordings."""
        self.id = id
        self.client = client
        self.resend = resend
        self.ended = False
        self.sent: float = time.monotonic()
        self.moments: tuple[
            float, ...
        ] = ()  # of a traced request, once it has audio (messages.Audio)
        self.facts: Facts | None = None
        self._accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._events: deque[tuple[Chunk, Facts] | StentorError] = deque()
        self._ready = asyncio.Event()

    async def accepted(self) -> Facts | None:
        """Wait until the request is queued. None: there is nothing in its text that the model can
        speak.

        InvalidRequest for what only the family can judge, Overloaded if the queue is full,
        EngineError."""
        if await self._accepted:
            return self.facts
        return None

    def append(self, text: str, last: bool = False) -> None:
        """Add text to a live request. Nothing follows the `last`. Text that does not fit ends the
        request."""
        self.client.send(m.Append(self.id, text, last))

    def cancel(self) -> None:
        """End the request, if it has not ended, and forget it."""
        self.client.cancel(self)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while True:
            while not self._events:
                self._ready.clear()
                await self._ready.wait()
            event = self._events.popleft()
            if isinstance(event, StentorError):
                raise event
            chunk, self.facts = event
            yield chunk
            if chunk.finish is not None:
                return

    def accept(self, facts: Facts | None) -> None:
        """Note that the request is queued, or with None that it cannot be spoken."""
        self.facts = facts
        if not self._accepted.done():
            self._accepted.set_result(facts is not None)

    def put(self, event: tuple[Chunk, Facts] | StentorError) -> None:
        """Add an event. The last is a chunk with `finish`, or an error."""
        if isinstance(event, StentorError) and not self._accepted.done():
            self._accepted.set_exception(event)
            self._accepted.exception()  # a reader of the chunks alone has it from there
        self._events.append(event)
        self._ready.set()


class EngineClient:
    """Requests to one engine, from the event loop of an API process."""

    def __init__(
        self,
        name: str,
        api: int,
        send: Send,
        unsent: Callable[[], int] = lambda: 0,
        open_requests: OpenRequests | None = None,
    ) -> None:
        """name: what errors call the model. api: the number of this API process. unsent: bytes that
        the engine has not read. open_requests: of all API processes, to this engine."""
        self.name = name
        self.health: Health | None = None  # of the last beat
        self.lost: EngineError | None = None  # why nothing is taken any more
        self._loop = asyncio.get_running_loop()
        self.beat_at = self._loop.time()
        self.adapters: dict[str, Adapter] = {}  # that are loaded, by name
        self._send = send
        self._unsent = unsent
        self._api = api
        self._ids = itertools.count(api << m.API_BITS)
        self._open: dict[int, EngineStream] = {}
        self._open_requests = open_requests or OpenRequests()
        self._calls: dict[int, asyncio.Future[m.Result]] = {}
        self._sent: LruCache[int] = LruCache(
            RECORDINGS_BYTES, float
        )  # bytes of the recordings that the engine has
        self.ready: asyncio.Future[m.Ready] = asyncio.get_running_loop().create_future()

    @property
    def info(self) -> ModelInfo:
        """Facts about the model, once it is ready."""
        return self.ready.result().info

    @property
    def open(self) -> int:
        """Requests of all API processes that have not ended."""
        return self._open_requests.total

    def send(self, command: m.Command, arrays: Sequence[np.ndarray] = ()) -> None:
        """Send a command. If the engine is gone, nothing happens: open requests end by
        themselves."""
        if self.lost is None:
            self._send(command, arrays)

    # -- requests --

    def request(self, text: str, lora: str | None = None, **options: Any) -> SpeechRequest:
        """Check a request, as `TTS.request` does. InvalidRequest names the field that is wrong."""
        fields = {k: options.pop(k) for k in request.NAMED if k in options}
        if lora is None:
            adapter = None
        else:
            adapter = self.adapter(lora)
        return request.build(
            self.info, text, model=self.name, lora=adapter, options=options, **fields
        )

    def adapter(self, name: str) -> Adapter:
        """The loaded adapter of a name. InvalidRequest if there is none."""
        if name not in self.adapters:
            loaded = ", ".join(self.adapters) or "none"
            raise InvalidRequest("lora", f"{name[:80]!r} is not loaded; loaded: {loaded}")
        return self.adapters[name]

    def submit(
        self,
        req: SpeechRequest,
        streaming: bool,
        place: Place = Place.NEW,
        check_only: bool = False,
        request_id: str = "",
        traced: bool = False,
    ) -> EngineStream:
        """Queue a request, or with `check_only` have its prompt made. EngineError if the engine is
        gone. The stream raises Overloaded if the engine does not read."""
        if self.lost is not None:
            raise self.lost
        vector = req.speaker_embedding
        command = m.Submit(
            id=next(self._ids),
            text=req.text,
            voice=req.voice,
            language=req.language,
            instructions=req.instructions,
            references=[],
            prompt=None,
            recordings=[],
            speaker_embedding=None if vector is None else vector.tobytes(),
            live=req.live,
            seed=req.seed,
            options=dict(req.options),
            adapter=None if req.lora is None else req.lora.number,
            streaming=streaming,
            place=place.value,
            check_only=check_only,
            request_id=request_id,
            traced=traced,
            speed=req.speed,
        )
        resend = partial(self._send_submit, command, req, every_recording=True)
        stream = self._open[command.id] = EngineStream(self, command.id, resend)
        self._open_requests.note(len(self._open))
        if self._unsent() > LIMITS.unsent_mb << 20:
            self._close(stream)
            stream.put(Overloaded(f"the engine of {self.name} does not read its requests"))
        else:
            self._send_submit(command, req)
        return stream

    def _send_submit(
        self, command: m.Submit, req: SpeechRequest, every_recording: bool = False
    ) -> None:
        """Send a command with the recordings that the engine lacks, or with all of them."""
        references = [r for r in (req.reference, *req.more_references) if r is not None]
        prompts = [r for r in (req.prompt,) if r is not None]
        recordings, samples = self._pack_recordings([*references, *prompts], every_recording)
        sent = [m.SentReference(i, r.text) for i, r in enumerate([*references, *prompts])]
        complete = msgspec.structs.replace(
            command,
            references=sent[: len(references)],
            prompt=sent[-1] if prompts else None,
            recordings=recordings,
        )
        self.send(complete, samples)

    def _pack_recordings(
        self, references: Sequence[ReferenceAudio], every_recording: bool
    ) -> tuple[list[m.SentRecording], list[np.ndarray]]:
        """The recording of each reference, and the samples of those that go along."""
        recordings: list[m.SentRecording] = []
        samples: list[np.ndarray] = []
        for reference in references:
            recording = reference.recording
            size = 0
            if every_recording or not self._note_sent(recording):
                size = len(recording.samples)
                samples.append(recording.samples)
            source = recording.digest.rpartition(" ")[0]
            recordings.append(
                m.SentRecording(recording.digest, recording.rate, source, recording.cacheable, size)
            )
        return recordings, samples

    async def check(self, req: SpeechRequest) -> None:
        """Have a request's prompt made, and no more. InvalidRequest for what only the family can
        judge."""
        stream = self.submit(req, True, check_only=True)
        try:
            await stream.accepted()
        finally:
            stream.cancel()

    def _note_sent(self, recording: Recording) -> bool:
        """Whether the engine probably has a recording. If not, it has it from now on."""
        key = recording.digest
        if not recording.cacheable:
            return False
        was_sent = self._sent.get(key) is not None
        self._sent.put(key, recording.samples.nbytes)
        return was_sent

    def cancel(self, stream: EngineStream) -> None:
        """End a request, if it has not ended."""
        if not stream.ended:
            self._close(stream)
            self.send(m.Cancel(stream.id))

    # -- calls --

    async def speakable(self, texts: Sequence[str]) -> list[bool]:
        """Return which texts the model can speak anything of. EngineError if the engine is
        gone."""
        return (await self._call(lambda call: m.Speakable(call, list(texts)))).speakable

    async def load_lora(self, name: str, path: str) -> None:
        """Load an adapter. InvalidRequest and CheckpointError as `TTS.load_lora` raises them."""
        await self._call(lambda call: m.LoadLora(call, name, path))

    async def unload_lora(self, name: str) -> None:
        """Refuse an adapter's name from now on. Requests that have it keep it."""
        await self._call(lambda call: m.UnloadLora(call, name))

    async def refresh(self) -> None:
        """Update `health` if the engine answers soon."""
        if self._unsent():  # nobody would read the question
            return
        try:
            async with asyncio.timeout(LIMITS.health_seconds):
                await self._call(m.AskHealth)
        except (TimeoutError, EngineError):
            return

    async def _call(self, command: Callable[[int], m.Command]) -> m.Result:
        if self.lost is not None:
            raise self.lost
        number = next(self._ids)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(command(number))
            result: m.Result = await answer
        finally:
            del self._calls[number]
        if result.error is not None:
            raise m.exception(result.error)
        return result

    # -- events --

    def receive(self, events: Sequence[m.Event], data: m.Reader) -> None:
        """Handle what the engine has sent."""
        for event in events:
            self._handle(event, data)

    def _handle(self, event: m.Event, data: m.Reader) -> None:
        match event:
            case m.Audio():
                self._audio(event, data)
            case m.Accepted() | m.Unspeakable() | m.Resend() | m.Ended():
                if (stream := self._open.get(event.id)) is not None:
                    self._note(stream, event)
            case m.Result():
                answer = self._calls.get(event.call)
                if answer is not None and not answer.done():
                    answer.set_result(event)
            case m.Beat():
                self.health = event.health
                self.beat_at = asyncio.get_running_loop().time()
            case m.Adapters():
                self._note_adapters(event.loaded)
            case m.Ready():
                self._note_ready(event)
            case m.Broken():
                self.lose(m.exception(event.error))

    def _note(
        self, stream: EngineStream, event: m.Accepted | m.Unspeakable | m.Resend | m.Ended
    ) -> None:
        """Handle an event of a request that is open."""
        match event:
            case m.Accepted():
                words = tuple(range(*w) for w in event.words)
                stream.accept(Facts(event.tokens, event.audio_tokens, event.runaway_frames, words))
            case m.Unspeakable():
                self._close(stream)
                stream.accept(None)
            case m.Resend():
                stream.resend()
            case m.Ended():
                self._close(stream)
                stream.put(m.exception(event.error))

    def _close(self, stream: EngineStream) -> None:
        """Forget a finished request."""
        del self._open[stream.id]
        self._open_requests.note(len(self._open))
        stream.ended = True

    def _audio(self, event: m.Audio, data: m.Reader) -> None:
        """Pass a chunk on to its stream. Arrays of a stream that has ended are skipped."""
        samples = data.take(event.samples, np.dtype(np.float32))
        frames = data.take(event.frames, self._frame_dtype, self._frame_shape)
        attended = data.take(
            event.frames if event.attended else 0, np.dtype(np.float32), (self._attended,)
        )
        stream = self._open.get(event.id)
        if stream is None or stream.facts is None:
            return
        facts = Facts(
            event.tokens, stream.facts.audio_tokens, event.runaway_frames, stream.facts.words
        )
        if event.finish is not None:
            self._close(stream)
        stream.moments = stream.moments or tuple(event.moments)
        stream.put((Chunk(samples, frames, event.finish, attended), facts))

    def _note_ready(self, event: m.Ready) -> None:
        shape, dtype = event.frame
        self._frame_shape = shape
        self._frame_dtype = np.dtype(dtype)
        self._attended = event.attended
        if not self.ready.done():
            self.ready.set_result(event)
        self._note_adapters(event.adapters)

    def _note_adapters(self, loaded: Sequence[Adapter]) -> None:
        """Take over the loaded adapters. An object stays as long as its slot has the same adapter,
        and the engine is notified once no request holds an unloaded one."""
        previous = self.adapters
        self.adapters = {}
        for adapter in loaded:
            current = previous.get(adapter.name)
            if current is None or current.number != adapter.number:
                current = adapter
                weakref.finalize(current, self._release, current.number).atexit = False
            self.adapters[adapter.name] = current

    def _release(self, number: int) -> None:
        """Report an adapter that no request holds. For any thread: the collector runs in any."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.send, m.ReleaseLora(self._api, number))

    def lose(self, error: StentorError) -> None:
        """Note that the engine is gone: open requests end with `error`, new ones are refused."""
        self.lost = self.lost or (
            error if isinstance(error, EngineError) else EngineError(str(error))
        )
        self.adapters = {}
        for stream in list(self._open.values()):
            self._close(stream)
            stream.put(self.lost)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(self.lost)
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # whoever waits has it from there


class EngineLink(asyncio.Protocol):
    """The socket to an engine's process, and the client that uses it.

    Commands wait here while the engine does not read. Those of a request that is cancelled before
    they are written are dropped, with its recordings.
    """

    def __init__(
        self,
        name: str,
        api: int,
        lost: Callable[[], None] = lambda: None,
        open_requests: OpenRequests | None = None,
    ) -> None:
        """lost: called once the engine is gone. open_requests: as for `EngineClient`."""
        self.client = EngineClient(
            name, api, self._send, lambda: self._waiting_bytes, open_requests
        )
        self._lost = lost
        self._unpacker = m.Unpacker()
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: dict[int, _Waiting] = {}  # in order of their numbers
        self._waiting_bytes = 0
        self._numbers = itertools.count()
        self._paused = True  # until there is a socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass of it
        self.resume_writing()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        while self._waiting and not self._paused:
            number = next(iter(self._waiting))
            waiting = self._waiting.pop(number)
            self._waiting_bytes -= waiting.size
            self._write(waiting.command, waiting.arrays)

    def data_received(self, data: bytes) -> None:
        for parts in self._unpacker.feed(data):
            events, arrays = m.events(parts)
            self.client.receive(events, m.Reader(arrays))

    def connection_lost(self, exc: Exception | None) -> None:
        self.client.lose(EngineError("the engine's process has ended"))
        self._waiting.clear()
        self._waiting_bytes = 0
        self._lost()

    def _send(self, command: m.Command, arrays: Sequence[np.ndarray]) -> None:
        if not self._paused:
            self._write(command, arrays)
            return
        if isinstance(command, m.Cancel) and self._drop(command.id):
            return
        waiting = _Waiting(command, arrays)
        self._waiting[next(self._numbers)] = waiting
        self._waiting_bytes += waiting.size

    def _write(self, command: m.Command, arrays: Sequence[np.ndarray]) -> None:
        if self._transport is not None:
            self._transport.write(m.pack(m.encode([command], arrays)))

    def _drop(self, id: int) -> bool:
        """Forget what waits for a request. Returns whether the engine does not know the request."""
        commands = {
            number: waiting
            for number, waiting in self._waiting.items()
            if isinstance(waiting.command, m.Submit | m.Append) and waiting.command.id == id
        }
        for number, waiting in commands.items():
            del self._waiting[number]
            self._waiting_bytes -= waiting.size
        return any(isinstance(waiting.command, m.Submit) for waiting in commands.values())

    @property
    def drained(self) -> bool:
        """Whether the socket has taken all that was written."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


@dataclass(frozen=True)
class _Waiting:
    """A command that the engine has not read yet."""

    command: m.Command
    arrays: Sequence[np.ndarray]

    @property
    def size(self) -> int:
        """Bytes that it takes until it is written, about."""
        text = 0
        if isinstance(self.command, m.Submit | m.Append):
            text = len(self.command.text)
        return COMMAND_BYTES + text + sum(array.nbytes for array in self.arrays)
