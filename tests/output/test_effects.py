"""Time stretch and sample rate do not depend on how the audio is cut."""

from __future__ import annotations

import numpy as np
import pytest

from stentor.output.effects import EffectChain, Stretch

RATE = 24_000


T = np.arange(2 * RATE + 137) / RATE


TONE = (0.3 * np.sin(2 * np.pi * 220 * T) + 0.1 * np.sin(2 * np.pi * 1330 * T)).astype(np.float32)


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.9, 1.3, 2.0, 4.0])
def test_stretching_keeps_pitch_and_loudness_and_hits_the_duration(speed: float) -> None:
    stretch = Stretch(speed, RATE)
    out = np.concatenate([stretch.feed(TONE), stretch.finish()])
    assert len(out) == round(len(TONE) / speed)
    middle = out[2000:-2000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(spectrum.argmax() * RATE / len(middle) - 220) < 3
    assert np.sqrt((middle**2).mean()) == pytest.approx(np.sqrt((TONE**2).mean()), rel=0.02)


@pytest.mark.parametrize("speed", [2.6, 2.7, 3.1, 4.0])
@pytest.mark.parametrize("size", [1, 479, 480, 2000, 2500, 9601, 20_160])
def test_fast_speech_gets_no_sample_too_much(speed: float, size: int) -> None:
    for step in (1, 480, size):
        stretch = Stretch(speed, RATE)
        parts = [stretch.feed(TONE[at : min(at + step, size)]) for at in range(0, size, step)]
        assert sum(map(len, [*parts, stretch.finish()])) == round(size / speed)


@pytest.mark.parametrize(
    ("target", "speed"), [(8000, 1.0), (48_000, 1.0), (24_000, 1.7), (16_000, 0.6)]
)
def test_effects_do_not_depend_on_how_the_audio_was_cut(target: int, speed: float) -> None:
    def through(steps: list[int]) -> np.ndarray:
        chain, at, out = EffectChain(RATE, target, speed), 0, []
        while at < len(TONE):
            step = steps[len(out) % len(steps)]
            out.append(chain.feed(TONE[at : at + step]))
            at += step
        return np.concatenate([*out, chain.finish()])

    whole = through([len(TONE)])
    assert abs(len(whole) - len(TONE) * target / RATE / speed) <= 2
    assert np.array_equal(whole, through([1, 17, 1920, 5, 4800]))
