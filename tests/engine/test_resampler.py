"""Reference audio at the rate of a model: what a GPU multiplies gives what soxr gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stentor import audio
from stentor.audio import QUALITY, Recording
from stentor.engine.running.device import Device
from stentor.engine.voice import Resampler
from stentor.kernels.resampler import HIGHEST, LARGEST, filters, resampled

RATES = (8000, 11_025, 16_000, 22_050, 24_000, 30_000, 32_000, 44_100, 48_000)
TARGETS = (16_000, 24_000, 44_100)
PAIRS = [(source, target) for source in RATES for target in TARGETS if source != target]


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(count).uniform(-0.5, 0.5, count).astype(np.float32)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_product_has_the_samples_of_soxr_from_the_first_to_the_last(
    source: int, target: int
) -> None:
    made = filters(source, target, QUALITY)
    assert made is not None
    for count in (1, 2, 1000, 1001, 1080, 1111, source // 2, source + 3):
        samples = noise(count)
        found = resampled(torch.from_numpy(samples), source, target, made).numpy()
        want = audio.resample(samples, source, target)
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=0, atol=3e-6, err_msg=f"{count} samples")


def test_rates_whose_matrix_is_large_or_whose_filters_are_not_known_have_none() -> None:
    assert filters(24_001, 16_000, QUALITY) is None
    assert filters(2 * HIGHEST, 24_000, QUALITY) is None
    assert filters(LARGEST + 1, LARGEST, QUALITY) is None
    assert filters(24_000, 600, QUALITY) is None


def test_on_a_cpu_soxr_resamples() -> None:
    recording = Recording(noise(4800), 48_000)
    found = Resampler(Device("cpu"), 16_000)(recording).numpy()
    assert np.array_equal(found, audio.resample(recording.samples, 48_000, 16_000))
    assert np.array_equal(Resampler(Device("cpu"), 48_000)(recording).numpy(), recording.samples)
