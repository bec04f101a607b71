"""Work of a server before it is ready."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import stentor
from stentor.models.base import ModelSpec
from stentor.server.engines import process


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    with stentor.TTS("dummy:toy", device="cpu") as tts:
        return tts.spec


@pytest.mark.parametrize("seconds", [(0.5, 60.0), (3.0, 10.0), (0.1, 0.4)])
def test_the_first_reference_is_as_long_as_the_model_takes_and_no_cache_keeps_it(
    spec: ModelSpec, seconds: tuple[float, float]
) -> None:
    found = process.noise(replace(spec, reference_seconds=seconds), 1.0)
    assert not found.cacheable
    assert len(found.samples) == int(min(max(seconds[0], 1.0), seconds[1]) * found.rate)
    assert 0.05 < np.abs(found.samples).max() <= 1.0
