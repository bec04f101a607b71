"""Settings of a Realtime session, in the shape of the API and in that of its beta, items of its
conversation, and a response, which speaks them and makes one."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from stentor.output.encode import CONTAINERS
from stentor.server.errors import ApiError, invalid, validated
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Ignored, Shared, Text, VoiceId
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

# of the beta, and what we call them
FORMATS = {"pcm16": "pcm", "g711_ulaw": "ulaw", "g711_alaw": "alaw"}
TYPES = {"audio/pcm": "pcm", "audio/pcmu": "ulaw", "audio/pcma": "alaw"}
RATE = 24_000  # Hz of pcm where a client says nothing
Modalities = list[Literal["text", "audio"]]
# what a session tells itself, and a client may send back
OURS = ("type", "object", "id", "model", "expires_at")


Note = Annotated[str, Field(max_length=LIMITS.note_chars)]
TEXTS = ("input_text", "output_text", "text")
Name = Annotated[str, Field(min_length=1, max_length=LIMITS.name_chars)]
Send = Callable[..., None]
"""send(type, audio=..., **fields) queues an event."""


class Format(Body):
    """How audio is sent."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: int | None = Field(None, ge=8000, le=48000, description="of pcm; OpenAI's is 24000")


class Output(Body):
    """audio.output of a session or a response."""

    format: Format | None = None
    voice: str | VoiceId | None = None
    speed: float | None = Field(None, ge=0.25, le=4.0)


class Audio(Body):
    output: Output | None = None


class Given(Body):
    """A session of session.update, or a response of response.create. The beta has no `audio`."""

    instructions: Text | None = Field(None, description="A prompt for an assistant: not used")
    apply_instructions: bool | None = Field(None, description="Use them: they say how to speak")
    audio: Audio | None = None
    output_modalities: Modalities | None = None
    modalities: Modalities | None = None
    voice: str | VoiceId | None = None
    output_audio_format: Literal["pcm16", "g711_ulaw", "g711_alaw"] | None = None
    speed: float | None = Field(None, ge=0.25, le=4.0)
    tools: list[Any] | None = None
    tool_choice: Any = None

    def unused(self) -> Iterator[str]:
        """Fields that mean nothing for speech from text."""
        yield from (name for name in self.model_extra or {} if name not in OURS)
        audio = self.audio or Audio()
        yield from (f"audio.{name}" for name in audio.model_extra or {})
        yield from (
            f"audio.output.{name}"
            for name in (audio.output or Output(speed=None)).model_extra or {}
        )


class GivenResponse(Given):
    """A response of response.create. input: what it speaks in place of the conversation."""

    conversation: Literal["auto", "none"] = "auto"
    input: list[Any] | None = Field(None, max_length=LIMITS.conversation_items)
    metadata: Annotated[dict[Note, Note], Field(max_length=LIMITS.metadata_items)] | None = None


def unsupported(what: str, param: str | None = None) -> ApiError:
    """Error for what this API can do elsewhere, and not here."""
    return ApiError(
        400,
        f"{what}: this server speaks text, and does nothing else",
        param=param,
        code="unsupported",
    )


@dataclass(frozen=True)
class Settings:
    """How responses are spoken.

    model: as the client named it. apply_instructions: whether instructions shape the voice. Those
    of OpenAI's clients are for an assistant ("Read the text aloud, add nothing").
    """

    model: str | None = None
    voice: str = "default"
    speed: float = 1.0
    instructions: str = ""
    apply_instructions: bool = False
    format: str = "pcm"
    rate: int = RATE

    def updated(self, given: Given, ignored: Ignored) -> Settings:
        """These settings with a client's changes. ApiError for what is no speech from text."""
        if given.tools:
            raise unsupported("tools", "tools")
        for name in ("output_modalities", "modalities"):
            modalities = getattr(given, name)
            if modalities is not None and "audio" not in modalities:
                raise unsupported(f"{name} without audio", name)
        for name in given.unused():
            ignored.field(name, "means nothing for speech from text")
        output = (given.audio.output if given.audio else None) or Output(speed=None)
        voice = output.voice or given.voice
        speed = output.speed or given.speed
        changes: dict[str, Any] = {
            "voice": voice.id if isinstance(voice, VoiceId) else voice,
            "speed": speed,
            "instructions": given.instructions,
            "apply_instructions": given.apply_instructions,
            **_format(output.format, given.output_audio_format),
        }
        settings = replace(self, **{k: v for k, v in changes.items() if v is not None})
        if given.instructions and not settings.apply_instructions:
            ignored.field("instructions", "is an assistant's prompt; apply_instructions uses it")
        return settings

    @property
    def voice_instructions(self) -> str | None:
        """Instructions on how to speak, None where there are none or they are for an assistant."""
        if self.apply_instructions and self.instructions:
            return self.instructions
        return None

    def body(self) -> Shared:
        """Make a request of ours. ApiError for what that does not take."""
        return validated(
            Shared,
            {
                "model": self.model,
                "voice": self.voice,
                "speed": self.speed,
                "instructions": self.voice_instructions,
                "response_format": self.format,
                "sample_rate": self.rate,
            },
        )

    def session(self, id: str, model: str, beta: bool) -> dict[str, Any]:
        """The session as a client reads it."""
        shared: dict[str, Any] = {
            "id": id,
            "object": "realtime.session",
            "model": model,
            "instructions": self.instructions,
            "apply_instructions": self.apply_instructions,
        }
        shared |= {"tools": [], "tool_choice": "none"}
        if beta:
            format = next(name for name, ours in FORMATS.items() if ours == self.format)
            more = {
                "input_audio_format": "pcm16",
                "output_audio_format": format,
                "turn_detection": None,
            }
            return {
                **shared,
                "modalities": ["audio", "text"],
                "voice": self.voice,
                "speed": self.speed,
                **more,
            }
        output = {**self.response_audio()["output"], "speed": self.speed}
        return {
            **shared,
            "type": "realtime",
            "output_modalities": ["audio"],
            "audio": {"input": {"turn_detection": None}, "output": output},
        }

    def response_audio(self) -> dict[str, Any]:
        """`audio` of a response."""
        type = next(name for name, ours in TYPES.items() if ours == self.format)
        if self.format == "pcm":
            rate = {"rate": self.rate}
        else:
            rate = {}
        return {"output": {"format": {"type": type, **rate}, "voice": self.voice}}


def _format(format: Format | None, beta: str | None) -> dict[str, Any]:
    """Our format and its rate. None for the default."""
    if format is None and beta is None:
        return {}
    if format is None:
        format_name = FORMATS[beta or "pcm16"]
    else:
        format_name = TYPES[format.type]
    if format_name != "pcm":
        return {"format": format_name, "rate": CONTAINERS[format_name].rates[0]}
    return {
        "format": format_name,
        "rate": RATE if format is None or format.rate is None else format.rate,
    }


def new_id(kind: str) -> str:
    """An id such as item_0123456789abcdef."""
    return f"{kind}_{secrets.token_hex(8)}"


class Part(Body):
    """One part of a message. Only text is taken."""

    type: str
    text: Text | None = None


class GivenItem(Body):
    """An item that a client writes, or names by its id."""

    id: Name | None = None
    type: str = "message"
    role: Literal["user", "assistant", "system"] = "user"
    content: list[Part] = Field(default_factory=list, max_length=LIMITS.conversation_items)


@dataclass(eq=False)
class Item:
    """A message. spoken: whether it has been, or is what was spoken. response: that made it, if one
    did."""

    id: str
    role: str
    text: str
    spoken: bool = False
    status: str = "completed"
    response: SpokenResponse | None = field(default=None, repr=False)

    def as_dict(self, beta: bool) -> dict[str, Any]:
        """The item as a client reads it. Audio is not kept."""
        if self.response is not None:
            content = [{"type": "audio" if beta else "output_audio", "transcript": self.text}]
        else:
            if self.role == "user":
                kind = "input_text"
            elif beta:
                kind = "text"
            else:
                kind = "output_text"
            content = [{"type": kind, "text": self.text}]
        shared = {
            "id": self.id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
        }
        return {**shared, "role": self.role, "content": content if self.text else []}


def an_object(value: Any, param: str) -> Mapping[str, Any]:
    """A value that is an object. ApiError if it is none."""
    if not isinstance(value, Mapping):
        raise invalid(param, "must be an object")
    return value


def item_of(value: Any, param: str = "item") -> Item:
    """A message that a client writes. ApiError for what is not text to speak."""
    item = validated(GivenItem, an_object(value, param))
    if item.type != "message":
        raise unsupported(f"items of type {item.type[:80]!r}", f"{param}.type")
    if item.role == "system":
        raise unsupported(
            "messages of the system (instructions with apply_instructions say how to speak)",
            f"{param}.role",
        )
    for part in item.content:
        if part.type not in TEXTS:
            raise unsupported(f"content of type {part.type[:80]!r}", f"{param}.content")
    return Item(
        item.id or new_id("item"), item.role, "".join(part.text or "" for part in item.content)
    )


class Conversation:
    """Items in their order. The oldest are forgotten."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self.items: list[Item] = []

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Add an item, at the end if no other is named. Returns the id of the one before it."""
        if any(other.id == item.id for other in self.items):
            raise invalid("item.id", f"there is an item {item.id!r} already", "item_exists")
        if after is None:
            at = len(self.items)
        elif after == "root":
            at = 0
        else:
            at = self.items.index(self.find(after)) + 1
        self.items.insert(at, item)
        if at:
            before = self.items[at - 1].id
        else:
            before = None
        if len(self.items) > LIMITS.conversation_items:
            del self.items[0]
        return before

    def find(self, id: Any, param: str = "item_id") -> Item:
        """The item of an id. ApiError 404 if there is none."""
        item = next((item for item in self.items if item.id == id), None)
        if item is None:
            raise ApiError(
                404,
                f"{param}: there is no item {str(id)[:80]!r}",
                param=param,
                code="item_not_found",
            )
        return item

    def take_unspoken(self) -> str:
        """The text of the messages that have not been spoken, which counts as spoken from now
        on."""
        waiting = [item for item in self.items if not item.spoken]
        for item in waiting:
            item.spoken = True
        return "\n".join(item.text for item in waiting)


class SpokenResponse(LiveSpeech):
    """A text that is spoken as one assistant message. Events are those of the API, or of its
    beta."""

    def __init__(
        self,
        server: Server,
        plan: SpeechPlan,
        id: str,
        send: Send,
        settings: Settings,
        beta: bool,
        conversation: str | None,
        metadata: dict[str, Any] | None,
        traceparent: str | None,
    ) -> None:
        """id: of the request, by which its outcome is found. conversation: to which its item
        belongs."""
        super().__init__(server, plan, id, traceparent=traceparent)
        self.id = new_id("resp")
        self.item = Item(
            new_id("item"), "assistant", "", spoken=True, status="in_progress", response=self
        )
        self.send = send
        self.settings = settings
        self.beta = beta
        self.conversation = conversation
        self.metadata = metadata
        self.error: ApiError | None = None
        self.done = False
        self._truncated = False
        self._told = 0  # characters of the text in the transcript

    async def begin(self, text: str, before: str | None) -> None:
        """Report it and its text to the client. before: the id of the item before its
        own."""
        self.send("response.created", response=self._as_dict("in_progress"))
        self.send(
            "response.output_item.added", **self._ids(item=None), item=self.item.as_dict(self.beta)
        )
        if self.conversation is not None:
            if self.beta:
                name = "conversation.item.created"
            else:
                name = "conversation.item.added"
            self.send(name, previous_item_id=before, item=self.item.as_dict(self.beta))
        self.send(
            "response.content_part.added", **self._ids(), part={"type": "audio", "transcript": ""}
        )
        await self.feed.end(text)

    # -- speech --

    def segment_begins(self, index: int, segment: Segment) -> None:
        self._transcribe(segment.end)

    def audio(self, data: bytes) -> None:
        delta = base64.b64encode(data).decode()
        self.send(self._named("audio.delta"), audio=True, **self._ids(), delta=delta)

    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        return

    def failure(self, error: ApiError) -> None:
        self.error = error

    def end(self, running: RunningRequest | None) -> None:
        if self.error is None:
            self._transcribe(len(self.feed.text))
        self.finish("completed" if self.error is None else "failed")

    def finish(self, status: str) -> None:
        """Report to the client that it has ended: completed, cancelled or failed."""
        self.done = True
        if status == "completed" and not self._truncated:
            self.item.status = "completed"
        else:
            self.item.status = "incomplete"
        part = {"type": "audio", "transcript": self.item.text}
        self.send(self._named("audio.done"), **self._ids())
        self.send(self._named("audio_transcript.done"), **self._ids(), transcript=self.item.text)
        self.send("response.content_part.done", **self._ids(), part=part)
        self.send(
            "response.output_item.done", **self._ids(item=None), item=self.item.as_dict(self.beta)
        )
        if self.conversation is not None and not self.beta:
            self.send(
                "conversation.item.done", previous_item_id=None, item=self.item.as_dict(self.beta)
            )
        self.send("response.done", response=self._as_dict(status))

    async def truncate(self, ms: int) -> None:
        """Cut the transcript to what is audible within the first `ms` of the audio. It grows no
        more."""
        self._truncated = True
        self.item.text = self.feed.text[: await self.played(ms / 1000)]
        self.item.status = "incomplete"

    @property
    def sent_ms(self) -> float:
        """How much audio there is so far."""
        if self.running is None:
            return 0.0
        return 1000 * self.running.playback.sent

    # -- events --

    def _transcribe(self, end: int) -> None:
        delta = self.feed.text[self._told : end]
        if not delta:
            return
        self._told = end
        if not self._truncated:
            self.item.text += delta
        self.send(self._named("audio_transcript.delta"), **self._ids(), delta=delta)

    def _named(self, name: str) -> str:
        if self.beta:
            return f"response.{name}"
        return f"response.output_{name}"

    def _ids(self, **less: None) -> dict[str, Any]:
        ids = {"response_id": self.id, "output_index": 0}
        if less:
            return ids
        return {**ids, "item_id": self.item.id, "content_index": 0}

    def _as_dict(self, status: str) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": self._details(status),
            "output": [] if status == "in_progress" else [self.item.as_dict(self.beta)],
            "conversation_id": self.conversation,
            "metadata": self.metadata,
            "usage": None if self.running is None else _usage(self.running),
            "request_id": self.plan.id,
            **self.plan.output.marks.as_json(),
            **self.plan.ignored.as_json(),
        }
        if self.beta:
            return {**facts, "modalities": ["audio", "text"], "voice": self.settings.voice}
        return {**facts, "output_modalities": ["audio"], "audio": self.settings.response_audio()}

    def _details(self, status: str) -> dict[str, Any] | None:
        if status == "failed" and self.error is not None:
            detail = self.error.body["error"]
            return {
                "type": status,
                "error": {name: detail[name] for name in ("type", "code", "message")},
            }
        if status == "cancelled":
            return {"type": status, "reason": "client_cancelled"}
        return None


def _usage(running: RunningRequest) -> dict[str, Any]:
    """Usage with the details that Realtime has of output."""
    usage = running.run.usage.as_dict()
    return {
        **usage,
        "output_token_details": {"text_tokens": 0, "audio_tokens": usage["output_tokens"]},
    }
