"""Validation of requests. Whatever a caller can get wrong is found here, before anything is
queued."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor import audio
from stentor.arguments import not_unicode, shown, whole
from stentor.engine.seeds import MAX_SEED, MAX_TRIES, TRIES, random_seed
from stentor.errors import InvalidRequest
from stentor.models.info import ModelInfo, Option, ReferenceAudio, SpeechRequest
from stentor.speech.client_names import OPENAI_VOICES, openai_voice, own_voice

if TYPE_CHECKING:
    from stentor.models.info import Adapter

Given = audio.Reference | ReferenceAudio
"""Reference audio as a caller gives it, or as `load` made it."""


NAMED = (
    "voice",
    "language",
    "instructions",
    "reference",
    "prompt",
    "speaker_embedding",
    "seed",
    "live",
    "speed",
)
"""Arguments of `build` that are not options of a family."""


OF_A_VOICE = ("voice", "reference", "prompt", "speaker_embedding")
"""Arguments of `build` that say which voice speaks."""


def build(
    spec: ModelInfo,
    text: object,
    *,
    model: str = "this model",
    voice: str | None = None,
    language: str | None = "auto",
    instructions: str | None = None,
    reference: Given | Sequence[Given] | None = None,
    prompt: Given | None = None,
    speaker_embedding: Sequence[float] | np.ndarray | None = None,
    seed: int | None = None,
    live: bool = False,
    speed: float = 1.0,
    lora: Adapter | None = None,
    options: Mapping[str, Any],
) -> SpeechRequest:
    """A checked request. Audio that was loaded before is not loaded again. Options that are None
    take the family's default. A missing seed is drawn at random. InvalidRequest names the first
    field that is wrong and what is allowed, and calls the model `model`. speed: within
    `spec.own_speed`, see `own_speed`."""
    values = _options(spec, options, model)
    references = load_references(spec, reference, model)
    voice_name = _voice(spec, voice, model)
    return SpeechRequest(
        text=_text(spec, text),
        voice=spec.default_voice if voice_name is None and not references else voice_name,
        language=_language(spec, language, model),
        instructions=_instructions(spec, instructions, model),
        reference=references[0] if references else None,
        more_references=references[1:],
        prompt=load_prompt(spec, prompt, model),
        speaker_embedding=_speaker(spec, speaker_embedding, references, model),
        live=_live(spec, live, model),
        seed=_seed(seed),
        options=values,
        speed=_speed(spec, speed, model),
        lora=lora,
    )


def own_speed(spec: ModelInfo, speed: float) -> float:
    """Return the part of a speed that the family speaks itself. The rest is stretched."""
    if spec.own_speed is None:
        return 1.0
    slowest, fastest = spec.own_speed
    return min(max(speed, slowest), fastest)


def check_text(text: object) -> str:
    """A text of any length. InvalidRequest if it is none, is empty or is not valid Unicode."""
    if not isinstance(text, str):
        raise InvalidRequest("text", f"must be a string, got {type(text).__name__}")
    if not text.strip():
        raise InvalidRequest("text", "must not be empty")
    return _unicode("text", text)


def texts(value: object) -> list[Any]:
    """A text, or several that are not checked yet. InvalidRequest if it is neither."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set):
        return list(value)
    return [check_text(value)]


def _text(spec: ModelInfo, text: object) -> str:
    checked = check_text(text)
    if len(checked) > spec.max_text:
        raise InvalidRequest(
            "text", f"has {len(checked)} characters, at most {spec.max_text} are allowed"
        )
    return checked


def _unicode(param: str, text: str) -> str:
    if (wrong := not_unicode(text)) is not None:
        raise InvalidRequest(param, wrong)
    return text


def _voice(spec: ModelInfo, voice: str | None, model: str) -> str | None:
    """The model's voice of a name, which may be one of OpenAI's or Kokoro's."""
    if isinstance(voice, str):
        model_voice = own_voice(voice, spec.voices, spec.voice_mixes)
        if model_voice is not None:
            return model_voice
        if voice.lower() in OPENAI_VOICES:
            return openai_voice(voice, spec.voices)
    return _name("voice", voice, spec.voices, model)


def _name(param: str, value: str | None, names: tuple[str, ...], model: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(param, f"must be a string, got {type(value).__name__}")
    if value.lower() in names:
        return value.lower()
    if names:
        allowed = f"known: {', '.join(names)}"
    else:
        allowed = f"{model} has no named {param}s"
    raise InvalidRequest(param, f"{shown(value)} is not known; {allowed}")


def _language(spec: ModelInfo, language: str | None, model: str) -> str:
    if language is None:
        return "auto"
    return _name("language", language, ("auto", *spec.languages), model) or "auto"


def _instructions(spec: ModelInfo, instructions: str | None, model: str) -> str | None:
    if instructions is None:
        return None
    if not isinstance(instructions, str):
        raise InvalidRequest("instructions", f"must be a string, got {type(instructions).__name__}")
    if not spec.takes_instructions:
        raise InvalidRequest("instructions", f"{model} takes none")
    if len(instructions) > spec.max_text:
        raise InvalidRequest(
            "instructions", f"has {len(instructions)} characters, at most {spec.max_text}"
        )
    return _unicode("instructions", instructions).strip() or None


def load_references(
    spec: ModelInfo, value: Given | Sequence[Given] | None, model: str
) -> tuple[ReferenceAudio, ...]:
    """One reference, or several where the family takes them, read and checked. Raises
    InvalidRequest if they cannot be used.

    What was loaded before is taken as it is.
    """
    references: list[Any] = []
    if isinstance(value, list | tuple):
        references = list(value)
    elif value is not None:
        references = [value]
    if references and not spec.takes_reference:
        raise InvalidRequest("reference", f"{model} takes none")
    if len(references) > spec.max_references:
        raise InvalidRequest(
            "reference", f"{model} takes {spec.max_references}, got {len(references)}"
        )
    return tuple(load(spec, "reference", r) for r in references)


def load_voices(spec: ModelInfo, value: object, model: str) -> dict[str, str | ReferenceAudio]:
    """Read what names of voices stand for, by the name in lower case: a reference, or one of the
    model's voices.

    InvalidRequest names the one that is wrong.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            "voices", f"must be a mapping of names to references, got {type(value).__name__}"
        )
    voices: dict[str, str | ReferenceAudio] = {}
    for name, voice in value.items():
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest(
                "voices", f"has a name that is no string, or is empty: {shown(name)}"
            )
        param = f"voices[{name.strip()[:80]}]"
        if isinstance(voice, str):
            voices[name.strip().lower()] = voice
        elif isinstance(voice, audio.Reference | ReferenceAudio):
            if not spec.takes_reference:
                raise InvalidRequest(param, f"{model} takes no reference")
            voices[name.strip().lower()] = load(spec, param, voice)
        else:
            raise InvalidRequest(
                param, f"must be a Reference or the name of a voice, got {type(voice).__name__}"
            )
    return voices


def load_prompt(spec: ModelInfo, value: Given | None, model: str) -> ReferenceAudio | None:
    """Load the audio of a prompt."""
    if value is None:
        return None
    if not spec.takes_prompt:
        raise InvalidRequest("prompt", f"{model} takes none")
    return load(spec, "prompt", value)


def _speaker(
    spec: ModelInfo, value: object, references: tuple[ReferenceAudio, ...], model: str
) -> np.ndarray | None:
    if value is None:
        return None
    name = "speaker_embedding"
    if not spec.speaker_size:
        raise InvalidRequest(name, f"{model} takes none")
    if references:
        raise InvalidRequest(name, "stands for a reference: give one of them")
    try:
        embedding = np.asarray(value)
    except ValueError:  # rows of different lengths
        raise InvalidRequest(name, "must be a list of numbers") from None
    if embedding.dtype.kind not in "fiu":
        raise InvalidRequest(name, "must be a list of numbers")
    with np.errstate(over="ignore"):
        vector = embedding.astype(np.float32)
    if vector.shape != (spec.speaker_size,):
        if vector.ndim == 1:
            shape = f"{len(vector)} numbers"
        else:
            shape = f"shape {list(vector.shape)}"
        raise InvalidRequest(name, f"has {shape}; {model} takes {spec.speaker_size}")
    if not np.isfinite(vector).all():
        raise InvalidRequest(name, "holds numbers that are NaN or infinite in float32")
    return vector


def load(spec: ModelInfo, param: str, value: Given) -> ReferenceAudio:
    """Reference audio for a model. Raises InvalidRequest, naming `param` and the fault."""
    if isinstance(value, ReferenceAudio):
        recording = value.recording  # which was checked for this model when it was loaded
    else:
        recording = audio.load(value, param, spec.reference_seconds)
    return ReferenceAudio(
        recording, None if value.text is None else _unicode(f"{param}.text", value.text)
    )


def _live(spec: ModelInfo, live: object, model: str) -> bool:
    if not isinstance(live, bool):
        raise InvalidRequest("live", f"must be true or false, got {shown(live)}")
    if live and not spec.live_text:
        raise InvalidRequest("live", f"{model} needs the complete text at once")
    return live


def _speed(spec: ModelInfo, speed: object, model: str) -> float:
    """The speed at which the family speaks by itself."""
    slowest, fastest = spec.own_speed or (1.0, 1.0)
    if isinstance(speed, bool) or not isinstance(speed, int | float):
        raise InvalidRequest("speed", f"must be a number, got {shown(speed)}")
    if not slowest <= speed <= fastest:
        raise InvalidRequest(
            "speed", f"{model} speaks at {slowest:g} to {fastest:g} by itself, got {speed!r:.80}"
        )
    return float(speed)


def word_times(value: object) -> bool:
    """Whether the times of words are wanted."""
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest("word_timestamps", f"must be true or false, got {shown(value)}")
    return bool(value)


def _seed(seed: int | None) -> int:
    if seed is None:
        return random_seed()
    number = whole(seed)
    if number is None or not 0 <= number <= MAX_SEED:
        raise InvalidRequest("seed", f"must be an integer from 0 to 2**63 - 1, got {shown(seed)}")
    return number


def retries(value: object) -> int:
    """How often an utterance is tried, `TRIES` times by default. InvalidRequest if it is no such
    number."""
    number = TRIES if value is None else whole(value)
    if number is None or not 1 <= number <= MAX_TRIES:
        raise InvalidRequest(
            "retries", f"must be a whole number from 1 to {MAX_TRIES}, got {shown(value)}"
        )
    return number


def _options(spec: ModelInfo, options: Mapping[str, Any], model: str) -> dict[str, Any]:
    for name, value in options.items():
        if name not in spec.options and value is not None:
            names = ", ".join(sorted(spec.options))
            raise InvalidRequest(name, f"{model} does not take it; it takes {names}")
    return {name: _value(name, option, options.get(name)) for name, option in spec.options.items()}


def _value(name: str, option: Option, value: Any) -> float | int | bool | None:
    if value is None:
        return option.default
    if option.kind is bool:
        if not isinstance(value, bool):
            raise InvalidRequest(name, f"must be true or false, got {shown(value)}")
        return value
    number = float(value) if isinstance(value, float | np.floating) else whole(value)
    if number is None:
        raise InvalidRequest(name, f"must be a number, got {shown(value)}")
    if not option.low <= number <= option.high or not math.isfinite(
        number
    ):  # an integer may be too large for a float
        raise InvalidRequest(
            name, f"must be from {option.low:g} to {option.high:g}, got {shown(value)}"
        )
    if option.kind is int:
        if number != int(number):
            raise InvalidRequest(name, f"must be a whole number, got {shown(value)}")
        return int(number)
    return float(number)
