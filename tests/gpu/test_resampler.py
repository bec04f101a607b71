"""On a GPU reference audio is resampled there, with the samples that soxr has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stentor.audio import Recording
from stentor.engine.running.device import Device
from stentor.engine.voice import USUAL_RATES, Resampler

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("target", [16_000, 24_000, 44_100])
def test_a_gpu_has_the_samples_of_soxr(target: int) -> None:
    resampler = Resampler(Device("cuda"), target)
    with torch.inference_mode():
        resampler.warm_up()
        for source in (*USUAL_RATES, 32_000, 96_000):
            samples = (
                np.random.default_rng(source).uniform(-0.5, 0.5, 3 * source + 1).astype(np.float32)
            )
            recording = Recording(samples, source)
            found = resampler(recording).cpu().numpy()
            np.testing.assert_allclose(
                found, recording.at(target), rtol=0, atol=3e-6, err_msg=f"{source} Hz"
            )
