"""The engine's side of the border: commands of API processes become prompts and requests, and their
audio events."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from stentor.audio import Recording
from stentor.engine.once import Claim, LruCache
from stentor.engine.preparation import Preparation
from stentor.engine.requests import Marks
from stentor.engine.scheduling.sequence import Place
from stentor.engine.stream import Chunk, RequestHandle, StreamEvent
from stentor.errors import EngineError, InvalidRequest, StentorError, request_failed
from stentor.models.base import Prompt
from stentor.models.info import Adapter, ReferenceAudio, SpeechRequest
from stentor.server.engines import messages as m
from stentor.server.limits import LIMITS
from stentor.server.logs import REQUEST_ID
from stentor.speech.guard import runaway_frames

if TYPE_CHECKING:
    from stentor.api import TTS

log = logging.getLogger("stentor.engine")

Send = Callable[[int, Sequence[m.Event], Sequence[np.ndarray]], None]
"""Give an API process events and the arrays that they announce. For any thread, one at a time."""

QUICK_CHARS = 1000
"""The prompt of a text of so many characters is made by the thread that has read it, in the order
of the requests: to hand it over to another takes as long as to make it."""


class _Abandoned(Exception):
    """The request was cancelled while its prompt was made."""


class _Open:
    """An open request: its prompt in the making, then its handle. It is the engine's outbox for the
    request."""

    keeps_arrays = False  # a flush copies them into the socket

    def __init__(self, service: EngineService, command: m.Submit) -> None:
        self.service = service
        self.command = command
        self.id = command.id
        self.cancelled = self.ended = False
        self.preparation: Preparation | None = None
        self.prompt: Prompt | None = None
        self.handle: RequestHandle | None = None
        self.texts: list[m.Append] = []  # that came before it was queued
        self.marks = Marks() if command.traced else None
        self.prepared = 0.0  # when its prompt was made

    def put(self, event: StreamEvent) -> None:
        """For the engine, which flushes soon. The last event is a chunk with `finish`, or an
        exception."""
        self.service.put(self, event)

    def moments(self, now: float) -> list[float]:
        """The moments up to this first audio (messages.Audio), in order: the host may read of a
        frame after its audio. A second call returns none."""
        if (marks := self.marks) is None:
            return []
        self.marks = None
        moments = (self.prepared, marks.admitted, marks.prefilled, marks.first_frame, now)
        return [min(now, max(moments[: i + 1])) for i in range(len(moments))]

    def release(self) -> None:
        """Drop references to this. A circle would keep audio and a slot for an adapter until
        it is collected."""
        self.preparation = self.handle = None

    def check(self) -> None:
        """Raise if nobody wants the prompt any more."""
        if self.cancelled:
            raise _Abandoned


class EngineService:
    """Serves the requests of API processes with one model. Commands of each come from one
    thread."""

    def __init__(self, tts: TTS, send: Send, recordings_bytes: float) -> None:
        """recordings_bytes: of recordings that are kept, so that API processes need not send them
        again."""
        self.tts = tts
        self._send = send
        self._recordings: LruCache[Recording] = LruCache(
            recordings_bytes, lambda r: r.samples.nbytes
        )
        self._adapters: dict[
            tuple[int, int], Adapter
        ] = {}  # that requests may name, by API process and slot
        self._apis: set[int] = set()
        self._open: dict[int, _Open] = {}
        self._lock = threading.RLock()  # guards what is open and what is pending
        self._pending: OrderedDict[int, tuple[list[m.Event], list[np.ndarray]]] = OrderedDict()
        self._sending = threading.Lock()  # keeps the order of events
        # no thread waits for reference audio: the engine's own threads encode it meanwhile
        self._prompts = ThreadPoolExecutor(
            LIMITS.prepare_threads, "stentor-prepare", tts.engine.side.set_up_thread
        )
        self._loads = ThreadPoolExecutor(
            1, "stentor-load"
        )  # of adapters, beside which requests are submitted
        tts.engine.on_flush(self.flush)

    def handle(self, command: m.Command, data: m.Reader) -> None:
        """Handle one command. It waits for nothing, and makes short prompts itself."""
        match command:
            case m.Submit():
                self._submit(command, data)
            case m.Append():
                self._append(command)
            case m.Cancel():
                self._cancel(command.id)
            case m.ReleaseLora():
                self._adapters.pop((command.api, command.number), None)
            case m.LoadLora() | m.UnloadLora():
                self._loads.submit(self._answer, command)
            case m.Speakable():
                self._prompts.submit(self._answer, command)
            case m.AskHealth():
                self._answer(command)

    # -- events --

    def put(self, request: _Open, event: StreamEvent) -> None:
        """Keep an event of a request until the next flush."""
        with self._lock:
            if request.id not in self._open:
                return
            if not isinstance(event, Chunk) or event.finish is not None:
                del self._open[request.id]
                request.ended = True
                request.release()
            if not isinstance(event, Chunk):
                if isinstance(event, StentorError):
                    failed = event
                else:
                    failed = request_failed(event)
                if isinstance(failed, EngineError):
                    token = REQUEST_ID.set(
                        request.command.request_id or None
                    )  # as the API process logs it
                    log.warning("a request failed: %s", failed)
                    REQUEST_ID.reset(token)
                self._add(request.id >> m.API_BITS, m.Ended(request.id, m.error(failed)))
                return
            prompt = request.prompt
            assert prompt is not None
            attended = event.attended.size > 0
            audio = m.Audio(
                request.id,
                len(event.samples),
                len(event.frames),
                attended,
                event.finish,
                prompt.tokens,
                runaway_frames(prompt),
                request.moments(time.monotonic()) if len(event.samples) else [],
            )
            arrays = (
                (event.samples, event.frames, event.attended)
                if attended
                else (event.samples, event.frames)
            )
            self._add(request.id >> m.API_BITS, audio, arrays)

    def _add(self, api: int, event: m.Event, arrays: Sequence[np.ndarray] = ()) -> None:
        """Keep an event for an API process. The lock is held."""
        if api not in self._apis:
            return
        events, pending_arrays = self._pending.setdefault(api, ([], []))
        events.append(event)
        pending_arrays += arrays

    def flush(self) -> None:
        """Send what is kept. For any thread. The engine calls it after each iteration."""
        if not self._pending:
            return
        with self._sending:
            with self._lock:
                pending = self._pending
                self._pending = OrderedDict()
            for api, (events, arrays) in pending.items():
                self._send(api, events, arrays)

    def tell(self, event: m.Event) -> None:
        """Send every API process an event."""
        with self._lock:
            for api in self._apis:
                self._add(api, event)
        self.flush()

    def beat(self) -> None:
        """Report the engine's health."""
        self.tell(m.Beat(self.tts.engine.health()))

    # -- requests --

    def _submit(self, command: m.Submit, data: m.Reader) -> None:
        request = _Open(self, command)
        with self._lock:
            if (asked_again := self._open.get(command.id)) is not None:  # by `Resend`
                request.texts = asked_again.texts
            self._open[command.id] = request
        try:
            speech = self._request(command, data, request)
        except Exception as e:
            self._fail(request, e)
            return
        if speech is None:
            with self._lock:  # it stays open: live text that comes meanwhile is kept
                self._add(command.id >> m.API_BITS, m.Resend(command.id))
            self.flush()
        elif len(command.text) <= QUICK_CHARS:
            self._prepare(request, speech)
        else:
            self._prompts.submit(self._prepare, request, speech)

    def _prepare(self, request: _Open, speech: SpeechRequest) -> None:
        """Begin the prompt of a request."""
        try:
            request.check()  # it may have waited for a thread
            if not self.tts.speakable(speech.text, request.check):
                self._end(request, m.Unspeakable(request.id))
                return
            request.preparation = self.tts.prepare(speech)
        except _Abandoned:
            return
        except Exception as e:
            self._fail(request, e)
            return
        self._advance(request)

    def _request(self, c: m.Submit, data: m.Reader, request: _Open) -> SpeechRequest | None:
        """The request as the engine takes it. None: a recording that it names is not here any
        more."""
        recordings = [self._recording(r, data) for r in c.recordings]
        available = [r for r in recordings if r is not None]
        if len(available) < len(recordings):
            return None
        references = [ReferenceAudio(available[r.recording], r.text) for r in c.references]
        if c.speaker_embedding is None:
            vector = None
        else:
            vector = np.frombuffer(c.speaker_embedding, np.float32)
        return SpeechRequest(
            text=c.text,
            voice=c.voice,
            language=c.language,
            instructions=c.instructions,
            reference=references[0] if references else None,
            more_references=tuple(references[1:]),
            prompt=None
            if c.prompt is None
            else ReferenceAudio(available[c.prompt.recording], c.prompt.text),
            speaker_embedding=vector,
            live=c.live,
            seed=c.seed,
            options=c.options,
            speed=c.speed,
            lora=self._adapter(c),
            check=request.check,
        )

    def _adapter(self, c: m.Submit) -> Adapter | None:
        if c.adapter is None:
            return None
        adapter = self._adapters.get((c.id >> m.API_BITS, c.adapter))
        if adapter is None:
            raise InvalidRequest("lora", "the adapter is not loaded any more")
        return adapter

    def _recording(self, sent: m.SentRecording, data: m.Reader) -> Recording | None:
        if not sent.size:
            with self._lock:  # each API process has a thread that reads
                return self._recordings.get(sent.key)
        samples = data.take(
            sent.size, np.dtype(np.float32)
        ).copy()  # torch wants memory that may be written
        recording = Recording(samples, sent.rate, sent.cacheable, sent.source)
        if sent.cacheable:
            with self._lock:
                self._recordings.put(sent.key, recording)
        return recording

    def _advance(self, request: _Open) -> None:
        """Make the prompt, or have this called again once what it needs is there."""
        preparation = request.preparation
        if preparation is None:  # it was cancelled
            return
        try:
            result = preparation.advance()
            if isinstance(result, Claim):
                result.future.add_done_callback(
                    lambda _: self._prompts.submit(self._advance, request)
                )
                return
            preparation.cancel()
            self._start(request, result)
        except _Abandoned:
            preparation.cancel()
        except Exception as e:
            preparation.cancel()
            self._fail(request, e)
        request.preparation = None

    def _start(self, request: _Open, prompt: Prompt) -> None:
        c = request.command
        request.prompt = prompt
        words = [(w.start, w.stop) for w in prompt.words]
        accepted = m.Accepted(
            c.id, prompt.tokens, len(prompt.frames), runaway_frames(prompt), words
        )
        with self._lock:  # its audio comes behind `accepted`
            if request.cancelled:
                return
            if not c.check_only:
                engine = self.tts.engine
                place = Place(c.place)
                request.prepared = time.monotonic()
                request.handle = engine.queue(
                    prompt, c.seed, c.streaming, place, request, request.marks
                )
            self._add(c.id >> m.API_BITS, accepted)
            if c.check_only:
                del self._open[c.id]
                request.release()
            for text in request.texts:  # the next comes behind them
                self._append(text)
        self.flush()

    def _append(self, command: m.Append) -> None:
        with self._lock:
            request = self._open.get(command.id)
            if request is None:
                return
            if request.handle is None:
                request.texts.append(command)
                return
            try:
                request.handle.append(command.text, command.last)
            except Exception as e:  # the text does not fit
                request.handle.cancel()
                self._fail(request, e)

    def _cancel(self, id: int) -> None:
        with self._lock:
            request = self._open.pop(id, None)
            if request is None:
                return
            request.cancelled = True
            handle = request.handle
            preparation = request.preparation
            request.release()
        if handle is not None:
            handle.cancel()
        elif preparation is not None:
            preparation.cancel()

    def _fail(self, request: _Open, error: BaseException) -> None:
        if not isinstance(error, StentorError):
            log.error("a request could not be prepared", exc_info=error)
        self.put(request, error)
        self.flush()

    def _end(self, request: _Open, event: m.Event) -> None:
        """End a request that was not queued."""
        with self._lock:
            if self._open.pop(request.id, None) is not None:
                request.release()
                self._add(request.id >> m.API_BITS, event)
        self.flush()

    # -- calls --

    def connect(self, api: int) -> None:
        """Serve an API process."""
        with self._lock:
            self._apis.add(api)
            for adapter in self.tts.adapters:
                self._adapters[api, adapter.number] = adapter

    def disconnect(self, api: int) -> None:
        """An API process is gone: its requests end."""
        with self._lock:
            for id in [id for id in self._open if id >> m.API_BITS == api]:
                self._cancel(id)
            self._apis.discard(api)
            self._pending.pop(api, None)
            for key in [key for key in self._adapters if key[0] == api]:
                del self._adapters[key]

    def _answer(self, command: m.Speakable | m.LoadLora | m.UnloadLora | m.AskHealth) -> None:
        try:
            result = self._result(command)
        except Exception as e:
            if not isinstance(e, StentorError):
                log.exception("a call failed")
            result = m.Result(command.call, m.error(e))
        with self._lock:
            self._add(command.call >> m.API_BITS, result)
        self.flush()

    def _result(self, command: m.Speakable | m.LoadLora | m.UnloadLora | m.AskHealth) -> m.Result:
        match command:
            case m.Speakable():
                return m.Result(
                    command.call, speakable=[self.tts.speakable(text) for text in command.texts]
                )
            case m.LoadLora():
                self.tts.load_lora(command.name, command.path)
                loaded = self.tts.adapter(command.name)
                with self._lock:
                    self._adapters |= {(api, loaded.number): loaded for api in self._apis}
                self.tell(m.Adapters(list(self.tts.adapters)))
                return m.Result(command.call)
            case m.UnloadLora():
                self.tts.unload_lora(command.name)
                self.tell(m.Adapters(list(self.tts.adapters)))
                return m.Result(command.call)
            case m.AskHealth():
                self.beat()
                return m.Result(command.call)

    def close(self, error: EngineError) -> None:
        """End all requests that are open."""
        for pool in (self._prompts, self._loads):
            pool.shutdown(wait=False, cancel_futures=True)
        for request in list(self._open.values()):
            self.put(request, error)
        self.flush()
