"""Requests that a server makes to itself, so that the first client's costs what later ones do."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile

from stentor import audio
from stentor.audio import Recording, Reference
from stentor.errors import InvalidRequest
from stentor.models.base import ModelSpec, ReferenceAudio
from stentor.server.voices.references import decode

if TYPE_CHECKING:
    from stentor.api import TTS

log = logging.getLogger("stentor.server")

TEXT = "Hello there."
READ_SECONDS, HEARD_SECONDS = 28.0, 1.0
"""Of reference audio: what is decoded, and what of it a model encodes."""
RATES = (24_000, 16_000)
"""Of recordings, the second where a model takes the first, so that it is resampled."""


def warm_up(tts: TTS) -> None:
    """Generate a short utterance as a request would, and one in the voice of a reference where the model takes one."""
    options: dict[str, Any] = {"max_frames": 8} if "max_frames" in tts.spec.options else {}
    voices: list[dict[str, Any]] = [{}]
    if tts.spec.speaker_size:
        voices = [{"speaker_embedding": [0.0] * tts.spec.speaker_size}]
    if tts.spec.takes_reference:
        voices.append({"reference": ReferenceAudio(noise(tts.spec), TEXT)})
    for voice in voices:
        try:
            tts.generate(TEXT, retries=1, **options, **voice)
        except InvalidRequest as e:
            log.info("warm-up skipped: %s", e)


def noise(spec: ModelSpec) -> Recording:
    """A reference in nobody's voice, from a WAV file as clients send it: libraries that read it are loaded then."""
    shortest, longest = spec.reference_seconds
    rate = RATES[spec.reference_rate == RATES[0]]
    samples = 0.1 * np.random.default_rng(0).standard_normal(int(rate * max(shortest, min(READ_SECONDS, longest))))
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="PCM_16")
    found = decode(file.getvalue(), "reference", longest)
    recording = audio.load(Reference(found), "reference", spec.reference_seconds)
    heard = int(min(max(shortest, HEARD_SECONDS), longest) * rate)
    return replace(recording, samples=recording.samples[:heard], kept=False)
