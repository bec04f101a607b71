"""The voices of a server as clients list them: the default, built-in ones, aliases and uploads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stentor.server.voices.store import PLACEHOLDERS
from stentor.server.voices.voice import Voice


def _entry(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "name": name, "object": "audio.voice", "type": kind, **more}


def own_voices(built_in: Iterable[str], aliases: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What is not uploaded, by name: the default voice, those of the models, and aliases with the voice they mean."""
    found = {PLACEHOLDERS[0]: _entry(PLACEHOLDERS[0], "default")}
    found |= {v: _entry(v, "built_in") for v in built_in}
    return found | {a: _entry(a, "alias", voice=v) for a, v in aliases.items()}


def listing(own: Mapping[str, dict[str, Any]], uploaded: Iterable[Voice], details: bool) -> dict[str, Any]:
    """The body of a list. `voices` is what Open WebUI and Kokoro's clients read, `data` OpenAI's shape, and
    `uploaded_voices` vLLM-Omni's. Without `details` only `voices`, which says nothing of how a voice was made."""
    uploads = [v.as_dict() for v in uploaded if v.name not in own]
    short = [*own.values(), *(_entry(v["name"], v["type"]) for v in uploads)]
    if not details:
        return {"object": "list", "voices": short}
    return {"object": "list", "voices": short, "uploaded_voices": uploads, "data": [*own.values(), *uploads]}
