"""Names that clients send, whatever is served: OpenAI's models and voices, and those of
Kokoro-FastAPI."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from stentor.arguments import shown
from stentor.errors import InvalidRequest
from stentor.text.voice_mix import SEPARATOR, parse_mix

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
_USUAL = re.compile(
    rf"({'|'.join(OPENAI_MODELS)})(-\d+)*|kokoro|eleven_\w+|gpt-((4o-)?(mini-)?realtime|audio)[\w.-]*"
)
OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
)

_ELEVENLABS_VOICE = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z0-9]{20}")
_KOKORO_VOICE = re.compile(r"[a-z][fm]_(\w+)")


def is_usual_model(name: str) -> bool:
    """Whether a name is of a speech model of OpenAI, or of a version of one, such as tts-1-1106, of
    one of ElevenLabs, such as eleven_flash_v2_5, or is kokoro."""
    return _USUAL.fullmatch(name.lower()) is not None


def taken_by_model(name: str, served: Container[str]) -> str | None:
    """Why an adapter cannot have a name. served: names of models. None: it can."""
    if name in served:
        return f"{name!r} is the name of a model here"
    if is_usual_model(name):
        return f"{name!r} is a name that clients send for whatever model is served; choose another"
    return None


def openai_voice(name: str, voices: Sequence[str]) -> str | None:
    """The one of a model's own voices that stands for a voice of OpenAI. None: the model's default
    voice.

    Each name always gets the same voice. With fewer voices than names, the order begins again.
    """
    if voices:
        return voices[OPENAI_VOICES.index(name.lower()) % len(voices)]
    return None


def is_elevenlabs_voice(name: str) -> bool:
    """Whether a name looks like the id of a voice of ElevenLabs, such as 21m00Tcm4TlvDq8ikWAM."""
    return _ELEVENLABS_VOICE.fullmatch(name) is not None


def own_voice(name: str, voices: Sequence[str], mixes: bool = False) -> str | None:
    """The model's own voice of this name, in any case, or None. `af_heart`, as Kokoro writes it, is
    `heart`.

    mixes: `first(2)+second` is one too, if both are. InvalidRequest names the fault.
    """
    if mixes and SEPARATOR in name:
        return _mix(name, voices)
    name = name.lower()
    prefixed = _KOKORO_VOICE.fullmatch(name)
    if name in voices:
        return name
    if prefixed and prefixed[1] in voices:
        return prefixed[1]
    return None


def _mix(name: str, voices: Sequence[str]) -> str | None:
    try:
        parts = parse_mix(name)
    except ValueError as e:
        raise InvalidRequest("voice", f"{shown(name)} {e}") from None
    mix = [(own_voice(voice, voices), weight) for voice, weight in parts]
    if any(voice is None for voice, _ in mix):
        return None
    return SEPARATOR.join(f"{voice}({weight:g})" for voice, weight in mix)
