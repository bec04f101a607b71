"""The requests of each kind of server: endpoint, body, and the framing of its answer.

A backend is a row in a table. Bodies request uncompressed audio, because compressed bytes cannot be
timed. Sources of the bodies: OpenAI's speech API, the documented speech API of vLLM-Omni
(SGLang-Omni and stentor read its `stream` and `stream_format` too), its WebSocket protocol, the
`/generate` schema of nanovllm-voxcpm, and the public parameters of fish-speech's `/v1/tts`.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Framing

Body = dict[str, Any]


@dataclass(frozen=True)
class RequestDefaults:
    """Fields that every request of a run shares. None: not sent."""

    model: str | None = None
    voice: str | None = None
    language: str | None = None
    instructions: str | None = None
    response_format: str = "pcm"
    seed: int | None = None
    file_references: bool = False
    """Send reference audio as a file:// path for servers on this machine, not as data."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerBackend:
    """A kind of server."""

    name: str
    endpoint: str
    framing: Framing
    body: Callable[[TextItem, RequestDefaults], Body]
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every body has besides."""


def request_body(backend: ServerBackend, prompt: TextItem, defaults: RequestDefaults) -> Body:
    """The JSON body for one prompt: the backend's own fields, then the prompt's and the run's
    extras over them."""
    body = backend.body(prompt, defaults)
    body = {key: value for key, value in body.items() if value is not None}
    return body | dict(backend.more) | dict(defaults.extra_body) | dict(prompt.extra_body)


def _speech(prompt: TextItem, defaults: RequestDefaults) -> Body:
    return {
        "model": defaults.model,
        "input": prompt.text,
        "voice": prompt.voice or defaults.voice,
        "language": prompt.language or defaults.language,
        "instructions": prompt.instructions or defaults.instructions,
        "ref_audio": _reference(prompt, defaults),
        "ref_text": prompt.ref_text,
        "seed": defaults.seed,
        "response_format": defaults.response_format,
    }


def _session(prompt: TextItem, defaults: RequestDefaults) -> Body:
    """The first WebSocket message. The text follows in other messages."""
    body = _speech(prompt, defaults)
    del body["input"]
    return {"type": "session.config", "stream_audio": True} | body


def _generate(prompt: TextItem, defaults: RequestDefaults) -> Body:
    if prompt.ref_audio:
        data = base64.b64encode(prompt.ref_audio.read_bytes()).decode()
    else:
        data = None
    if prompt.ref_audio:
        suffix = prompt.ref_audio.suffix.lstrip(".")
    else:
        suffix = None
    continued = prompt.ref_text is not None
    return {
        "target_text": prompt.text,
        "prompt_wav_base64": data if continued else None,
        "prompt_wav_format": suffix if continued else None,
        "prompt_text": prompt.ref_text,
        "ref_audio_wav_base64": None if continued else data,
        "ref_audio_wav_format": None if continued else suffix,
        "seed": defaults.seed,
        "response_format": defaults.response_format,
    }


def _tts(prompt: TextItem, defaults: RequestDefaults) -> Body:
    references = None
    if prompt.ref_audio:
        audio = base64.b64encode(prompt.ref_audio.read_bytes()).decode()
        references = [{"audio": audio, "text": prompt.ref_text or ""}]
    return {
        "text": prompt.text,
        "reference_id": prompt.voice or defaults.voice,
        "references": references,
        "seed": defaults.seed,
        "format": "wav",  # the only format this server streams
        "streaming": True,
    }


def _reference(prompt: TextItem, defaults: RequestDefaults) -> str | None:
    if prompt.ref_audio is None:
        return None
    if defaults.file_references:
        return prompt.ref_audio.resolve().as_uri()
    kind = prompt.ref_audio.suffix.lstrip(".").lower() or "wav"
    return f"data:audio/{kind};base64,{base64.b64encode(prompt.ref_audio.read_bytes()).decode()}"


BACKENDS = {
    backend.name: backend
    for backend in (
        ServerBackend(
            "stentor",
            "/v1/audio/speech",
            "raw",
            _speech,
            {"stream": True, "stream_format": "audio"},
        ),
        ServerBackend(
            "openai-audio-speech",
            "/v1/audio/speech",
            "raw",
            _speech,
            {"stream": True, "stream_format": "audio"},
        ),
        ServerBackend(
            "openai-audio-speech-sse",
            "/v1/audio/speech",
            "sse",
            _speech,
            {"stream": True, "stream_format": "sse"},
        ),
        ServerBackend("websocket", "/v1/audio/speech/stream", "websocket", _session),
        ServerBackend("nanovllm", "/generate", "raw", _generate),
        ServerBackend("fish", "/v1/tts", "raw", _tts),
    )
}
