"""Request bodies: the union of what clients of the known engines send. Types are checked strictly.
Unknown fields are checked by speech/plan.py, which knows the model's own options, and noted as
ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from stentor.server.errors import clipped, invalid
from stentor.server.limits import LIMITS
from stentor.speech.script import MAX_TURNS
from stentor.text.cleanup import HELP
from stentor.text.pauses import LONGEST_PAUSE

Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Text = Annotated[str, Field(max_length=LIMITS.text_chars)]
Instructions = Annotated[Text | None, BeforeValidator(lambda v: None if v == "None" else v)]
"""Clients that write an absent value as text send "None", which no model should act on."""
AudioSource = Annotated[
    str,
    Field(
        max_length=LIMITS.reference_mb << 20,
        description="Audio as a data: URI, an http(s) URL, plain base64, or a file: URL where the server allows it",
    ),
]
AudioSources = Annotated[list[AudioSource], Field(min_length=1, max_length=LIMITS.references)]
Texts = Annotated[list[Text], Field(max_length=LIMITS.references)]
# other engines' names of family options
ALIASES = {
    "max_tokens": "max_frames",
    "max_new_tokens": "max_frames",
    "max_generate_length": "max_frames",
    "cfg_value": "cfg",
    "cfg_scale": "cfg",
    "inference_timesteps": "flow_steps",
    "x_vector_only_mode": "x_vector_only",
    "suppress_bootstrap_silence": "trim_leading_silence",
    "skip_fixed_bootstrap_audio": "trim_leading_silence",
}
HEADER = "X-Ignored"


def one_of(*names: str) -> BeforeValidator:
    """Takes each of these names in any case, with or without its underscores."""
    plain_names = {_plain(name): name for name in names}
    return BeforeValidator(lambda v: plain_names.get(_plain(v), v) if isinstance(v, str) else v)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


Format = Annotated[
    Literal["wav", "mp3", "flac", "opus", "aac", "pcm", "ulaw", "alaw"],
    one_of("wav", "mp3", "flac", "opus", "aac", "pcm", "ulaw", "alaw"),
]
Task = Annotated[
    Literal["CustomVoice", "VoiceDesign", "Base"], one_of("CustomVoice", "VoiceDesign", "Base")
]
Granularity = Annotated[
    Literal["auto", "none", "sentence", "clause"], one_of("auto", "none", "sentence", "clause")
]
StreamFormat = Annotated[Literal["audio", "sse"], one_of("audio", "sse")]
Times = Annotated[
    Literal["none", "json", "srt", "vtt", "ass"], one_of("none", "json", "srt", "vtt", "ass")
]


class Body(BaseModel):
    """An object that clients send. A null is as if the field were absent."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v for k, v in value.items() if v is not None}
        return value


class VoiceId(Body):
    """A voice by id, as the OpenAI SDK sends it."""

    id: str = Field(max_length=LIMITS.name_chars)


class RefItem(Body):
    """One reference: audio (any one of the first four) and its transcript."""

    audio: AudioSource | None = None
    audio_path: AudioSource | None = None
    ref_audio: AudioSource | None = None
    data: AudioSource | None = None
    media_type: str | None = Field(None, max_length=LIMITS.name_chars)
    text: Text | None = None
    ref_text: Text | None = None


class Shared(Body):
    """Parameters of a speech request other than its text. A batch has them once for all items.

    The model's own options (temperature, top_k, cfg, ...; GET /v1/models lists them) are taken at
    the top level too.
    """

    model: str | None = Field(None, max_length=LIMITS.name_chars)
    voice: str | VoiceId | None = Field(
        None, description="Name of a voice, or {id}; 'default': the model's default voice"
    )
    speaker: str | None = Field(None, max_length=LIMITS.name_chars, description="Alias of voice")
    instructions: Instructions = Field(
        None, description="Speaking style; for some models, description of a voice to design"
    )
    instruct: Instructions = Field(None, description="Alias of instructions")
    response_format: Format | None = None
    sample_rate: int | None = Field(None, ge=8000, le=48000)
    speed: float = Field(1.0, ge=0.25, le=4.0, description="Speed at the same pitch")
    language: str | None = Field(None, max_length=LIMITS.name_chars)
    task_type: Task | None = None
    ref_audio: AudioSource | AudioSources | None = None
    ref_text: Text | Texts | None = Field(None, description="Transcript of ref_audio")
    references: list[RefItem] | None = Field(None, max_length=LIMITS.references)
    prompt_audio: AudioSource | None = Field(
        None, description="Recording to continue (models that support it)"
    )
    prompt_text: Text | None = Field(None, description="Transcript of prompt_audio")
    speaker_embedding: (
        Annotated[list[float], Field(min_length=1, max_length=LIMITS.embedding_values)] | None
    ) = Field(
        None, description="A voice as a vector, instead of ref_audio (models with a speaker_size)"
    )
    x_vector_only_mode: bool | None = Field(
        None, description="Clone only the sound of the voice, without ref_text"
    )
    max_new_tokens: int | None = Field(
        None, ge=1, description="Maximum number of frames; alias of max_frames"
    )
    seed: Annotated[Seed | None, BeforeValidator(lambda v: None if v == -1 else v)] = Field(
        None, description="Seed of the random numbers; -1: random"
    )
    initial_codec_chunk_frames: int | None = Field(
        None, ge=0, le=4096, description="Delay a stream until this many frames exist"
    )
    split_granularity: Granularity = Field(
        "auto",
        description="Where to split input; auto: the model's default, or only long input",
    )
    cleanup: str | None = Field(
        None, max_length=LIMITS.name_chars, description=f"{HELP}. Default: the server's"
    )
    guard: bool | None = Field(
        None, description="Cut off speech that runs on far beyond the length of its text"
    )
    extra_params: dict[str, Any] | None = Field(None, description="Further options of the model")
    stage_params: dict[str, dict[str, Any]] | None = Field(
        None, description="Options by stage, in SGLang-Omni's format"
    )


class ScriptTurn(Body):
    """A turn of a dialogue."""

    voice: str | None = Field(
        None, max_length=LIMITS.name_chars, description="Default: the voice of the request"
    )
    text: Text
    pause: float | None = Field(
        None, ge=0, le=LONGEST_PAUSE, description="Seconds of silence after the turn"
    )


Script = Annotated[
    list[ScriptTurn],
    Field(
        min_length=1,
        max_length=MAX_TURNS,
        description="A dialogue instead of input: turns of several voices",
    ),
]


class SpeechBody(Shared):
    """POST /v1/audio/speech."""

    input: Text | None = Field(None, description="Required, unless there is a script")
    script: Script | None = None
    stream: bool | None = Field(
        None,
        description="true: send the file while it is generated; false: send the whole file. "
        "Default: false for wav and flac, whose header states the length, and for timestamps in JSON, else true",
    )
    stream_format: StreamFormat | None = Field(
        None,
        description="audio: a stream of bytes; sse: server-sent events. Accept: text/event-stream also selects sse",
    )
    timestamps: Times = Field(
        "none",
        description="Timestamps of sentences, in sse events or a JSON response with the audio; srt, vtt, ass: "
        "also as subtitles",
    )
    word_timestamps: bool = Field(
        False,
        description="Timestamps of words, if available; sent like timestamps",
    )


class BatchItem(Shared):
    """One text of a batch. Its fields override those of the batch."""

    input: Text | None = Field(None, description="Required, unless there is a script")
    script: Script | None = None
    speed: float | None = Field(None, ge=0.25, le=4.0)  # type: ignore[assignment]
    split_granularity: Granularity | None = None  # type: ignore[assignment]


@dataclass(frozen=True)
class WrongItem:
    """An item of a batch that cannot be read, which does not fail the others."""

    error: ValidationError


def _item(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(value)
    except ValidationError as e:
        return WrongItem(e)


class BatchBody(Shared):
    """POST /v1/audio/speech/batch: up to 32 texts, spoken together."""

    items: list[Annotated[BatchItem | str, WrapValidator(_item)]] = Field(
        min_length=1, max_length=LIMITS.batch_items
    )


class Item(NamedTuple):
    """A field by its name, or a piece of the text of field `param`."""

    param: str
    text: str | None = None

    @property
    def encoded(self) -> str:
        """Printable ASCII without commas: `name`, or `name="piece"`. Both are percent-encoded."""
        name = quote(self.param, safe="[]")
        if self.text is None:
            return name
        return f'{name}="{quote(self.text, safe="")}"'

    def as_dict(self) -> dict[str, str]:
        if self.text is None:
            return {"param": self.param}
        return {"param": self.param, "text": self.text}


class Ignored:
    """Parts of one request that are not used, in the order found, each once: fields that the model
    has no use for, pieces of text that it cannot speak, and reference audio that is hardly audible.

    The answer names it in the header X-Ignored, events and JSON under `ignored`. `serve --strict`
    refuses the fields.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self._items: dict[Item, None] = {}
        self._more = 0  # beyond LIMITS.ignored_items

    def field(self, name: str, why: str) -> None:
        """Note a field that is not used, and why. ApiError 400 in a strict server."""
        if self.strict:
            raise invalid(name, why)
        self._add(Item(clipped(name, LIMITS.param_chars)))

    def unknown(self, names: Iterable[str]) -> None:
        """Note fields that this kind of request does not have."""
        for name in names:
            self.field(name, "is not a field of this request")

    def piece(self, text: str, param: str = "input") -> None:
        """Note a piece of text that cannot be spoken. A short silence stands for it, in a strict
        server too."""
        self._add(Item(param, clipped(text, LIMITS.piece_chars)))

    def quiet(self, param: str) -> None:
        """Note that the audio of field `param` is so quiet that speech made with it is hardly
        audible."""
        self._add(Item(param, "quiet"))

    def _add(self, item: Item) -> None:
        if item in self._items:
            return
        if len(self._items) < LIMITS.ignored_items:
            self._items[item] = None
        else:
            self._more += 1

    def copy(self) -> Ignored:
        """One that goes on by itself."""
        same = Ignored(self.strict)
        same._items = dict(self._items)
        same._more = self._more
        return same

    def extend(self, others: Ignored) -> None:
        """Note those of another too."""
        for item in others._items:
            self._add(item)
        self._more += others._more

    def renamed(self, names: Mapping[str, str]) -> Ignored:
        """Return them with other names of fields."""
        same = Ignored(self.strict)
        same._items = {
            item._replace(param=names.get(item.param, item.param)): None for item in self._items
        }
        same._more = self._more
        return same

    def header(self) -> dict[str, str]:
        """The header of an answer. Without one if everything is used. `+3` at its end: three more
        are not named."""
        encoded: list[str] = []
        size = 0
        for item in self._items:
            size += len(item.encoded) + 2
            if size > LIMITS.ignored_bytes:
                break
            encoded.append(item.encoded)
        more = len(self._items) - len(encoded) + self._more
        encoded += [f"+{more}"] if more else []
        if encoded:
            return {HEADER: ", ".join(encoded)}
        return {}

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """Member of an event or a JSON answer: `{"ignored": [{"param", "text"?}, ...]}`, or
        nothing."""
        if self._items:
            return {"ignored": [item.as_dict() for item in self._items]}
        return {}
