"""WS stream-input and multi-stream-input of text-to-speech and of text-to-dialogue: text arrives
while audio is sent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, WebSocket

from stentor.errors import InvalidRequest
from stentor.server.doors.elevenlabs.contexts import (
    Context,
    DialogueProtocol,
    InputProtocol,
    TextProtocol,
)
from stentor.server.doors.elevenlabs.fields import (
    InputMessage,
    Normalization,
    VoiceSettings,
    error_message,
    output_format,
    speech_body,
)
from stentor.server.errors import ApiError, invalid, translate, validated
from stentor.server.limits import LIMITS
from stentor.server.sessions import CloseSession, SocketSession, check_size, read_json, serve
from stentor.server.speech.plan import NO_WORD_TIMES, SpeechPlan
from stentor.server.state import Server

router = APIRouter()
SPEECH = "/v1/text-to-speech/{voice_id}"
DIALOGUE = "/v1/text-to-dialogue"
DEFAULT = "default"  # the context of messages that name none
NORMALIZATION = ("auto", "on", "off")


class InputSession(SocketSession):
    """Base of the sockets: the query, the plan for the settings of a context, and messages in
    ElevenLabs' shape."""

    def __init__(self, ws: WebSocket, server: Server, protocol: InputProtocol) -> None:
        super().__init__(ws, server)
        self.protocol = protocol
        self.query = ws.query_params
        self.count = 0
        self.contexts: dict[str, Context] = {}  # those that are not finished
        # the context of the message that is being taken, as the client calls it
        self.named: Any = None
        # for the settings that came last
        self._plan: tuple[dict[str, Any], SpeechPlan] | None = None

    @property
    def busy(self) -> bool:
        return any(not context.waiting_for_text for context in self.contexts.values())

    @property
    def patience(self) -> tuple[float, str]:
        timeout = self.query.get("inactivity_timeout", "")
        usual = self.config.ws_idle_seconds
        if timeout.isascii() and timeout.isdecimal() and timeout.strip("0"):
            seconds = float(timeout)
        else:
            seconds = usual
        return min(seconds, max(usual, LIMITS.client_idle_seconds)), "idle_timeout"

    def report(self, error: ApiError) -> None:
        if isinstance(self.named, str):
            context = {self.protocol.context.name_field: self.named}
        else:
            context = {}
        self.out.json({**error_message(error), **context})

    async def handle(self, message: MutableMapping[str, Any]) -> None:
        value = read_json(message)
        check_size(message, "the message")
        if isinstance(value, dict):
            self.named = value.get("context_id", value.get("contextId"))
        else:
            self.named = None
        await self.take(validated(self.protocol.message, value))
        self.named = None

    @abstractmethod
    async def take(self, message: InputMessage) -> None:
        """Handle a message."""

    @abstractmethod
    def failed(self, context: Context, error: ApiError) -> None:
        """The speech of a context goes no further."""

    @abstractmethod
    def ended(self, context: Context) -> None:
        """All text of a context has been spoken."""

    async def begin_context(self, message: InputMessage, name: str | None) -> Context:
        """A context with the settings of its first message."""
        context = await self.protocol.begin(self, message, name)
        self.count += 1
        self.contexts[name or DEFAULT] = context
        context.task = self.begin(context.speak())
        return context

    async def write(self, context: Context, message: InputMessage, first: bool) -> None:
        """Write a message's text to a context. What only the first message may set is noted in the
        others."""
        limit = self.config.max_input_chars
        if not first:
            for name in message.unused():
                context.plan.ignored.field(name, "is not a field of these messages")
            for name in message.first_only:
                if name in message.model_fields_set:
                    context.plan.ignored.field(name, "counts in the first message")
        if context.size + message.size > limit:
            raise invalid("text", f"the text has more than {limit} characters", "text_too_long")
        await self.protocol.write(context, message, first)

    async def settings_plan(
        self, settings: VoiceSettings, unused: dict[str, Any], voices: Sequence[str] = ()
    ) -> SpeechPlan:
        """The plan for a context with these settings. voices: of a dialogue."""
        extra = {**unused, **settings.unused("voice_settings")}
        # no option is nested
        more = {n: v if isinstance(v, str | int | float) else "" for n, v in extra.items()}
        settings_key = {"speed": settings.speed, "voices": list(voices), **more}
        if self._plan is None or self._plan[0] != settings_key:
            output = output_format(self.query.get("output_format"))
            body = speech_body(
                self.ws.path_params.get("voice_id"),
                self.query.get("model_id"),
                self.query.get("language_code"),
                output,
                self._seed(),
                settings.speed,
                self.normalization,
                self.query,
                more,
                input="",
            )
            words = self.server.planner.word_times(body, body.word_timestamps)
            plan = await self.planned(body, words if words.available else NO_WORD_TIMES, voices)
            plan = replace(plan, output=replace(plan.output, bit_rate=output.bit_rate))
            self._plan = settings_key, plan
        return self._plan[1]

    def _seed(self) -> int | None:
        seed = self.query.get("seed", "")
        if not seed:
            return None
        if not (seed.isascii() and seed.isdecimal()):
            raise invalid("seed", "must be a whole number")
        return int(seed[: LIMITS.param_chars])

    @property
    def normalization(self) -> Normalization:
        """How the query has text cleaned. ApiError for another value."""
        value = self.query.get("apply_text_normalization", "auto").lower()
        if value not in NORMALIZATION:
            raise invalid("apply_text_normalization", f"must be one of {', '.join(NORMALIZATION)}")
        return cast(Normalization, value)

    def header(self, name: str) -> str | None:
        """A header of the handshake."""
        return self.ws.headers.get(name)

    def asks_for(self, name: str) -> bool:
        """Whether the query turns something on."""
        return self.query.get(name, "false").lower() == "true"


class OneContext(InputSession):
    """stream-input. The socket is closed when all has been spoken, and when something is wrong."""

    async def take(self, message: InputMessage) -> None:
        context = self.contexts.get(DEFAULT)
        first = context is None
        if context is None:
            try:
                context = await self.begin_context(message, None)
            except (ApiError, InvalidRequest, TimeoutError) as e:
                raise CloseSession(1008, translate(e)) from e
        if context.closed:
            raise ApiError(400, "the text has ended", code="text_ended")
        await self.write(context, message, first)
        if self.protocol.ends(message):
            await context.close()

    def failed(self, context: Context, error: ApiError) -> None:
        """End the session with the error."""
        self.stop(CloseSession(1008 if error.status < 500 else 1011, error))

    def ended(self, context: Context) -> None:
        """End the session."""
        self.stop(CloseSession(1000))


class SeveralContexts(InputSession):
    """multi-stream-input. A context ends when its client closes it, and its failure is its own."""

    closing = False  # when the contexts that are open have ended

    async def take(self, message: InputMessage) -> None:
        name = message.context_id or DEFAULT
        context = self.contexts.get(name)
        if message.close_socket:
            await self._close_all()
        elif context is None:
            if self.protocol.opens(message):
                await self._open(message, name)
        elif context.closed:
            await self._write_closed(context, message, name)
        else:
            await self._write_open(context, message, first=False)

    async def _close_all(self) -> None:
        self.closing = True
        for context in list(self.contexts.values()):
            await context.close()
        if not self.contexts:
            raise CloseSession(1000)

    async def _open(self, message: InputMessage, name: str) -> None:
        if len(self.contexts) >= LIMITS.contexts:
            raise ApiError(
                429, f"{LIMITS.contexts} contexts are open already", code="too_many_contexts"
            )
        context = await self.begin_context(message, name)
        await self._write_open(context, message, first=True)

    async def _write_open(self, context: Context, message: InputMessage, first: bool) -> None:
        await self.write(context, message, first)
        if not message.close_context:
            return
        if self.protocol.speaks_rest(context, message):
            await context.close()
        else:
            await context.interrupt()

    async def _write_closed(self, context: Context, message: InputMessage, name: str) -> None:
        """Take a message to a context that is still being spoken. Pipecat closes it once more when
        a person interrupts."""
        if message.size:
            raise invalid(
                "context_id",
                f"{name[:80]!r} is closed, and is still being spoken",
                "context_closed",
            )
        if message.close_context:
            await context.interrupt()

    def failed(self, context: Context, error: ApiError) -> None:
        """Report the failure of a context. The others go on."""
        context.message(**error_message(error))
        self.ended(context)

    def ended(self, context: Context) -> None:
        """Forget the context. Its name may begin another."""
        self.contexts.pop(context.name or DEFAULT, None)
        if self.closing and not self.contexts:
            self.stop(CloseSession(1000))


@router.websocket(SPEECH + "/stream-input")
async def stream_input(ws: WebSocket) -> None:
    """One text, which an empty message ends."""
    await serve(ws, partial(OneContext, protocol=TextProtocol()))


@router.websocket(SPEECH + "/multi-stream-input")
async def multi_stream_input(ws: WebSocket) -> None:
    """Several texts side by side, each in a context with a name."""
    await serve(ws, partial(SeveralContexts, protocol=TextProtocol()))


@router.websocket(DIALOGUE + "/stream-input")
async def dialogue_input(ws: WebSocket) -> None:
    """One dialogue, which close_socket ends."""
    await serve(ws, partial(OneContext, protocol=DialogueProtocol()))


@router.websocket(DIALOGUE + "/multi-stream-input")
async def multi_dialogue_input(ws: WebSocket) -> None:
    """Several dialogues side by side, each in a context with a name."""
    await serve(ws, partial(SeveralContexts, protocol=DialogueProtocol()))
