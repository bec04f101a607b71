"""Loudness by BS.1770, and speech at a target. Expected values are those of ffmpeg's ebur128."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stentor import TTS
from stentor.output.loudness import PEAK, Leveller, Limiter, integrated

RATE = 24000


def tone(seconds: float, hz: float = 997.0, rate: int = RATE) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 44100, 48000])
def test_a_full_tone_of_one_channel_has_3_lufs_below_full_scale(rate: int):
    assert integrated(tone(5, rate=rate), rate) == pytest.approx(-3.01, abs=0.01)


@pytest.mark.parametrize(
    ("hz", "expected"), [(60.0, -6.6), (200.0, -4.0), (1000.0, -3.0), (4000.0, 0.3), (10000.0, 0.3)]
)
def test_low_notes_count_less_and_high_ones_more(hz: float, expected: float):
    assert integrated(tone(5, hz, 48000), 48000) == pytest.approx(expected, abs=0.06)


def test_silence_between_words_does_not_count():
    speech = 0.1 * tone(4)
    gaps = np.zeros(8 * RATE, np.float32)
    with_gaps = np.concatenate((speech, gaps, speech))
    assert integrated(with_gaps, RATE) == pytest.approx(integrated(speech, RATE), abs=0.3)


@pytest.mark.parametrize("samples", [np.zeros(0, np.float32), np.zeros(RATE, np.float32)])
def test_silence_has_no_loudness_and_stays_silent(samples: np.ndarray):
    assert integrated(samples, RATE) == -math.inf
    leveller = Leveller(RATE, -16.0, 1.0)
    levelled = np.concatenate((leveller.feed(samples), leveller.finish()))
    assert np.array_equal(levelled, samples)


@pytest.mark.parametrize("lufs", [-23.0, -19.0, -16.0])
def test_speech_gets_to_its_target_without_a_clipped_sample(lufs: float):
    with TTS() as tts:
        speech = tts.generate("The ferry left at nine, and nobody waved.", seed=4).samples
    leveller = Leveller(RATE, lufs, 60.0)
    levelled = np.concatenate((leveller.feed(speech), leveller.finish()))
    assert len(levelled) == len(speech)
    assert integrated(levelled, RATE) == pytest.approx(lufs, abs=0.5)
    assert np.abs(levelled).max() <= PEAK + 1e-6


@pytest.mark.parametrize("chunk", [1, 7, 100, 4096, 10**6])
def test_the_limiter_does_not_depend_on_chunks(chunk: int):
    rng = np.random.default_rng(3)
    samples = rng.normal(0, 0.5, 3000).astype(np.float32)

    def limited(size: int) -> np.ndarray:
        limiter = Limiter(8000)
        parts = [limiter.feed(samples[i : i + size]) for i in range(0, len(samples), size)]
        return np.concatenate([*parts, limiter.finish()])

    assert np.abs(limited(chunk)).max() <= PEAK + 1e-6
    assert len(limited(chunk)) == len(samples)
    np.testing.assert_allclose(limited(chunk), limited(500), atol=1e-7)


def test_what_is_quiet_enough_passes_the_limiter_unchanged():
    samples = 0.5 * tone(0.1)
    limiter = Limiter(RATE)
    assert np.array_equal(np.concatenate((limiter.feed(samples), limiter.finish())), samples)


def test_the_first_seconds_set_the_gain_of_a_long_speech():
    leveller = Leveller(RATE, -20.0, 2.0)
    assert not len(leveller.feed(0.05 * tone(1)))
    first = leveller.feed(0.05 * tone(1))
    rest = np.concatenate((leveller.feed(0.1 * tone(3)), leveller.finish()))
    assert integrated(first[RATE:], RATE) == pytest.approx(-20.0, abs=0.2)
    assert integrated(rest[RATE:], RATE) == pytest.approx(-14.0, abs=0.2)


def test_a_recording_that_is_nearly_silent_is_not_lifted_beyond_20_db():
    leveller = Leveller(RATE, -16.0, 1.0)
    levelled = np.concatenate((leveller.feed(0.002 * tone(3)), leveller.finish()))
    assert np.abs(levelled).max() == pytest.approx(0.02, rel=0.01)
