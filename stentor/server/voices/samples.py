"""Recordings that clients upload: their bytes, and their audio once it has been checked."""

from __future__ import annotations

import asyncio

from fastapi import UploadFile

from stentor import audio
from stentor.audio import Reference
from stentor.errors import InvalidRequest
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS, MIB
from stentor.server.voices.references import decode
from stentor.server.voices.voice import Audio

# of an uploaded voice, as in other engines
SECONDS = (LIMITS.voice_min_seconds, LIMITS.voice_max_seconds)


async def uploaded(upload: UploadFile, max_bytes: int, param: str) -> bytes:
    """The bytes of a file. ApiError 413, which names `param`: there are too many."""
    if upload.size is None or upload.size <= max_bytes:
        data = await upload.read(max_bytes + 1)
        if len(data) <= max_bytes:
            return data
    raise ApiError(413, f"{param}: is larger than {max_bytes / MIB:g} MiB", param=param)


async def decoded(data: bytes, param: str) -> Audio:
    """The audio of a file. ApiError 400, which names `param`: it cannot be read, or is too long."""
    return await asyncio.to_thread(decode, data, param, LIMITS.voice_max_seconds)


async def checked(data: bytes, param: str) -> Audio:
    """The audio of a file, after the checks of a reference: finite, not silent, long enough."""
    samples, rate = await decoded(data, param)
    try:
        audio.load(Reference((samples, rate)), param, SECONDS)
    except InvalidRequest as e:
        raise ApiError(400, str(e), param=param) from e
    return samples, rate
