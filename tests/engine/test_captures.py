"""Every graph is captured before an engine is ready, and serves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stentor import TTS
from stentor.engine.running import cuda_graphs
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.errors import EngineError
from tests.helpers.captured import simulate_captures

SMALL = {"memory_gb": 0.002, "max_frames": 64, "batch_sizes": (6, 4, 2, 1), "max_num_seqs": 6}
Event = tuple[str, tuple[int, ...]]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Names and keys of what is captured, as on a GPU."""
    simulate_captures(monkeypatch)
    found: list[Event] = []
    record = cuda_graphs.record_graph

    def noted(runner: CudaGraphRunner, key: tuple[int, ...]) -> Any:
        found.append((runner.name, key))
        return record(runner, key)

    monkeypatch.setattr(cuda_graphs, "record_graph", noted)
    return found


@pytest.mark.parametrize("model", ["dummy:toy", "dummy:toy-utterance"])
def test_all_graphs_are_captured_once_before_the_engine_is_ready_and_serve(
    captured: list[Event], model: str
) -> None:
    with TTS(model, dtype="float64", **SMALL) as tts:
        ready = list(captured)
        assert len(ready) == len(set(ready))
        runner, codec = tts.engine.runner, tts.engine.codec
        assert set(runner.decode_graphs.graphs) == set(runner.decode_keys())
        assert set(codec.graphs.graphs) == set(codec.calls.captured_shapes(6))
        got = tts.generate("what a graph makes", seed=1, max_frames=20).samples
        assert runner.decode_graphs.eager_calls == codec.graphs.eager_calls == 0
    assert captured == ready
    np.testing.assert_allclose(got, eager(model), atol=1e-6)


def eager(model: str) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaGraphRunner, "capture", lambda *_: None)
        with TTS(model, dtype="float64", **SMALL) as tts:
            return tts.generate("what a graph makes", seed=1, max_frames=20).samples


def test_a_capture_that_fails_leaves_its_key_to_a_larger_graph_unless_graphs_are_required(
    captured: list[Event], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = cuda_graphs.record_graph

    def fail(runner: CudaGraphRunner, key: tuple[int, ...]) -> Any:
        if runner.name == "decode" and key[0] in (2, 4):
            raise RuntimeError("no memory")
        return record(runner, key)

    monkeypatch.setattr(cuda_graphs, "record_graph", fail)
    with TTS("dummy:toy", **SMALL) as tts:
        graphs = tts.engine.runner.decode_graphs
        assert {key[0] for key in graphs.failed} == {2, 4}
        assert {key[0] for key in graphs.graphs} == {6, 1}
        streams = [tts.stream(f"number {i}", max_frames=9, min_frames=9) for i in range(3)]
        assert [sum(len(chunk.frames) for chunk in stream) for stream in streams] == [9, 9, 9]
        assert graphs.eager_calls == 0
        assert tts.engine.health().alive
    assert "graph capture of decode(4, " in caplog.text
    with pytest.raises(EngineError, match="could not start: graph capture of decode"):
        TTS("dummy:toy", require_graphs=True, **SMALL)


def test_a_closed_engine_holds_no_graph(captured: list[Event]) -> None:
    tts = TTS("dummy:toy", **SMALL)
    assert captured
    tts.close()
    assert not any(runner.graphs for runner in tts.engine.side.graph_runners)


def test_an_engine_on_a_cpu_captures_nothing() -> None:
    with TTS("dummy:toy", max_num_seqs=2, memory_gb=0.001) as tts:
        assert not any(runner.graphs for runner in tts.engine.side.graph_runners)
