"""Streams of equal length that start together, in process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stentor import TTS
from stentor.models.base import SpeechRequest

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."


def forced_length(tts: TTS, frames: int) -> dict[str, Any]:
    """Options with which a request makes so many frames, whatever the model says."""
    rest: dict[str, Any] = {"ignore_eos": True} if "ignore_eos" in tts.spec.options else {"min_frames": frames}
    return {"max_frames": frames, **rest}


def heard(tts: TTS, request: SpeechRequest) -> tuple[float, float]:
    """(when the first audio came, seconds of audio)."""
    first, samples = 0.0, 0
    for chunk in tts.submit(request):
        first, samples = first or time.perf_counter(), samples + len(chunk.samples)
    return first, samples / tts.sample_rate


def measure(
    tts: TTS, streams: int, seconds: float, rounds: int, loras: Sequence[str | None] = (None,)
) -> dict[str, Any]:
    """The best round of `streams` requests, which take the adapters in turn."""
    frames = max(2, round(seconds * tts.sample_rate / tts.spec.hop))
    options = forced_length(tts, frames)
    best: dict[str, Any] = {"audio_s_per_s": 0.0}
    for _ in range(rounds + 1):  # the first warms up
        requests = [tts.request(TEXT, seed=i, lora=loras[i % len(loras)], **options) for i in range(streams)]
        started = time.perf_counter()
        with ThreadPoolExecutor(streams) as pool:
            answers = list(pool.map(lambda r: heard(tts, r), requests))
        wall = time.perf_counter() - started
        rate = sum(audio for _, audio in answers) / wall
        if rate > best["audio_s_per_s"]:
            firsts = sorted(first - started for first, _ in answers)
            best = {"audio_s_per_s": round(rate, 2), "ms_per_frame": round(wall * 1e3 / frames, 3)}
            best["ttfa_ms"] = [round(1e3 * firsts[i], 1) for i in (0, len(firsts) // 2, -1)]
    return best | {"eager_calls": tts.engine.eager_calls}
