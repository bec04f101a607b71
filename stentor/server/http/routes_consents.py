"""Consents to the use of a voice, as OpenAI's SDK keeps them: `client.audio.voice_consents`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Path, Query, Request, UploadFile
from pydantic import Field

from stentor.server.errors import ApiError, failures
from stentor.server.http.bodies import JsonRoute
from stentor.server.limits import LIMITS, MIB
from stentor.server.schemas import Body, Ignored
from stentor.server.state import server
from stentor.server.voices import samples
from stentor.server.voices.consents import Consent

router = APIRouter(tags=["voices"], prefix="/v1/audio/voice_consents", route_class=JsonRoute)
Id = Annotated[str, Path(max_length=LIMITS.name_chars)]
Language = Annotated[
    str,
    Form(
        min_length=2,
        max_length=LIMITS.name_chars,
        pattern="^[A-Za-z0-9-]+$",
        description="BCP 47: en-US",
    ),
]
FIELDS = {"name", "language", "recording"}
"""Names in the form of a new consent."""


class Rename(Body):
    """POST /v1/audio/voice_consents/{id}."""

    name: Annotated[str, Field(min_length=1, max_length=LIMITS.name_chars)]


@router.post("", responses=failures(400, 401, 409, 413, 415, 429, 507))
async def add(
    request: Request,
    name: Annotated[str, Form(min_length=1, max_length=LIMITS.name_chars)],
    language: Language,
    recording: Annotated[UploadFile, File(description="wav, flac, ogg, mp3, m4a, webm or aac")],
) -> dict[str, Any]:
    """Keep a recording in which a speaker agrees to the use of their voice."""
    s = server(request)
    form = await request.form()
    ignored = Ignored(s.config.strict)
    ignored.unknown(field for field in form if field not in FIELDS)

    max_bytes = int(s.config.max_upload_mb * MIB)
    data = await samples.uploaded(recording, max_bytes, "recording")
    await samples.decoded(data, "recording")
    consent = await asyncio.to_thread(s.consents.add, name, language, data)
    return {**consent.as_dict(), **ignored.as_json()}


@router.get("", responses=failures(400, 401))
async def consents(
    request: Request,
    after: Annotated[str | None, Query(max_length=LIMITS.name_chars)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """List consents, the newest first, those behind `after`."""
    s = server(request)
    newest = await asyncio.to_thread(s.consents.newest)
    ids = [consent.id for consent in newest]
    if after is None:
        start = 0
    elif after in ids:
        start = ids.index(after) + 1
    else:
        raise _unknown(after, "after")

    end = start + limit
    page = newest[start:end]
    return {
        "object": "list",
        "data": [consent.as_dict() for consent in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": end < len(ids),
    }


@router.get("/{consent_id}", responses=failures(400, 401, 404))
async def consent(request: Request, consent_id: Id) -> dict[str, Any]:
    """Return one consent."""
    s = server(request)
    consent = await asyncio.to_thread(s.consents.get, consent_id)
    return _known(consent_id, consent)


@router.post("/{consent_id}", responses=failures(400, 401, 404, 415, 429))
async def rename(request: Request, consent_id: Id, body: Rename) -> dict[str, Any]:
    """Rename a consent."""
    s = server(request)
    ignored = Ignored(s.config.strict)
    ignored.unknown(body.model_extra or ())
    renamed = await asyncio.to_thread(s.consents.rename, consent_id, body.name)
    return {**_known(consent_id, renamed), **ignored.as_json()}


@router.delete("/{consent_id}", responses=failures(400, 401, 404))
async def delete(request: Request, consent_id: Id) -> dict[str, Any]:
    """Delete a consent. Voices that name it stay."""
    s = server(request)
    deleted = await asyncio.to_thread(s.consents.delete, consent_id)
    if not deleted:
        raise _unknown(consent_id)
    return {"id": consent_id, "object": "audio.voice_consent", "deleted": True}


def _known(id: str, consent: Consent | None) -> dict[str, Any]:
    if consent is None:
        raise _unknown(id)
    return consent.as_dict()


def _unknown(id: str, param: str = "consent_id") -> ApiError:
    return ApiError(
        404, f"{param}: there is no consent {id[:80]!r}", param=param, code="consent_not_found"
    )
