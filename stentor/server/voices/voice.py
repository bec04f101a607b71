"""Uploaded voices without their audio, and the list of all voices of a server as clients see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stentor.server.limits import LIMITS

Audio = tuple[np.ndarray, int]
"""Mono float32 samples [n] and their rate in Hz."""

LONGEST_SECONDS = LIMITS.voice_max_seconds + 1  # what is stored may have the padding of its codec
PLACEHOLDERS = ("default", "auto")  # names of no voice: the model takes its own
DTYPES = ("F16", "F32", "F64")  # as safetensors names them
# as vLLM-Omni calls them
DEFAULT_MIME = {"audio": "audio/wav", "embedding": "application/x-safetensors"}


def check_tensor(kind: str, facts: Mapping[str, str], dtype: str, shape: Sequence[int]) -> None:
    """KeyError or ValueError if the tensor of a voice's file cannot be one. Nothing of it has been
    read yet."""
    if dtype not in DTYPES or len(shape) != 1 or not shape[0]:
        raise ValueError(
            f"{kind} is {dtype} {list(shape)}, must be one of {', '.join(DTYPES)} with one dimension"
        )
    if kind == "embedding":
        if shape[0] > LIMITS.embedding_values or facts.get("dim", str(shape[0])) != str(shape[0]):
            raise ValueError(f"the embedding has {shape[0]} numbers")
        return
    rate = int(facts["rate"])
    if not LIMITS.min_audio_hz <= rate <= LIMITS.max_audio_hz or shape[0] > LONGEST_SECONDS * rate:
        raise ValueError(
            f"{shape[0]} samples at {rate} Hz are not 0 to {LONGEST_SECONDS:g} s of audio"
        )


@dataclass(frozen=True)
class Voice:
    """Facts about an uploaded voice, without its audio. kind: "audio" or "embedding".

    identity: of the file that it was read from, which changes whenever the voice does.
    """

    name: str
    kind: str
    created_at: int
    consent: str
    text: str | None
    description: str | None
    seconds: float
    size: int  # bytes of the file
    mime_type: str
    dim: int | None = None  # numbers of an embedding
    identity: tuple[int, int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's Voice object and what vLLM-Omni's clients read."""
        if self.dim is None:
            embedding = {}
        else:
            embedding = {"embedding_dim": self.dim}
        return {
            "id": self.name,
            "object": "audio.voice",
            "name": self.name,
            "type": "uploaded",
            "created_at": self.created_at,
            "consent": self.consent,
            "ref_text": self.text,
            "speaker_description": self.description,
            "embedding_source": "audio" if self.kind == "audio" else "direct",
            **embedding,
            "mime_type": self.mime_type,
            "duration": round(self.seconds, 3),
            "file_size": self.size,
        }


def described(
    name: str,
    facts: dict[str, str],
    kind: str,
    size: int,
    identity: tuple[int, int, int] | None = None,
) -> Voice:
    """A voice by the metadata of its file. KeyError or ValueError if they are not of a voice."""
    texts = {
        "consent": LIMITS.note_chars, "text": LIMITS.transcript_chars, "description": LIMITS.note_chars,
        "mime_type": LIMITS.name_chars,
    }  # fmt: skip
    for key, max_chars in texts.items():
        if len(facts.get(key, "")) > max_chars:
            raise ValueError(f"{key} has more than {max_chars} characters")
    created_at = int(facts["created_at"])
    seconds = float(facts.get("seconds", 0))
    if not 0 <= created_at < 1 << 53 or not 0 <= seconds <= LONGEST_SECONDS:
        raise ValueError("created_at or seconds is out of range")
    return Voice(
        name=name,
        kind=kind,
        created_at=created_at,
        consent=facts.get("consent", ""),
        text=facts.get("text"),
        description=facts.get("description"),
        seconds=seconds,
        size=size,
        mime_type=facts.get("mime_type", DEFAULT_MIME[kind]),
        dim=int(facts["dim"]) if "dim" in facts else None,
        identity=identity,
    )


def _entry(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "name": name, "object": "audio.voice", "type": kind, **more}


def own_voices(built_in: Iterable[str], aliases: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Voices that are not uploaded, by name: the default voice, those of models, and aliases with
    what they mean."""
    voices = {PLACEHOLDERS[0]: _entry(PLACEHOLDERS[0], "default")}
    voices |= {v: _entry(v, "built_in") for v in built_in}
    return voices | {a: _entry(a, "alias", voice=v) for a, v in aliases.items()}


def listing(
    own: Mapping[str, dict[str, Any]], uploaded: Iterable[Voice], details: bool
) -> dict[str, Any]:
    """The body of a list. `voices` is what Open WebUI and Kokoro's clients read, `data` OpenAI's
    shape, and `uploaded_voices` vLLM-Omni's. Without `details` only `voices`, without how each was
    made."""
    uploads = [v.as_dict() for v in uploaded if v.name not in own]
    short = [*own.values(), *(_entry(v["name"], v["type"]) for v in uploads)]
    if not details:
        return {"object": "list", "voices": short}
    return {
        "object": "list",
        "voices": short,
        "uploaded_voices": uploads,
        "data": [*own.values(), *uploads],
    }
