"""The watermark of resemble-perth: what the package gives, whole and in parts, and after codecs."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import soundfile

import stentor
from stentor.audio import resample
from stentor.errors import InvalidRequest
from stentor.output import perth
from stentor.output.watermark import load

RATE = 32_000
TEXT = "The herald has fifty voices, and every one of them speaks of the sea."
CHANGES = (
    -0.0049022864, 0.0311938040, -0.0120909884, 0.0080241039, -0.0062448866, 0.0009833015, -0.0005605891, -0.0058890022,
    -0.0014669727, 0.0238776206, 0.0114637408, 0.0109453555, -0.0144142434, -0.0002117329, 0.0215210057, -0.0076412335,
    -0.0003438647, -0.0035110581, 0.0080361142, -0.0064330454, -0.0027886554, 0.0035179778,
)  # fmt: skip
"""Samples that resemble-perth 1.0.1 adds to every 4001st sample of `hum` from 8000 on, with torch.stft and torch.istft in place of
torchaudio's."""
CONFIDENCE = {0.0: 0.0156, 0.2: 0.1255, 0.3: 0.3033, 0.4: 0.5116, 0.5: 0.6940, 1.0: 0.9579}
"""Confidences of its detector with these shares of the mark."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("perth") is None, reason="resemble-perth is not installed"
)


@cache
def hum() -> np.ndarray:
    """Three seconds of a voice-like tone with a little noise."""
    noise = np.random.default_rng(68).normal(0, 0.002, 3 * RATE)
    seconds = np.arange(3 * RATE) / RATE
    phase = np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * seconds)) / RATE
    tones = sum(np.sin(2 * np.pi * k * phase) / k for k in range(1, 16))
    loudness = 0.1 * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * seconds))
    samples: np.ndarray = (tones * loudness + noise).astype(np.float32)
    return samples


def marked(samples: np.ndarray, rate: int = RATE, cuts: int = 0) -> np.ndarray:
    """Samples with the mark, taken in `cuts` + 1 parts."""
    places = np.sort(np.random.default_rng(cuts).integers(0, len(samples), cuts))
    watermark = perth.Perth(rate)
    parts = [watermark.process(part.copy()) for part in np.split(samples, places)]
    return np.concatenate((*parts, watermark.flush()))


def test_the_mark_is_that_of_the_package() -> None:
    changes = (marked(hum()) - hum())[8000::4001]
    np.testing.assert_allclose(changes, CHANGES, atol=2e-5)


@pytest.mark.parametrize(("share", "confidence"), CONFIDENCE.items())
def test_the_detector_finds_what_that_of_the_package_finds(share: float, confidence: float) -> None:
    mixed = (1 - share) * hum() + share * marked(hum())
    assert perth.detect(mixed.astype(np.float32), RATE) == pytest.approx(confidence, abs=0.02)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 24000, 44100, 48000])
def test_parts_of_any_length_give_the_samples_of_the_whole(rate: int) -> None:
    samples = resample(hum(), RATE, rate)
    whole = marked(samples, rate)
    np.testing.assert_array_equal(marked(samples, rate, cuts=200), whole)
    assert len(whole) == len(samples)
    assert perth.detect(samples, rate) < 0.2
    assert perth.detect(whole, rate) > 0.8


@pytest.mark.parametrize("count", [1, 2, 240, 2000, 5000])
def test_short_audio_keeps_its_length(count: int) -> None:
    short = marked(hum()[:count], 24000, cuts=1)
    assert len(short) == count
    assert 0 <= perth.detect(short, 24000) <= 1


def test_what_is_held_back_is_what_is_declared() -> None:
    watermark = perth.Perth(24000)
    held = 0
    for part in np.split(hum(), np.arange(7, len(hum()), 997)):
        held += len(part) - len(watermark.process(part.copy()))
        assert 0 <= held <= watermark.look_ahead
    assert len(watermark.flush()) == held


def test_digital_silence_stays_silent() -> None:
    silence = np.zeros(24000, np.float32)
    assert not marked(silence, 24000).any()
    assert perth.detect(silence, 24000) == 0


@pytest.fixture(scope="module")
def voice() -> Iterator[stentor.TTS]:
    with stentor.TTS(watermark="stentor.output.perth:Perth") as tts:
        yield tts


def test_speech_is_marked_whole_and_streamed(voice: stentor.TTS) -> None:
    whole = voice.generate(TEXT, seed=1).samples
    parts = [part.samples for part in voice.stream(TEXT, seed=1)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert perth.detect(whole, voice.sample_rate) > 0.9


@pytest.mark.parametrize("format", ["mp3", "opus", "ulaw"])
def test_a_mark_survives_a_codec(voice: stentor.TTS, format: str) -> None:
    data = io.BytesIO(voice.generate(TEXT, seed=1, format=format).data)
    raw = {"format": "RAW", "subtype": "ULAW", "samplerate": 8000, "channels": 1}
    samples, rate = soundfile.read(data, dtype="float32", **(raw if format == "ulaw" else {}))
    assert perth.detect(samples, rate) > 0.8


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    perth._state.cache_clear()
    perth._layers.cache_clear()
    monkeypatch.setattr(perth.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"resemble-perth 1\.0\.1"):
        load("stentor.output.perth:Perth")
