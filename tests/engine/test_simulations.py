"""The simulation of a GPU in benchmarks/engine runs the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.engine import host_overhead, schedule_sim
from stentor.config import Policy
from stentor.engine.scheduling.chunks import RAMP


def test_the_engine_speaks_on_the_simulated_device() -> None:
    """It failed where the engine made more streams than the device had."""
    with schedule_sim.simulated("voxcpm2", Policy(ramp=RAMP)) as tts:
        found = schedule_sim.measure(tts, "burst1")
        frames, busy = tts.engine.stats.frames, tts.engine.side.device.line.busy
    assert (found["requests"], found["prefills"]) == (1, 1)
    assert frames == round(schedule_sim.SECONDS * tts.spec.sample_rate / tts.spec.hop)
    assert min(busy.values()) > 0


@pytest.mark.parametrize("use", [host_overhead.read, host_overhead.serve])
@pytest.mark.parametrize("model", ["qwen3-tts-1.7b-customvoice", "pocket-tts"])
def test_the_host_work_of_steps_is_measured_without_a_device(
    model: str, use: Callable[..., None]
) -> None:
    measured = host_overhead.measure(model, 2, 30.0, None, use)
    assert measured["rows"] == 2
    assert measured["steps"] > 50
    assert 0 < measured["without_audio_median_ms"] <= measured["p99_ms"]
