"""Requests that a server makes to itself, so that the first client's costs what later ones do."""

from __future__ import annotations

import asyncio
import io
import logging
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pybase64
import soundfile

from stentor import audio
from stentor.audio import Recording, Reference
from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec, ReferenceAudio
from stentor.server.http.json_text import parse
from stentor.server.voices.references import decode, from_base64

if TYPE_CHECKING:
    from stentor.api import TTS

log = logging.getLogger("stentor.server")

TEXT = "Hello there."
READ_SECONDS, HEARD_SECONDS = 28.0, 1.0
"""Of reference audio: what is decoded, and what of it a model encodes on a CPU. A GPU encodes all of it, so that the
graphs of a long voice have been launched."""
RATES = (24_000, 16_000)
"""Of recordings, the second where a model takes the first, so that it is resampled."""


def warm_up(tts: TTS) -> None:
    """Generate a short utterance as a request would, and one in the voice of a reference where the model takes one."""
    options: dict[str, Any] = {"max_frames": 8} if "max_frames" in tts.spec.options else {}
    voices: list[dict[str, Any]] = [{}]
    if tts.spec.speaker_size:
        voices = [{"speaker_embedding": [0.0] * tts.spec.speaker_size}]
    if tts.spec.takes_reference:
        heard = READ_SECONDS if tts.engine.device.cuda else HEARD_SECONDS
        voices.append({"reference": ReferenceAudio(noise(tts.spec, heard), TEXT)})
    for voice in voices:
        try:
            tts.generate(TEXT, retries=1, **options, **voice)
        except InvalidRequest as e:
            log.info("warm-up skipped: %s", e)


def noise(spec: ModelSpec, heard: float) -> Recording:
    """A reference in nobody's voice, from a WAV file as clients send it: libraries that read it are loaded then.

    heard: seconds of it that are kept.
    """
    shortest, longest = spec.reference_seconds
    rate = RATES[spec.reference_rate == RATES[0]]
    found = decode(_wav(max(shortest, min(READ_SECONDS, longest)), rate), "reference", longest)
    recording = audio.load(Reference(found), "reference", spec.reference_seconds)
    count = int(min(max(shortest, heard), longest) * rate)
    return replace(recording, samples=recording.samples[:count], kept=False)


async def read_as_sent(parsers: Executor, holders: Executor, decoders: Executor) -> None:
    """Parse a body with a long recording, and decode that, each in the threads that do it for clients.

    They keep the memory that it takes. A first body would wait 8 ms for the system to clear it.
    """
    loop = asyncio.get_running_loop()
    value = await parse(await asyncio.to_thread(_body), parsers)
    file = await loop.run_in_executor(holders, from_base64, value["ref_audio"])
    await loop.run_in_executor(decoders, decode, file, "ref_audio", 2 * READ_SECONDS)


def _body() -> bytes:
    """Of a request with a recording."""
    return orjson.dumps({"ref_audio": pybase64.b64encode(_wav(READ_SECONDS, RATES[0])).decode()})


def _wav(seconds: float, rate: int) -> bytes:
    """The file of a noise."""
    samples, file = 0.1 * np.random.default_rng(0).standard_normal(int(rate * seconds)), io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    return file.getvalue()
