"""The simulations of benchmarks/engine run, and say what they said: the one without a clock of its own to the digit."""

from __future__ import annotations

from benchmarks.engine import cells_sim, schedule_sim
from stentor.config import Policy
from stentor.engine.audio_scheduler import RAMP


def test_the_engine_speaks_on_the_simulated_device() -> None:
    """It failed where the engine made more streams than the device had."""
    with schedule_sim.simulated("voxcpm2", Policy(ramp=RAMP)) as tts:
        found = schedule_sim.measure(tts, "burst1")
        frames, busy = tts.engine.stats.frames, tts.engine.device.line.busy
    assert (found["requests"], found["prefills"]) == (1, 1)
    assert frames == round(schedule_sim.SECONDS * tts.spec.sample_rate / tts.spec.hop)
    assert min(busy.values()) > 0


def test_a_cell_of_a_request_alone_is_heard_after_its_prefill_its_steps_and_a_call() -> None:
    sim = cells_sim.Simulation(1, 0.3)
    sim.run()
    assert {id: round(ms) for id, ms in sim.first.items()} == {0: 41}
    assert round(cells_sim.FRAMES * cells_sim.HOP / (sim.now / 1e3)) == 51
