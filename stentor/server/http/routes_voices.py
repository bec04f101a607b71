"""Voices over HTTP: the list of all, and uploads."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, File, Form, Path, Query, Request, UploadFile
from starlette.responses import Response

from stentor import audio
from stentor.arguments.untrusted import Unreadable, parse_json
from stentor.audio import Reference
from stentor.audio.silence import QUIET_PEAK
from stentor.errors import InvalidRequest
from stentor.server.errors import ApiError, failures, invalid
from stentor.server.limits import LIMITS, MIB
from stentor.server.state import Server, server
from stentor.server.voices.references import decode
from stentor.server.voices.voice import Audio, listing, own_voices
from stentor.server.wire_json import json_response

router = APIRouter(tags=["voices"])

MIME_TYPE = re.compile(r"(audio|video|application)/[a-z0-9.+-]{1,40}")

# of an uploaded voice, as in other engines
SECONDS = (LIMITS.voice_min_seconds, LIMITS.voice_max_seconds)
Name = Annotated[str, Path(max_length=LIMITS.name_chars)]


@router.get("/v1/audio/voices", responses=failures(400, 401, 404), response_model=dict[str, Any])
async def voices(
    request: Request,
    model: str | None = None,
    format: Annotated[Literal["names"] | None, Query()] = None,
) -> Response:
    """The default voice, built-in voices, aliases and uploads, each as {id, name, ...}.
    format=names: their names."""
    s = server(request)
    details = request.state.authorized
    own = own_voices(s.hosts.voices(model), s.config.aliases)

    def made() -> Response:  # may be megabytes, so they are made in a thread
        body = listing(own, s.voices.list(), details)
        return json_response(
            {"voices": [v["name"] for v in body["voices"]]} if format == "names" else body
        )

    return await asyncio.to_thread(made)


@router.get("/v1/audio/voices/{name}", responses=failures(400, 401, 404))
async def voice(request: Request, name: Name) -> dict[str, Any]:
    """One voice of the list."""
    s = server(request)
    own = own_voices(s.hosts.voices(), s.config.aliases).get(name.lower())
    if own is not None:
        return own
    found = await asyncio.to_thread(s.voices.get, name)
    if found is None:
        raise _unknown(name)
    return found.as_dict()


@router.post("/v1/audio/voices", responses=failures(400, 401, 409, 413, 415, 429, 503, 507))
async def add(
    request: Request,
    name: Annotated[str, Form(max_length=LIMITS.name_chars)],
    consent: Annotated[
        str,
        Form(
            max_length=LIMITS.note_chars,
            description="Who has agreed to the use of this voice, or a record's id",
        ),
    ],
    audio_sample: Annotated[
        UploadFile | None, File(description="wav, flac, ogg, mp3, m4a, webm or aac, 1 to 30 s")
    ] = None,
    speaker_embedding: Annotated[
        str | None, Form(description="JSON list of numbers, instead of audio")
    ] = None,
    ref_text: Annotated[
        str | None,
        Form(max_length=LIMITS.transcript_chars, description="What is said in the audio"),
    ] = None,
    speaker_description: Annotated[str | None, Form(max_length=LIMITS.note_chars)] = None,
) -> dict[str, Any]:
    """Store a voice under a name. Every server on the same directory has a new one at once, and
    after restarts."""
    s = server(request)
    if not consent.strip():
        raise invalid("consent", "must say who has agreed to the use of this voice")
    if (audio_sample is None) == (speaker_embedding is None):
        raise invalid("audio_sample", "give audio_sample or speaker_embedding, one of them")
    _check_taken(s, speaker_embedding is not None)
    if audio_sample is None:
        sample = None
    else:
        sample = await _sample(audio_sample, int(s.config.max_upload_mb * MIB))
    if speaker_embedding is None:
        embedding = None
    else:
        embedding = await asyncio.to_thread(_embedding, speaker_embedding)
    reserved = [*s.hosts.voices(), *s.config.aliases]

    def store() -> tuple[bool, dict[str, Any]]:
        replaced = s.voices.get(name) is not None
        return replaced, s.voices.add(
            name,
            consent.strip(),
            audio=sample,
            embedding=embedding,
            text=(ref_text or "").strip() or None,
            description=(speaker_description or "").strip() or None,
            mime_type=None if audio_sample is None else _mime_type(audio_sample),
            reserved=reserved,
        ).as_dict()

    try:
        replaced, stored = await asyncio.to_thread(store)
    finally:
        s.known_voices.forget(name)
    told = f"Voice {stored['name']!r} {'overwritten' if replaced else 'uploaded'}"
    quiet = sample is not None and float(np.abs(sample[0]).max()) < QUIET_PEAK
    warnings = [told] * replaced + [
        "audio_sample is very quiet, and so is what is spoken with it"
    ] * quiet
    if warnings:
        warned = {"warning": "; ".join(warnings)}
    else:
        warned = {}
    return {**stored, "success": True, "message": told, "voice": stored, **warned}


def _check_taken(s: Server, embedding: bool) -> None:
    """ApiError 400 for a voice with which none of the models can speak."""
    hosts = s.hosts.all
    if embedding:
        what = "use a speaker embedding"
    else:
        what = "clone a voice"
    if any(
        not h.serves or (h.spec.speaker_size if embedding else h.spec.takes_reference)
        for h in hosts
    ):
        return
    if embedding:
        param = "speaker_embedding"
    else:
        param = "audio_sample"
    raise invalid(param, f"no model here can {what}: {', '.join(h.name for h in hosts)}")


@router.delete("/v1/audio/voices/{name}", responses=failures(400, 401, 404, 503))
async def delete(request: Request, name: Name) -> dict[str, Any]:
    """Delete an uploaded voice. Running requests keep it to their end."""
    s = server(request)
    deleted = await asyncio.to_thread(s.voices.delete, name)
    s.known_voices.forget(name)
    if not deleted:
        raise _unknown(name)
    told = f"Voice {name!r} deleted successfully"
    return {
        "id": name,
        "object": "audio.voice.deleted",
        "deleted": True,
        "success": True,
        "message": told,
    }


def _unknown(name: str) -> ApiError:
    return ApiError(
        404, f"there is no uploaded voice {name[:80]!r}", param="name", code="voice_not_found"
    )


def _mime_type(upload: UploadFile) -> str | None:
    """Media type that the client gives, else that of the file's name. None: nothing that is the
    name of a type."""
    stated = (upload.content_type or "").partition(";")[0].strip().lower()
    if stated in ("", "application/octet-stream"):
        stated = mimetypes.guess_type(upload.filename or "")[0] or ""
    if MIME_TYPE.fullmatch(stated):
        return stated
    return None


async def _sample(upload: UploadFile, max_bytes: int) -> Audio:
    if upload.size is not None and upload.size > max_bytes:
        raise ApiError(
            413, f"audio_sample: is larger than {max_bytes / MIB:g} MiB", param="audio_sample"
        )
    data = await upload.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ApiError(
            413, f"audio_sample: is larger than {max_bytes / MIB:g} MiB", param="audio_sample"
        )
    samples, rate = await asyncio.to_thread(decode, data, "audio_sample", LIMITS.voice_max_seconds)
    try:  # the same checks as for a reference: finite, not silent, long enough
        audio.load(Reference((samples, rate)), "audio_sample", SECONDS)
    except InvalidRequest as e:
        raise ApiError(400, str(e), param="audio_sample") from e
    return samples, rate


def _embedding(text: str) -> np.ndarray:
    wrong = invalid(
        "speaker_embedding", f"must be a JSON list of 1 to {LIMITS.embedding_values} finite numbers"
    )
    if len(text) > 64 * LIMITS.embedding_values:
        raise wrong
    try:
        values = parse_json(text)
    except Unreadable:
        raise wrong from None
    if not isinstance(values, list) or not 1 <= len(values) <= LIMITS.embedding_values:
        raise wrong
    if not all(
        isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e30 for v in values
    ):  # NaN neither
        raise wrong
    return np.array(values, np.float32)
