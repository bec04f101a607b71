"""Voices over HTTP: the list of all, and uploads."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, File, Form, Path, Query, Request, UploadFile
from pydantic import Field
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from stentor.arguments.untrusted import Unreadable, parse_json
from stentor.audio.silence import QUIET_PEAK
from stentor.server.errors import ApiError, failures, invalid, validated
from stentor.server.http.bodies import BodyRoute
from stentor.server.http.middleware import is_json
from stentor.server.http.responses import NoResponse, begun
from stentor.server.limits import LIMITS, MIB
from stentor.server.model_hosts import ModelHost
from stentor.server.schemas import Body, Ignored, SpeechBody
from stentor.server.state import Server, server
from stentor.server.voices import samples
from stentor.server.voices.voice import listing, own_voices
from stentor.server.wire_json import json_response

router = APIRouter(tags=["voices"])

MIME_TYPE = re.compile(r"(audio|video|application)/[a-z0-9.+-]{1,40}")

RELEASE = re.compile(r"\d{4}-\d\d-\d\d")  # of OpenAI's models that make voices
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
    built_in = own_voices(s.hosts.voices(model), s.config.aliases)

    def made() -> Response:  # may be megabytes, so they are made in a thread
        body = listing(built_in, s.voices.list(), details)
        return json_response(
            {"voices": [v["name"] for v in body["voices"]]} if format == "names" else body
        )

    return await asyncio.to_thread(made)


@router.get("/v1/audio/voices/{name}", responses=failures(400, 401, 404))
async def voice(request: Request, name: Name) -> dict[str, Any]:
    """One voice of the list."""
    s = server(request)
    built_in = own_voices(s.hosts.voices(), s.config.aliases).get(name.lower())
    if built_in is not None:
        return built_in
    uploaded = await asyncio.to_thread(s.voices.get, name)
    if uploaded is None:
        raise _unknown(name)
    return uploaded.as_dict()


class DesignRoute(BodyRoute):
    """The route of bodies in JSON beside one of forms at the same path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and not is_json(Headers(scope=scope)):
            return Match.NONE, {}
        return super().matches(scope)


class DesignedVoice(Body):
    """A voice to make from a description, as OpenAI's SDK sends it."""

    name: Annotated[str, Field(min_length=1, max_length=LIMITS.name_chars)]
    type: Literal["prompt"]
    prompt: Annotated[str, Field(max_length=LIMITS.note_chars)]
    model: Annotated[str, Field(max_length=LIMITS.name_chars)] | None = None
    script_hint: Annotated[str, Field(max_length=LIMITS.transcript_chars)] | None = None


async def design(request: Request, body: DesignedVoice) -> Response:
    """Make a voice from a description: speak a script with it, and keep that recording under the
    name."""
    s = server(request)
    ignored = Ignored(s.config.strict)
    ignored.unknown(body.model_extra or ())
    for name in ("prompt", "script_hint"):
        text = getattr(body, name)
        if text is not None and not text.strip():
            raise invalid(name, "must not be empty")
    host = _designer(s, body.model)
    script = body.script_hint or SCRIPT
    await asyncio.to_thread(s.voices.check_name, body.name, _reserved(s))
    sample_body = validated(
        SpeechBody,
        {
            "input": script,
            "model": host.name,
            "instructions": body.prompt,
            "response_format": "wav",
            "sample_rate": max(host.spec.sample_rate, 24_000),
            "stream": False,
        },
    )
    try:
        running = await begun(
            request, s.planner.text(sample_body, request.state.request_id, "none", False)
        )
    except ApiError as e:
        raise _as_of_design(e) from e
    if running is None:
        return NoResponse()
    try:
        data = b"".join([part async for part in running.bytes(whole=True)])
        sample = await samples.checked(data, "script_hint")
    except BaseException as e:
        if (error := running.failed(e)) is None:
            raise
        raise error from e
    running.completed()
    running.left()
    stored = await _store(
        s, body.name, consent=DESIGNED, audio=sample, text=script, description=body.prompt.strip()
    )
    prompt = stored["speaker_description"]
    return json_response({**stored, "type": "prompt", "prompt": prompt, **ignored.as_json()})


router.add_api_route(
    "/v1/audio/voices",
    design,
    methods=["POST"],
    responses=failures(400, 401, 404, 409, 413, 415, 429, 500, 503, 504, 507),
    response_model=dict[str, Any],
    route_class_override=DesignRoute,
    include_in_schema=False,  # a path has one description: that of the form
)
SCRIPT = (
    "The rainbow is a division of white light into many beautiful colors. "
    "People look for the pot of gold at its end, and nobody has found it yet."
)
"""Spoken to make a voice where the client has no text for it."""
DESIGNED = "designed from a description"
RECORDED = {
    "name", "type", "consent", "audio_sample", "speaker_embedding", "ref_text", "speaker_description",
}  # fmt: skip
"""Fields of a form with a voice that was recorded."""


def _designer(s: Server, model: str | None) -> ModelHost:
    """The model that makes a voice: the one that is named, else the first that can."""
    hosts = s.hosts.all
    if model is not None and model != "auto" and not RELEASE.fullmatch(model):
        hosts = [s.hosts.named(model)]
    for host in hosts:
        if host.serves and host.spec.takes_instructions and host.spec.takes_reference:
            return host
    names = ", ".join(host.name for host in hosts)
    raise invalid("type", f"no model here designs a voice and speaks with it then: {names}")


def _as_of_design(error: ApiError) -> ApiError:
    """The error of a field of speech as one of the body of a designed voice."""
    name = {"input": "script_hint", "instructions": "prompt"}.get(error.param or "")
    return error if name is None else error.renamed(name)


def _reserved(s: Server) -> list[str]:
    """Names that no uploaded voice may have."""
    return [*s.hosts.voices(), *s.config.aliases]


async def _store(s: Server, name: str, **facts: Any) -> dict[str, Any]:
    """Store a voice, which every server on the folder knows from then on."""
    try:
        voice = await asyncio.to_thread(s.voices.add, name, reserved=_reserved(s), **facts)
    finally:
        s.known_voices.forget(name)
    return voice.as_dict()


@router.post(
    "/v1/audio/voices",
    responses=failures(400, 401, 404, 409, 413, 415, 429, 500, 503, 504, 507),
    response_model=dict[str, Any],
)
async def add(
    request: Request,
    name: Annotated[str, Form(max_length=LIMITS.name_chars)],
    consent: Annotated[
        str,
        Form(
            max_length=LIMITS.note_chars,
            description="Consent to the use of this voice, or the id of a recorded consent",
        ),
    ] = "",
    audio_sample: Annotated[
        UploadFile | None, File(description="wav, flac, ogg, mp3, m4a, webm or aac, 1 to 30 s")
    ] = None,
    speaker_embedding: Annotated[
        str | None, Form(description="JSON list of numbers, instead of audio")
    ] = None,
    ref_text: Annotated[
        str | None,
        Form(max_length=LIMITS.transcript_chars, description="Transcript of the audio"),
    ] = None,
    speaker_description: Annotated[str | None, Form(max_length=LIMITS.note_chars)] = None,
    type: Annotated[
        Literal["audio_sample", "prompt"],
        Form(description="prompt: design the voice from a description"),
    ] = "audio_sample",
    prompt: Annotated[str | None, Form(description="Description of the voice")] = None,
    script_hint: Annotated[
        str | None, Form(description="Text that the new voice speaks first")
    ] = None,
    model: Annotated[str | None, Form(description="Model that designs the voice")] = None,
) -> Any:
    """Store a voice under a name. Every server on the same directory has a new one at once, and
    after restarts. Of `type` prompt, which may be sent as JSON too, it is made from a
    description."""
    s = server(request)
    form = await request.form()
    if type == "prompt":
        upload = {"name": name, "type": type, "prompt": prompt, "script_hint": script_hint}
        described = {k: v for k, v in {**form, **upload, "model": model}.items() if v is not None}
        return await design(request, validated(DesignedVoice, described))
    ignored = Ignored(s.config.strict)
    ignored.unknown(field for field in form if field not in RECORDED)
    if not consent.strip():
        raise invalid("consent", "must say who has agreed to the use of this voice")
    if (audio_sample is None) == (speaker_embedding is None):
        raise invalid("audio_sample", "give audio_sample or speaker_embedding, one of them")
    _check_taken(s, speaker_embedding is not None)
    if audio_sample is None:
        sample = None
    else:
        max_bytes = int(s.config.max_upload_mb * MIB)
        data = await samples.uploaded(audio_sample, max_bytes, "audio_sample")
        sample = await samples.checked(data, "audio_sample")
    if speaker_embedding is None:
        embedding = None
    else:
        embedding = await asyncio.to_thread(_embedding, speaker_embedding)
    reserved = _reserved(s)

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
    message = f"Voice {stored['name']!r} {'overwritten' if replaced else 'uploaded'}"
    quiet = sample is not None and float(np.abs(sample[0]).max()) < QUIET_PEAK
    warnings = [message] * replaced + [
        "audio_sample is very quiet, and so is what is spoken with it"
    ] * quiet
    if warnings:
        warned = {"warning": "; ".join(warnings)}
    else:
        warned = {}
    answer = {**stored, "success": True, "message": message, "voice": stored}
    return {**answer, **warned, **ignored.as_json()}


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
    message = f"Voice {name!r} deleted successfully"
    return {
        "id": name,
        "object": "audio.voice.deleted",
        "deleted": True,
        "success": True,
        "message": message,
    }


def _unknown(name: str) -> ApiError:
    return ApiError(
        404, f"there is no uploaded voice {name[:80]!r}", param="name", code="voice_not_found"
    )


def _mime_type(upload: UploadFile) -> str | None:
    """The client's media type, else that of the file's name. None: nothing that is the
    name of a type."""
    stated = (upload.content_type or "").partition(";")[0].strip().lower()
    if stated in ("", "application/octet-stream"):
        stated = mimetypes.guess_type(upload.filename or "")[0] or ""
    if MIME_TYPE.fullmatch(stated):
        return stated
    return None


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
