"""Settings of a Realtime session, in the shape of the API and in that of its beta, and what they are in ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from stentor.output.encode import CONTAINERS
from stentor.server.errors import ApiError, from_pydantic, invalid
from stentor.server.ignored import Ignored
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Shared, Text, VoiceId

FORMATS = {"pcm16": "pcm", "g711_ulaw": "ulaw", "g711_alaw": "alaw"}  # of the beta, and what we call them
TYPES = {"audio/pcm": "pcm", "audio/pcmu": "ulaw", "audio/pcma": "alaw"}
RATE = 24_000  # Hz of pcm where a client says nothing
Modalities = list[Literal["text", "audio"]]
Some = TypeVar("Some", bound=BaseModel)
OURS = ("type", "object", "id", "model", "expires_at")  # what a session tells itself, and a client may send back


Note = Annotated[str, Field(max_length=LIMITS.note_chars)]


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

    instructions: Text | None = None
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
        yield from (f"audio.output.{name}" for name in (audio.output or Output(speed=None)).model_extra or {})


class GivenResponse(Given):
    """A response of response.create. input: what it speaks in place of the conversation."""

    conversation: Literal["auto", "none"] = "auto"
    input: list[Any] | None = Field(None, max_length=LIMITS.conversation_items)
    metadata: Annotated[dict[Note, Note], Field(max_length=LIMITS.metadata_items)] | None = None


def unsupported(what: str, param: str | None = None) -> ApiError:
    """Error for what this API can do elsewhere, and not here."""
    return ApiError(400, f"{what}: this server speaks text, and does nothing else", param=param, code="unsupported")


@dataclass(frozen=True)
class Settings:
    """How responses are spoken. model: as the client named it."""

    model: str | None = None
    voice: str = "default"
    speed: float = 1.0
    instructions: str = ""
    format: str = "pcm"
    rate: int = RATE

    def updated(self, given: Given, ignored: Ignored) -> Settings:
        """These with what a client gives. ApiError for what is no speech from text."""
        if given.tools:
            raise unsupported("tools", "tools")
        for name in ("output_modalities", "modalities"):
            wanted = getattr(given, name)
            if wanted is not None and "audio" not in wanted:
                raise unsupported(f"{name} without audio", name)
        for name in given.unused():
            ignored.field(name, "means nothing for speech from text")
        output = (given.audio.output if given.audio else None) or Output(speed=None)
        voice = output.voice or given.voice
        speed = output.speed or given.speed
        found: dict[str, Any] = {
            "voice": voice.id if isinstance(voice, VoiceId) else voice,
            "speed": speed,
            "instructions": given.instructions,
            **_format(output.format, given.output_audio_format),
        }
        return replace(self, **{k: v for k, v in found.items() if v is not None})

    def body(self) -> Shared:
        """Make a request of ours. ApiError for what that does not take."""
        given = {
            "model": self.model,
            "voice": self.voice,
            "speed": self.speed,
            "instructions": self.instructions or None,
            "response_format": self.format,
            "sample_rate": self.rate,
        }
        try:
            return Shared.model_validate(given)
        except ValidationError as e:
            raise from_pydantic(e) from None

    def session(self, id: str, model: str, beta: bool) -> dict[str, Any]:
        """The session as a client reads it."""
        shared: dict[str, Any] = {
            "id": id,
            "object": "realtime.session",
            "model": model,
            "instructions": self.instructions,
        }
        shared |= {"tools": [], "tool_choice": "none"}
        if beta:
            format = next(name for name, ours in FORMATS.items() if ours == self.format)
            more = {"input_audio_format": "pcm16", "output_audio_format": format, "turn_detection": None}
            return {**shared, "modalities": ["audio", "text"], "voice": self.voice, "speed": self.speed, **more}
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
        rate = {"rate": self.rate} if self.format == "pcm" else {}
        return {"output": {"format": {"type": type, **rate}, "voice": self.voice}}


def _format(format: Format | None, beta: str | None) -> dict[str, Any]:
    """Our format and its rate. None where the client says nothing."""
    if format is None and beta is None:
        return {}
    found = FORMATS[beta or "pcm16"] if format is None else TYPES[format.type]
    if found != "pcm":
        return {"format": found, "rate": CONTAINERS[found].rates[0]}
    return {"format": found, "rate": RATE if format is None or format.rate is None else format.rate}


def parsed(kind: type[Some], value: Any, param: str) -> Some:
    """A session or a response. ApiError names the field that is wrong."""
    if not isinstance(value, Mapping):
        raise invalid(param, "must be an object")
    try:
        return kind.model_validate(value)
    except ValidationError as e:
        raise from_pydantic(e) from None
