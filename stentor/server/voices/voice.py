"""What is known of an uploaded voice, and what clients see of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFAULT_MIME = {"audio": "audio/wav", "embedding": "application/x-safetensors"}  # as vLLM-Omni calls them


@dataclass(frozen=True)
class Voice:
    """What is known of an uploaded voice without reading its audio. kind: "audio" or "embedding".

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
        embedding = {} if self.dim is None else {"embedding_dim": self.dim}
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
    name: str, facts: dict[str, str], kind: str, size: int, identity: tuple[int, int, int] | None = None
) -> Voice:
    """A voice by the metadata of its file. KeyError or ValueError if they are not of a voice."""
    return Voice(
        name=name,
        kind=kind,
        created_at=int(facts["created_at"]),
        consent=facts.get("consent", ""),
        text=facts.get("text"),
        description=facts.get("description"),
        seconds=float(facts.get("seconds", 0)),
        size=size,
        mime_type=facts.get("mime_type", DEFAULT_MIME[kind]),
        dim=int(facts["dim"]) if "dim" in facts else None,
        identity=identity,
    )
