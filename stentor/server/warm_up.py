"""Requests that an engine makes to itself, so that the first client's costs what later ones do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.audio import Recording
from stentor.errors import InvalidRequest
from stentor.models.info import ModelInfo, ReferenceAudio

if TYPE_CHECKING:
    from stentor.api import TTS

log = logging.getLogger("stentor.server")

TEXT = "Hello there."
GPU_SECONDS, CPU_SECONDS = 28.0, 1.0
"""Seconds of reference audio. A GPU encodes a long one, so that the graphs of a long voice have been launched."""
RATE = 24_000


def warm_up(tts: TTS) -> None:
    """Generate a short utterance as a request would, and one in the voice of a reference where the model takes one."""
    options: dict[str, Any] = {"max_frames": 8} if "max_frames" in tts.spec.options else {}
    voices: list[dict[str, Any]] = [{}]
    if tts.spec.speaker_size:
        voices = [{"speaker_embedding": [0.0] * tts.spec.speaker_size}]
    if tts.spec.takes_reference:
        seconds = GPU_SECONDS if tts.engine.device.cuda else CPU_SECONDS
        voices.append({"reference": ReferenceAudio(noise(tts.spec, seconds), TEXT)})
    for voice in voices:
        try:
            tts.generate(TEXT, retries=1, **options, **voice)
        except InvalidRequest as e:
            log.info("warm-up skipped: %s", e)


def noise(spec: ModelInfo, seconds: float) -> Recording:
    """Noise of about so many seconds, as long as the model takes, which no cache keeps."""
    shortest, longest = spec.reference_seconds
    count = int(min(max(shortest, seconds), longest) * RATE)
    samples = 0.1 * np.random.default_rng(0).standard_normal(count)
    return Recording(samples.astype(np.float32), RATE, kept=False)
