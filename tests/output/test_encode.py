"""Containers: streams and whole files hold the same audio, and every sample where they can."""

from __future__ import annotations

import gc
import io
import os
import wave

import numpy as np
import pytest
import soundfile

from stentor.output.encode import CONTAINERS, encoder, legal_rate
from tests.helpers.server_live import decoded, samples_of

RATE = 24_000


T = np.arange(2 * RATE + 137) / RATE


TONE = (0.3 * np.sin(2 * np.pi * 220 * T) + 0.1 * np.sin(2 * np.pi * 1330 * T)).astype(np.float32)


SPEECHLIKE = TONE * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * T)).astype(np.float32)


def encoded(format: str, whole: bool, step: int) -> list[bytes]:
    made = encoder(format, RATE, whole)
    parts = [made.feed(SPEECHLIKE[i : i + step]) for i in range(0, len(SPEECHLIKE), step)]
    return [*parts, made.finish()]


@pytest.mark.parametrize("format", CONTAINERS)
def test_a_stream_holds_the_very_audio_of_the_whole_file(format: str) -> None:
    whole = samples_of(format, b"".join(encoded(format, True, 7777)))
    streamed = samples_of(format, b"".join(encoded(format, False, 1920)))
    if format == "mp3":
        streamed = streamed[1105 : 1105 + len(whole)]
    assert len(whole) == len(streamed)
    assert np.array_equal(whole, streamed)


@pytest.mark.parametrize("format", ["wav", "pcm", "flac"])
def test_lossless_formats_keep_every_sample(format: str) -> None:
    data = samples_of(format, b"".join(encoded(format, False, 1920)))
    assert len(data) == len(SPEECHLIKE)
    assert np.abs(data - SPEECHLIKE).max() < 1e-4


def test_a_streamed_wav_that_is_saved_is_read_to_its_end() -> None:
    """Readers that seek see the length in the header, and the end of the file. FFmpeg is in the tests above."""
    data = b"".join(encoded("wav", False, 1920))
    assert soundfile.info(io.BytesIO(data)).frames == len(SPEECHLIKE)
    assert len(soundfile.read(io.BytesIO(data))[0]) == len(SPEECHLIKE)
    with wave.open(io.BytesIO(data)) as f:
        assert len(f.readframes(f.getnframes())) == 2 * len(SPEECHLIKE)


@pytest.mark.parametrize("format", ["mp3", "opus", "aac"])
def test_lossy_formats_sound_like_what_went_in(format: str) -> None:
    data, rate = decoded(b"".join(encoded(format, False, 1920)))
    data = data[:: rate // RATE]
    lags = range(4000)
    best = max(np.corrcoef(data[lag : lag + 30_000], SPEECHLIKE[:30_000])[0, 1] for lag in lags)
    assert best > 0.99


@pytest.mark.parametrize("format", CONTAINERS)
def test_bytes_come_early_in_a_stream(format: str) -> None:
    parts = encoded(format, False, 1920)
    first = next(i for i, p in enumerate(parts) if p)
    assert first <= 1
    assert sum(map(len, parts[: len(parts) // 2])) > 0.3 * sum(map(len, parts))


@pytest.mark.parametrize("format", CONTAINERS)
@pytest.mark.parametrize("whole", [True, False])
def test_no_audio_at_all_is_still_a_valid_file(format: str, whole: bool) -> None:
    made = encoder(format, RATE, whole)
    data = made.feed(np.zeros(0, np.float32)) + made.finish()
    if CONTAINERS[format].plain:
        assert data == b""
    elif format == "wav":
        assert data[:4] == b"RIFF"
    else:
        assert len(decoded(data)[0])


@pytest.mark.parametrize("format", CONTAINERS)
def test_abandoned_encoders_leave_no_threads_behind(format: str) -> None:
    """They are garbage with cycles, which Python collects some time later."""

    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    gc.disable()
    try:
        encoder(format, RATE, False).feed(SPEECHLIKE)
        before = threads()
        for _ in range(20):
            encoder(format, RATE, False).feed(SPEECHLIKE)
        assert len(threads() - before) < 20
    finally:
        gc.enable()


def test_odd_rates_go_to_the_next_that_a_container_carries() -> None:
    assert legal_rate("mp3", 600) == 8000
    assert legal_rate("mp3", 22_050) == 22_050
    assert legal_rate("opus", 22_050) == 24_000
    assert legal_rate("opus", 44_100) == 48_000
    assert legal_rate("aac", 96_000) == 48_000
    assert legal_rate("wav", 600) == 600
    assert legal_rate("ulaw", 24_000) == legal_rate("alaw", 600) == 8000
