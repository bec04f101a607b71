"""Fields of ElevenLabs' API, and what they are in ours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import AliasChoices, Field

from stentor.server.errors import ApiError, invalid, validated
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Ignored, Seed, SpeechBody, Text
from stentor.speech.script import MAX_TURNS, MAX_VOICES
from stentor.speech.timing import SegmentTiming
from stentor.text.cleanup import ALL, NONE

RATES = ("8000", "16000", "22050", "24000", "32000", "44100", "48000")
NAMES = [
    *(
        f"mp3_{n}"
        for n in (
            "22050_32",
            "24000_48",
            "44100_32",
            "44100_64",
            "44100_96",
            "44100_128",
            "44100_192",
        )
    ),
    *(f"opus_48000_{n}" for n in ("32", "64", "96", "128", "192")),
    *(f"{format}_{rate}" for format in ("pcm", "wav") for rate in RATES),
    "ulaw_8000",
    "alaw_8000",
]
USUAL = "mp3_44100_128"
THEIRS = {  # our fields by the names that clients of this API know
    "input": "text",
    "voice": "voice_id",
    "model": "model_id",
    "language": "language_code",
    "speed": "voice_settings.speed",
    "cleanup": "apply_text_normalization",
}
IN_SCRIPT = re.compile(r"script\[(\d+)\]\.(\w+)")
"""A field of a turn, as plans name it."""
CLEANUP = {"on": ALL, "off": NONE}
Normalization = Literal["auto", "on", "off"]


class OutputFormat(NamedTuple):
    """One of NAMES. bit_rate: bits per second, where the format has one."""

    format: str
    rate: int
    bit_rate: int | None


def output_format(name: str | None) -> OutputFormat:
    """The format of this name. ApiError 400 for one that there is not."""
    if (name or USUAL) not in NAMES:
        raise invalid("output_format", f"must be one of {', '.join(NAMES)}")
    format, rate, *bits = (name or USUAL).split("_")
    return OutputFormat(format, int(rate), 1000 * int(bits[0]) if bits else None)


class VoiceSettings(Body):
    """How a voice speaks. Settings that no model here has, such as stability, are named as
    ignored."""

    speed: float | None = Field(None, ge=0.25, le=4.0, description="Speed at the same pitch")

    def unused(self, field: str) -> dict[str, Any]:
        """Settings without a counterpart, by the names that answers call them. field: that holds
        these settings."""
        return {f"{field}.{name}": value for name, value in (self.model_extra or {}).items()}


class SpokenBody(Body):
    """Fields that a text and a dialogue share. The model's own options are taken too."""

    model_id: str | None = Field(None, max_length=LIMITS.name_chars)
    language_code: str | None = Field(None, max_length=LIMITS.name_chars)
    seed: Seed | None = None
    apply_text_normalization: Normalization = Field(
        "auto", description="auto: as the server cleans all text"
    )

    @property
    def speed(self) -> float | None:
        """How fast it is spoken."""
        raise NotImplementedError

    def content(self) -> dict[str, Any]:
        """Fields of ours for the text or the dialogue."""
        raise NotImplementedError

    def unused(self) -> dict[str, Any]:
        """Fields that are not of this API, by the names that answers call them."""
        return dict(self.model_extra or {})


class Speak(SpokenBody):
    """POST /v1/text-to-speech/{voice_id}."""

    text: Text
    voice_settings: VoiceSettings | None = None

    @property
    def speed(self) -> float | None:
        return self.voice_settings.speed if self.voice_settings else None

    def content(self) -> dict[str, Any]:
        return {"input": self.text}

    def unused(self) -> dict[str, Any]:
        settings = self.voice_settings.unused("voice_settings") if self.voice_settings else {}
        return {**super().unused(), **settings}


class Line(Body):
    """A line of a dialogue."""

    text: Text
    voice_id: str = Field(min_length=1, max_length=LIMITS.name_chars)


def unused_in(lines: Sequence[Line]) -> dict[str, Any]:
    """Fields of lines without a counterpart, by the names that answers call them."""
    return {
        f"inputs.{i}.{name}": value
        for i, line in enumerate(lines)
        for name, value in (line.model_extra or {}).items()
    }


class Dialogue(SpokenBody):
    """POST /v1/text-to-dialogue."""

    inputs: Annotated[list[Line], Field(min_length=1, max_length=MAX_TURNS)]
    settings: VoiceSettings | None = None

    @property
    def speed(self) -> float | None:
        return self.settings.speed if self.settings else None

    def content(self) -> dict[str, Any]:
        return {"script": [{"voice": line.voice_id, "text": line.text} for line in self.inputs]}

    def unused(self) -> dict[str, Any]:
        settings = self.settings.unused("settings") if self.settings else {}
        return {**super().unused(), **settings, **unused_in(self.inputs)}


class GenerationConfig(Body):
    """When text that arrives bit by bit is spoken."""

    chunk_length_schedule: (
        Annotated[
            list[Annotated[float, Field(ge=1, le=LIMITS.text_chars)]],
            Field(min_length=1, max_length=LIMITS.schedule_items),
        ]
        | None
    ) = Field(None, description="Characters to wait for before the first audio, the second, ...")


class InputMessage(Body):
    """A message of a socket on which text arrives."""

    first_only: ClassVar[tuple[str, ...]] = ("voice_settings",)
    """Fields that count in the first message of a context."""

    voice_settings: VoiceSettings | None = None
    flush: bool = False
    context_id: str | None = Field(
        None,
        max_length=LIMITS.name_chars,
        validation_alias=AliasChoices("context_id", "contextId"),
    )
    close_context: bool = False
    close_socket: bool = False

    @property
    def size(self) -> int:
        """Characters of its text."""
        raise NotImplementedError

    def unused(self) -> dict[str, Any]:
        """Fields without a counterpart. A key counts at the handshake, and is nowhere repeated."""
        keys = ("xi_api_key", "xi-api-key", "authorization", "single_use_token")
        return {name: value for name, value in (self.model_extra or {}).items() if name not in keys}


class Input(InputMessage):
    """A message of stream-input or multi-stream-input."""

    first_only = ("voice_settings", "generation_config")

    text: str | None = None
    generation_config: GenerationConfig | None = Field(
        None, validation_alias=AliasChoices("generation_config", "generator_config")
    )
    try_trigger_generation: bool = False

    @property
    def size(self) -> int:
        return len(self.text or "")


class LiveLine(Line):
    """A line of a dialogue that is being written, or a part of one."""

    new_turn: bool = False


class DialogueInput(InputMessage):
    """A message of text-to-dialogue's stream-input or multi-stream-input."""

    first_only = ("voice_settings", "voices")

    voices: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=LIMITS.name_chars)]],
            Field(max_length=MAX_VOICES),
        ]
        | None
    ) = None
    inputs: list[LiveLine] = Field(default_factory=list, max_length=MAX_TURNS)
    keep_alive: bool = False

    @property
    def size(self) -> int:
        return sum(len(line.text) for line in self.inputs)

    def unused(self) -> dict[str, Any]:
        return {**super().unused(), **unused_in(self.inputs)}


def speech_body(
    voice: str | None,
    model: str | None,
    language: str | None,
    output: OutputFormat,
    seed: int | None,
    speed: float | None,
    normalization: Normalization,
    query: Mapping[str, str],
    more: Mapping[str, Any],
    **ours: Any,
) -> SpeechBody:
    """Our body for a request or a socket, with further fields `ours`. more: those without a
    counterpart, which the plan uses as the model's options or names as ignored. ApiError for a
    field of ours under our name."""
    fields = {
        "voice": voice,
        "model": model,
        "language": language,
        "response_format": output.format,
        "sample_rate": output.rate,
        "seed": seed,
        "speed": speed,
        "cleanup": CLEANUP.get(normalization),
        "word_timestamps": True,  # without times of words, for which `Planner.times_words` looks
        **ours,
    }
    translated = {name: value for name, value in fields.items() if value is not None}
    if latency := query.get("optimize_streaming_latency"):
        more = {**more, "optimize_streaming_latency": latency}
    for name in more:
        if name in translated:
            raise invalid(
                name, f"{name!r} is not a field of this API, which has it under this name"
            )
    return validated(SpeechBody, {**more, **translated})


def theirs(error: ApiError) -> ApiError:
    """The error with the field's name as clients of this API know it."""
    param = error.param or ""
    line = IN_SCRIPT.fullmatch(param)
    if line is not None:
        return error.renamed(f"inputs.{line[1]}.{THEIRS.get(line[2], line[2])}")
    name = THEIRS.get(param)
    if name is None:
        return error
    return error.renamed(name)


def ignored(found: Ignored) -> Ignored:
    """Rename ignored fields as clients of this API know them."""
    return found.renamed(THEIRS)


def detail(error: ApiError) -> dict[str, Any]:
    """The error as ElevenLabs' clients read it, beside OpenAI's envelope."""
    renamed = theirs(error)
    status = renamed.code or renamed.body["error"]["type"]
    return {
        "detail": {"status": status, "message": renamed.message, "param": renamed.param},
        **renamed.body,
    }


def error_message(error: ApiError) -> dict[str, Any]:
    """The error as a message of a socket."""
    renamed = theirs(error)
    return {
        "message": renamed.message,
        "error": renamed.code or renamed.body["error"]["type"],
        "code": 1008,
        "param": renamed.param,
    }


@dataclass(frozen=True)
class Characters:
    """Characters in a row. bounds: seconds [n + 1], where each begins, and where the last ends."""

    text: str
    bounds: np.ndarray

    def as_seconds(self) -> dict[str, Any]:
        """Times in seconds, for answers over HTTP."""
        return {
            "characters": list(self.text),
            "character_start_times_seconds": self.bounds[:-1].round(4).tolist(),
            "character_end_times_seconds": self.bounds[1:].round(4).tolist(),
        }

    def as_ms(self, origin: float | None = None) -> dict[str, Any]:
        """Times for messages over WebSocket: whole milliseconds from `origin` (seconds) on, or from
        the first character."""
        ms = np.rint(1000 * self.bounds).astype(int)
        zero = ms[0] if origin is None else round(1000 * origin)
        return {
            "chars": list(self.text),
            "charStartTimesMs": (ms[:-1] - zero).tolist(),
            "charDurationsMs": np.diff(ms).tolist(),
        }


class Aligner:
    """Returns the characters of a text once each, in order. What lies between two segments belongs
    to the second.

    Between the places whose times are known, characters share the time evenly.
    """

    def __init__(self) -> None:
        self.at = 0  # returned so far
        self.seconds = 0.0

    def take(self, text: str, segments: Sequence[SegmentTiming], rest: bool = False) -> Characters:
        """Take characters to the end of the last of these segments. rest: with what no segment has,
        as a line end."""
        places = [(self.at, self.seconds)]
        for times in segments:
            places.append((times.start_char, times.start))
            for word in times.words:
                places += [(word.start_char, word.start), (word.end_char, word.end)]
            places.append((times.end_char, times.end))
        begin = self.at
        if rest:
            stop = len(text)
        else:
            stop = max(self.at, min(places[-1][0], len(text)))
        positions, seconds = np.maximum.accumulate(np.array(places, float)).T
        bounds = np.interp(np.arange(begin, stop + 1), positions, seconds)
        self.at = stop
        self.seconds = float(bounds[-1])
        return Characters(text[begin:stop], bounds)
