"""WS /v1/text-to-speech/{voice_id}/stream-input and multi-stream-input: text arrives while audio is
sent."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, cast

from fastapi import APIRouter, WebSocket

from stentor.errors import InvalidRequest
from stentor.server.doors.elevenlabs.fields import (
    CLEANUP,
    Aligner,
    Input,
    Normalization,
    VoiceSettings,
    error_message,
    ignored,
    output_format,
    speech_body,
)
from stentor.server.errors import ApiError, invalid, translate, validated
from stentor.server.limits import LIMITS
from stentor.server.sessions import CloseSession, SocketSession, check_size, read_json, serve
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import NO_WORD_TIMES, SpeechPlan
from stentor.server.state import Server
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

# characters that try_trigger_generation needs, the least that a schedule of ElevenLabs may ask for
ENOUGH = 50
router = APIRouter()
PATH = "/v1/text-to-speech/{voice_id}"
DEFAULT = "default"  # the context of messages that name none
NORMALIZATION = ("auto", "on", "off")


class Schedule:
    """Holds text back until there is as much of it as the client's chunk_length_schedule wants.
    Without one, none."""

    def __init__(self, lengths: list[float] | None) -> None:
        self._lengths = list(lengths or [0])
        self._held = ""

    def write(self, text: str, trigger: bool) -> str:
        """Text that may be spoken now. trigger: less is enough."""
        self._held += text
        if len(self._held) < (min(ENOUGH, self._lengths[0]) if trigger else self._lengths[0]):
            return ""
        if len(self._lengths) > 1:
            del self._lengths[0]
        return self.take()

    def take(self) -> str:
        """All text that is held."""
        text = self._held
        self._held = ""
        return text

    @property
    def size(self) -> int:
        """Characters that are held."""
        return len(self._held)


class Context(LiveSpeech):
    """Text until the client closes it. name: that of the client, None where a socket has one
    text."""

    def __init__(
        self, owner: InputSession, plan: SpeechPlan, name: str | None, lengths: list[float] | None
    ) -> None:
        """lengths: of the client's chunk_length_schedule."""
        id = f"{owner.id}-{owner.count}"
        cleanup = CLEANUP.get(owner.normalization)
        super().__init__(owner.server, plan, id, cleanup=cleanup, traceparent=owner.traceparent)
        self.owner = owner
        self.name = name
        # auto: each message is spoken at once, as it says the client, who sends whole phrases
        self.auto = owner.query.get("auto_mode", "false").lower() == "true"
        self.schedule = Schedule(None if self.auto else lengths)
        self.aligner = Aligner()
        self.closed = False  # nothing more is written

    @property
    def size(self) -> int:
        """Characters written so far."""
        return len(self.feed.text) + self.schedule.size

    async def write(self, text: str, trigger: bool, flush: bool) -> None:
        """Take text, and speak what the schedule lets pass. flush: all of it."""
        ready = self.schedule.write(text, trigger)
        if flush or (self.auto and text.strip()):
            await self.feed.flush(ready + self.schedule.take())
        elif ready:
            await self.feed.write(ready)

    async def close(self) -> None:
        """Nothing follows: speak the rest."""
        if not self.closed:
            self.closed = True
            await self.feed.end(self.schedule.take())

    # -- to the client --

    def segment_begins(self, index: int, segment: Segment) -> None:
        return

    def audio(self, data: bytes) -> None:
        self._send(base64.b64encode(data).decode(), None)

    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        """Its characters' times. They count from the end of the characters before, as ElevenLabs
        counts."""
        characters = self.aligner.take(self.feed.text, [times])
        if characters.text:
            self._send("", characters.as_ms())

    def _send(self, audio: str, alignment: dict[str, Any] | None) -> None:
        self.message(audio=audio, isFinal=None, alignment=alignment, normalizedAlignment=alignment)

    def failure(self, error: ApiError) -> None:
        self.closed = True
        self.feed.abandon()
        self.owner.failed(self, error)

    def end(self, running: RunningRequest | None) -> None:
        if not self.failed:
            known = {**self.plan.output.marks.as_json(), **ignored(self.plan.ignored).as_json()}
            self.message(audio=None, isFinal=True, **known)
            self.owner.ended(self)

    def message(self, **body: Any) -> None:
        """Queue a message, with the context's name if it has one."""
        if self.name is None:
            named = {}
        else:
            named = {"contextId": self.name}
        self.owner.out.json({**body, **named}, audio=bool(body.get("audio")))


@router.websocket(PATH + "/stream-input")
async def stream_input(ws: WebSocket) -> None:
    """One text, which an empty message ends."""
    await serve(ws, OneText)


@router.websocket(PATH + "/multi-stream-input")
async def multi_stream_input(ws: WebSocket) -> None:
    """Several texts side by side, each in a context with a name."""
    await serve(ws, Contexts)


class InputSession(SocketSession):
    """Base of both sockets: the query, a plan for the settings of each text, and messages in
    ElevenLabs' shape."""

    def __init__(self, ws: WebSocket, server: Server) -> None:
        super().__init__(ws, server)
        self.query = ws.query_params
        self.count = 0
        self.contexts: dict[str, Context] = {}  # those that are not finished
        # the context of the message that is being taken, as the client calls it
        self.named: Any = None
        # for the settings that came last
        self.plan: tuple[dict[str, Any], SpeechPlan] | None = None

    @property
    def busy(self) -> bool:
        return any(not context.waiting_for_text for context in self.contexts.values())

    @property
    def patience(self) -> tuple[float, str]:
        given = self.query.get("inactivity_timeout", "")
        usual = self.config.ws_idle_seconds
        if given.isascii() and given.isdecimal() and given.strip("0"):
            asked = float(given)
        else:
            asked = usual
        return min(asked, max(usual, LIMITS.client_idle_seconds)), "idle_timeout"

    def report(self, error: ApiError) -> None:
        if isinstance(self.named, str):
            named = {"contextId": self.named}
        else:
            named = {}
        self.out.json({**error_message(error), **named})

    async def handle(self, message: MutableMapping[str, Any]) -> None:
        value = read_json(message)
        check_size(message, "the message")
        if isinstance(value, dict):
            self.named = value.get("context_id")
        else:
            self.named = None
        await self.take(validated(Input, value))
        self.named = None

    @abstractmethod
    async def take(self, message: Input) -> None:
        """Do what a message asks for."""

    @abstractmethod
    def failed(self, context: Context, error: ApiError) -> None:
        """The speech of a context goes no further."""

    @abstractmethod
    def ended(self, context: Context) -> None:
        """All text of a context has been spoken."""

    async def begin_context(self, message: Input, name: str | None) -> Context:
        """A context with the settings of its first message."""
        settings = message.voice_settings or VoiceSettings(speed=None)
        plan = await self._plan(settings, message.unused())
        schedule = message.generation_config
        context = Context(
            self, plan, name, None if schedule is None else schedule.chunk_length_schedule
        )
        self.count += 1
        self.contexts[name or DEFAULT] = context
        self.begin(context.speak())
        return context

    async def write(self, context: Context, message: Input, first: bool) -> None:
        """Give a context a message's text. What only the first message may set is noted in the
        others."""
        text = message.text or ""
        limit = self.config.max_input_chars
        if not first:
            for name in message.unused():
                context.plan.ignored.field(name, "is not a field of these messages")
            for name in ("voice_settings", "generation_config"):
                if name in message.model_fields_set:
                    context.plan.ignored.field(name, "counts in the first message")
        if context.size + len(text) > limit:
            raise invalid("text", f"the text has more than {limit} characters", "text_too_long")
        await context.write(text, message.try_trigger_generation, message.flush)

    async def _plan(self, settings: VoiceSettings, unused: dict[str, Any]) -> SpeechPlan:
        given = {**unused, **settings.unused()}
        # no option is nested
        more = {n: v if isinstance(v, str | int | float) else "" for n, v in given.items()}
        asked = {"speed": settings.speed, **more}
        if self.plan is None or self.plan[0] != asked:
            output = output_format(self.query.get("output_format"))
            seed = self.query.get("seed", "")
            if seed and not (seed.isascii() and seed.isdecimal()):
                raise invalid("seed", "must be a whole number")
            body = speech_body(
                self.ws.path_params["voice_id"],
                self.query.get("model_id"),
                self.query.get("language_code"),
                output,
                int(seed[: LIMITS.param_chars]) if seed else None,
                settings.speed,
                self.normalization,
                self.query,
                more,
                input="",
            )
            words = self.server.planner.word_times(body, body.word_timestamps)
            plan = await self.planned(body, words if words.available else NO_WORD_TIMES)
            plan = replace(plan, output=replace(plan.output, bit_rate=output.bit_rate))
            self.plan = asked, plan
        return self.plan[1]

    @property
    def normalization(self) -> Normalization:
        """How the query has text cleaned. ApiError for what it cannot say."""
        given = self.query.get("apply_text_normalization", "auto").lower()
        if given not in NORMALIZATION:
            raise invalid("apply_text_normalization", f"must be one of {', '.join(NORMALIZATION)}")
        return cast(Normalization, given)


class OneText(InputSession):
    """stream-input. The socket is closed when all has been spoken, and when something is wrong."""

    async def take(self, message: Input) -> None:
        context = self.contexts.get(DEFAULT)
        first = False
        if context is None:
            try:
                context = await self.begin_context(message, None)
                first = True
            except (ApiError, InvalidRequest, TimeoutError) as e:
                raise CloseSession(1008, translate(e)) from e
            if message.text == " ":  # that is how a client begins
                return
        if context.closed:
            raise ApiError(400, "the text has ended: an empty text ends it", code="text_ended")
        await self.write(context, message, first)
        if message.text == "" and not message.flush:
            await context.close()

    def failed(self, context: Context, error: ApiError) -> None:
        """End the session with the error."""
        self.stop(CloseSession(1008 if error.status < 500 else 1011, error))

    def ended(self, context: Context) -> None:
        """End the session."""
        self.stop(CloseSession(1000))


class Contexts(InputSession):
    """multi-stream-input. A context ends when its client closes it, and its failure is its own."""

    closing = False  # when the contexts that are open have ended

    async def take(self, message: Input) -> None:
        name = message.context_id or DEFAULT
        context = self.contexts.get(name)
        if message.close_socket:
            self.closing = True
            for each in list(self.contexts.values()):
                await each.close()
            if not self.contexts:
                raise CloseSession(1000)
        elif context is not None and context.closed:
            if message.text:
                raise invalid(
                    "context_id",
                    f"{name[:80]!r} is closed, and is still being spoken",
                    "context_closed",
                )
        elif context is not None:
            await self._continue(context, message, first=False)
        elif message.text:  # an empty one only keeps the socket alive
            if len(self.contexts) >= LIMITS.contexts:
                raise ApiError(
                    429, f"{LIMITS.contexts} contexts are open already", code="too_many_contexts"
                )
            context = await self.begin_context(message, name)
            await self._continue(
                context, message.model_copy(update={"text": message.text.lstrip()}), first=True
            )

    async def _continue(self, context: Context, message: Input, first: bool) -> None:
        await self.write(context, message, first)
        if message.close_context:
            await context.close()

    def failed(self, context: Context, error: ApiError) -> None:
        """Tell it of the context. The others go on."""
        context.message(**error_message(error))
        self.ended(context)

    def ended(self, context: Context) -> None:
        """Forget the context. Its name may begin another."""
        self.contexts.pop(context.name or DEFAULT, None)
        if self.closing and not self.contexts:
            self.stop(CloseSession(1000))
