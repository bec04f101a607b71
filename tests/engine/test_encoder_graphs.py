"""Encoders launched from graphs that keep their inputs and outputs in place compute what they compute eagerly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from stentor import registry
from stentor.engine import voice
from stentor.engine.running import cuda_graphs
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import Device
from stentor.engine.voice import EncoderGraphs, warm_lengths
from stentor.layers import windows
from stentor.layers.types import Eager
from tests.helpers.tiny import FAMILIES, reference_checkpoint

SHORTEST, LONGEST, STEP = 2_000, 50_000, 16_000


class Graph:
    """Behave like a CUDA graph: read inputs where they are, and write to where outputs were when it was made."""

    def __init__(self, launch: EncoderGraphs, number: int) -> None:
        self.call = launch._captured[number]

    def replay(self) -> None:
        for place, value in zip(self.call.outputs, self.call.fn(*self.call.inputs), strict=True):
            place.copy_(value)


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> EncoderGraphs:
    """It captures as on a GPU, small shapes."""
    monkeypatch.setattr(windows, "COLUMNS", (16, 12, 8, 4, 2))
    for module in (windows, voice):
        monkeypatch.setattr(module, "STEP", STEP)
    cpu = Device("cpu")
    made = EncoderGraphs(cpu, cpu.stream(0), required=True, columns=16)

    def record(runner: CudaGraphRunner, key: tuple[int, ...]) -> Graph:
        runner.fn(*key)
        return Graph(made, *key)

    monkeypatch.setattr(cuda_graphs, "record_graph", record)
    made.device = made.graphs.device = cast(
        Device, SimpleNamespace(cuda=True, release_cached=lambda: None)
    )
    return made


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_recordings_of_any_length_are_encoded_by_the_graphs_of_the_start(family, tmp_path, launch):
    model = registry.load(
        reference_checkpoint(family, tmp_path), torch.device("cpu"), torch.float32, {}
    )
    wav = torch.randn(LONGEST, generator=torch.Generator().manual_seed(1)) * 0.1
    with launch.capturing():
        for count in warm_lengths(SHORTEST, LONGEST):
            model.encode(wav[:count], "reference", launch)
    graphs = len(launch.graphs.graphs)
    for count in (SHORTEST, 3_999, 4_000, 15_361, 16_001, 31_007, 48_001, LONGEST - 1, LONGEST):
        got = {
            name: value.clone()
            for name, value in model.encode(wav[-count:], "reference", launch).items()
        }
        want = model.encode(wav[-count:], "reference", Eager(16))
        assert got.keys() == want.keys()
        assert all(got[name].equal(want[name]) for name in want), count
    assert len(launch.graphs.graphs) == graphs > 1
    assert launch.graphs.eager_calls == 0


def test_what_was_not_captured_runs_eagerly_and_is_counted(launch: EncoderGraphs) -> None:
    def double(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (2 * x,)

    with launch.capturing():
        assert launch(double, torch.ones(2))[0].tolist() == [2.0, 2.0]
    assert launch(double, torch.full((2,), 3.0))[0].tolist() == [6.0, 6.0]
    assert launch.graphs.eager_calls == 0
    assert launch(double, torch.ones(3))[0].tolist() == [2.0] * 3
    assert launch.graphs.eager_calls == 1
