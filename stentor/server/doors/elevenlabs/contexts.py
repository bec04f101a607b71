"""Texts and dialogues of ElevenLabs' sockets, which are spoken while they are written, and the
messages that write them."""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from stentor.server.backpressure import SocketOutbox
from stentor.server.doors.elevenlabs.broken_numbers import NumberJoiner
from stentor.server.doors.elevenlabs.fields import (
    CLEANUP,
    IN_SCRIPT,
    Aligner,
    Characters,
    DialogueInput,
    Input,
    InputMessage,
    Normalization,
    VoiceSettings,
    ignored,
)
from stentor.server.errors import ApiError, invalid
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

if TYPE_CHECKING:
    from stentor.server.state import Server

# characters that try_trigger_generation needs, the least that a schedule of ElevenLabs may ask for
ENOUGH = 50
SDK_HEADER = "x-fern-sdk-name"
"""Sent by ElevenLabs' own SDK."""


class ContextOwner(Protocol):
    """The session that holds a context, as the context needs it."""

    id: str
    count: int
    server: Server
    traceparent: str | None
    out: SocketOutbox

    @property
    def normalization(self) -> Normalization:
        """How text is cleaned."""
        ...

    def asks_for(self, name: str) -> bool:
        """Whether the query turns something on."""
        ...

    def header(self, name: str) -> str | None:
        """A header of the handshake."""
        ...

    async def settings_plan(
        self, settings: VoiceSettings, unused: dict[str, Any], voices: Sequence[str] = ()
    ) -> SpeechPlan:
        """The plan for a context with these settings."""
        ...

    def failed(self, context: Context, error: ApiError) -> None:
        """The speech of a context goes no further."""
        ...

    def ended(self, context: Context) -> None:
        """All text of a context has been spoken."""
        ...


class Context(LiveSpeech, ABC):
    """Text until the client closes it. name: as the client calls it, None where a socket has one
    text."""

    name_field: ClassVar[str]
    """Its name in messages of the server."""

    def __init__(self, owner: ContextOwner, plan: SpeechPlan, name: str | None) -> None:
        id = f"{owner.id}-{owner.count}"
        cleanup = CLEANUP.get(owner.normalization)
        super().__init__(owner.server, plan, id, cleanup=cleanup, traceparent=owner.traceparent)
        self.owner = owner
        self.name = name
        self.aligner = Aligner()
        self.closed = False  # nothing more is written
        self.task: asyncio.Task[None] | None = None  # of `speak`

    @property
    def size(self) -> int:
        """Characters written so far."""
        return len(self.feed.text)

    async def close(self) -> None:
        """Nothing follows: speak the rest."""
        if not self.closed:
            self.closed = True
            await self.feed.end(self.rest())

    def rest(self) -> str:
        """Take text that has not reached `feed`."""
        return ""

    async def interrupt(self) -> None:
        """Stop at once, and free the places in the engine: nobody listens any more."""
        self.closed = True
        self.feed.abandon()
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        self._finish(interrupted=True)

    # -- to the client --

    def segment_begins(self, index: int, segment: Segment) -> None:
        return

    def audio(self, data: bytes) -> None:
        self.audio_message(base64.b64encode(data).decode())

    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        characters = self.aligner.take(self.feed.text, [times])
        if characters.text:
            self.times_message(characters)

    @abstractmethod
    def audio_message(self, audio: str) -> None:
        """Queue audio in base64."""

    @abstractmethod
    def times_message(self, characters: Characters) -> None:
        """Queue the times of a segment's characters, whose audio has been queued."""

    @abstractmethod
    def final_message(self, **more: Any) -> None:
        """Queue that nothing follows."""

    def failure(self, error: ApiError) -> None:
        self.closed = True
        self.feed.abandon()
        self.owner.failed(self, error)

    def end(self, running: RunningRequest | None) -> None:
        if not self.failed:
            self._finish()

    def _finish(self, **more: Any) -> None:
        notes = {**self.plan.output.marks.as_json(), **ignored(self.plan.ignored).as_json()}
        self.final_message(**notes, **more)
        self.owner.ended(self)

    def message(self, **body: Any) -> None:
        """Queue a message, with the context's name if it has one."""
        if self.name is None:
            context = {}
        else:
            context = {self.name_field: self.name}
        self.owner.out.json({**body, **context}, audio=bool(body.get("audio")))


class InputProtocol(ABC):
    """The messages of a kind of socket, and what they do."""

    message: ClassVar[type[InputMessage]]
    context: ClassVar[type[Context]]

    @abstractmethod
    def opens(self, message: Any) -> bool:
        """Whether a message begins the context that it names. Others only keep the socket alive."""

    @abstractmethod
    async def begin(self, session: ContextOwner, message: Any, name: str | None) -> Context:
        """A context with the settings of its first message."""

    @abstractmethod
    async def write(self, context: Any, message: Any, first: bool) -> None:
        """Speak the text of a message. first: it has begun the context."""

    @abstractmethod
    def ends(self, message: Any) -> bool:
        """Whether a message ends the text of a socket that has one."""

    @abstractmethod
    def speaks_rest(self, context: Any, message: Any) -> bool:
        """Whether a message that closes a context leaves it to be spoken to its end."""


class Schedule:
    """Holds text back until there is as much of it as the client's chunk_length_schedule wants.
    Without one, none."""

    def __init__(self, lengths: list[float] | None) -> None:
        self._lengths = list(lengths or [0])
        self._waiting = ""

    def write(self, text: str, trigger: bool) -> str:
        """Text that may be spoken now. trigger: less is enough."""
        self._waiting += text
        enough = self._lengths[0]
        if trigger:
            enough = min(ENOUGH, enough)
        if len(self._waiting) < enough:
            return ""
        if len(self._lengths) > 1:
            del self._lengths[0]
        return self.take()

    def take(self) -> str:
        """All text that is held."""
        text = self._waiting
        self._waiting = ""
        return text

    @property
    def size(self) -> int:
        """Characters that are held."""
        return len(self._waiting)


class TextContext(Context):
    """A text in one voice. lengths: of the client's chunk_length_schedule."""

    name_field = "contextId"

    def __init__(
        self, owner: ContextOwner, plan: SpeechPlan, name: str | None, lengths: list[float] | None
    ) -> None:
        super().__init__(owner, plan, name)
        # auto: each message is spoken at once, as it says the client, who sends whole phrases
        self.auto = owner.asks_for("auto_mode")
        self.schedule = Schedule(None if self.auto else lengths)
        if owner.header(SDK_HEADER) == "elevenlabs":
            self.joiner: NumberJoiner | None = NumberJoiner()
        else:
            self.joiner = None
        self.absolute = owner.asks_for("sync_alignment")
        self.complete = False  # the client has asked for all that it has written

    @property
    def size(self) -> int:
        return super().size + self.schedule.size

    async def write(self, text: str, trigger: bool, flush: bool) -> None:
        """Take text, and speak what the schedule releases. flush: all of it."""
        if self.joiner is not None:
            text = self.joiner.write(text)
        ready = self.schedule.write(text, trigger)
        if flush or (self.auto and text.strip()):
            await self.feed.flush(ready + self.schedule.take())
        elif ready:
            await self.feed.write(ready)
        if text or flush:
            # in auto mode LiveKit flushes each sentence: only a flush without text is of all
            self.complete = flush and not (self.auto and text.strip())

    def rest(self) -> str:
        return self.schedule.take()

    def audio_message(self, audio: str) -> None:
        self._send(audio, None)

    def times_message(self, characters: Characters) -> None:
        """Times count from the end of the characters before, as Pipecat adds them up. Those with
        sync_alignment count from the beginning of the text, as LiveKit takes them."""
        origin = 0.0 if self.absolute else None
        self._send("", characters.as_ms(origin))

    def _send(self, audio: str, alignment: dict[str, Any] | None) -> None:
        self.message(audio=audio, isFinal=None, alignment=alignment, normalizedAlignment=alignment)

    def final_message(self, **more: Any) -> None:
        self.message(audio=None, isFinal=True, **more)


class TextProtocol(InputProtocol):
    """Messages of text-to-speech."""

    message = Input
    context = TextContext

    def opens(self, message: Input) -> bool:
        return message.size > 0

    async def begin(self, session: ContextOwner, message: Input, name: str | None) -> TextContext:
        settings = message.voice_settings or VoiceSettings(speed=None)
        plan = await session.settings_plan(settings, message.unused())
        schedule = message.generation_config
        lengths = None if schedule is None else schedule.chunk_length_schedule
        return TextContext(session, plan, name, lengths)

    async def write(self, context: TextContext, message: Input, first: bool) -> None:
        text = message.text or ""
        if first and not text.strip():  # that is how a client begins
            text = ""
        await context.write(text, message.try_trigger_generation, message.flush)

    def ends(self, message: Input) -> bool:
        return message.text == "" and not message.flush

    def speaks_rest(self, context: TextContext, message: Input) -> bool:
        """ElevenLabs' reference: "If it has already been set to flush it will continue flushing."
        Clients that are interrupted close without a flush."""
        return context.complete or message.size > 0


class DialogueContext(Context):
    """A dialogue of the voices that its first message has named."""

    name_field = "context_id"

    def __init__(
        self, owner: ContextOwner, plan: SpeechPlan, name: str | None, voices: list[str]
    ) -> None:
        super().__init__(owner, plan, name)
        self.voices = voices
        self.timed = owner.asks_for("sync_alignment")
        self._turn: int | None = None  # that is being spoken

    async def write(self, voice: str, text: str, new_turn: bool) -> None:
        """Take text of a voice. new_turn: the same voice begins again."""
        if text and (new_turn or voice != self.feed.voice):
            await self.feed.begin_turn(voice)
        await self.feed.write(text)

    def segment_begins(self, index: int, segment: Segment) -> None:
        if self._turn is not None and segment.turn != self._turn:
            self.message(is_final_audio_for_turn=True)
        self._turn = segment.turn

    def audio_message(self, audio: str) -> None:
        self.message(audio=audio, alignment=None, normalized_alignment=None)

    def times_message(self, characters: Characters) -> None:
        """Times count from the beginning of the audio of their message. Those of a segment follow
        its audio, and count backwards from there."""
        if self.timed:
            times = characters.as_ms(self._sent_seconds)
            alignment = {
                "chars": times["chars"],
                "char_start_times_ms": times["charStartTimesMs"],
                "char_durations_ms": times["charDurationsMs"],
            }
            self.message(audio="", alignment=alignment, normalized_alignment=None)

    @property
    def _sent_seconds(self) -> float:
        """Seconds of audio in the messages so far, as LiveKit counts them: by bytes where each
        second has as many, else by what went into the encoder."""
        output = self.plan.output
        if output.format == "pcm":
            return self.bytes / 2 / output.rate
        if output.format in ("ulaw", "alaw"):
            return self.bytes / output.rate
        if output.format == "mp3" and output.bit_rate:
            return 8 * self.bytes / output.bit_rate
        assert self.running is not None
        return self.running.playback.sent

    def final_message(self, **more: Any) -> None:
        if self._turn is not None:
            self.message(is_final_audio_for_turn=True)
        self.message(is_final=True, **more)


class DialogueProtocol(InputProtocol):
    """Messages of text-to-dialogue."""

    message = DialogueInput
    context = DialogueContext

    def opens(self, message: DialogueInput) -> bool:
        return not message.keep_alive and not message.close_context

    async def begin(
        self, session: ContextOwner, message: DialogueInput, name: str | None
    ) -> DialogueContext:
        if not message.voices:
            raise invalid("voices", "must be in the first message: the names of the voices")
        settings = message.voice_settings or VoiceSettings(speed=None)
        voices = list(dict.fromkeys(message.voices))
        try:
            plan = await session.settings_plan(settings, message.unused(), voices)
        except ApiError as e:
            voice = IN_SCRIPT.fullmatch(e.param or "")
            if voice is None:
                raise
            raise e.renamed(f"voices.{voice[1]}") from e
        return DialogueContext(session, plan, name, voices)

    async def write(self, context: DialogueContext, message: DialogueInput, first: bool) -> None:
        for i, line in enumerate(message.inputs):
            if line.voice_id not in context.voices:
                raise invalid(
                    f"inputs.{i}.voice_id", f"must be one of voices: {', '.join(context.voices)}"
                )
        for line in message.inputs:
            await context.write(line.voice_id, line.text, line.new_turn)
        if message.flush:
            await context.feed.flush()

    def ends(self, message: DialogueInput) -> bool:
        return message.close_socket

    def speaks_rest(self, context: DialogueContext, message: DialogueInput) -> bool:
        """ElevenLabs' reference: "Flush this context's remaining audio"."""
        return True
