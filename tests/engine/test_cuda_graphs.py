"""How graphs are captured beside other engines, on a device that is simulated."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stentor
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.device import Device

EVENTS: list[object] = []


class Graph:
    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        EVENTS.append(capture_error_mode)

    def capture_end(self) -> None:
        EVENTS.append("end")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU on which nobody may wait for all streams."""
    EVENTS.clear()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("waited for the whole device"))
    return SimpleNamespace(cuda=True, release_cached=lambda: EVENTS.append("release"))


STREAM: Any = SimpleNamespace(synchronize=lambda: EVENTS.append("stream"))


def test_a_capture_waits_for_its_own_stream_only_and_the_first_key_runs_before_it(device: Any) -> None:
    runner = CudaGraphRunner("decode", EVENTS.append, device, STREAM)
    runner.capture([(2,), (1,)])
    assert EVENTS == [2, "stream", "thread_local", 2, "end", "thread_local", 1, "end", "release"]
    assert set(runner.graphs) == {(2,), (1,)}


def not_captured(times: int) -> Any:
    """A function whose first `times` captures fail."""
    left = [times]

    def run(key: int) -> None:
        if EVENTS[-1:] == ["thread_local"] and left[0]:
            left[0] -= 1
            raise RuntimeError("not allowed in a capture")
        EVENTS.append(key)

    return run


def test_a_key_whose_capture_fails_runs_and_is_captured_again(device: Any) -> None:
    runner = CudaGraphRunner("decode", EVENTS.append, device, STREAM)
    runner.capture([(3,)])
    EVENTS.clear()
    runner.fn = not_captured(1)
    runner.capture([(2,)])
    assert EVENTS == ["thread_local", "end", 2, "stream", "thread_local", 2, "end", "release"]
    assert (2,) in runner.graphs
    assert not runner.failed


def test_a_key_that_cannot_be_captured_runs_eagerly(device: Any) -> None:
    runner = CudaGraphRunner("decode", not_captured(9), device, STREAM)
    runner.capture([(2,)])
    assert EVENTS == [2, "stream", "thread_local", "end"] * 2 + ["release"]
    assert runner.failed == {(2,): "not allowed in a capture"}
    assert not runner.graphs


def test_a_closed_engine_lets_go_of_its_graphs_without_a_garbage_collection() -> None:
    """A collection in the midst of another model's capture would destroy them there, which breaks it."""
    with stentor.TTS("dummy:toy", memory_gb=0.001, max_num_seqs=1) as tts:
        graph = Graph()
        held = weakref.ref(graph)
        for runner in tts.engine.graph_runners:
            runner.graphs[0, 0] = graph  # type: ignore[assignment]
        del graph
        assert held() is not None
    assert held() is None


def test_nothing_in_the_package_waits_for_a_whole_device_or_sets_what_other_engines_share() -> None:
    everywhere = ("torch.cuda.synchronize", "torch.cuda.graph(", "cudnn.flags", "set_float32_matmul_precision")
    # the loader freezes after a load and after an unload; a process is a server or a replica on Ray
    once = {"cudnn.allow_tf32": 1, "gc.freeze": 2, "setswitchinterval": 2}
    texts = [p.read_text() for p in Path(stentor.__file__).parent.rglob("*.py")]
    assert {word: sum(text.count(word) for text in texts) for word in everywhere} == dict.fromkeys(everywhere, 0)
    assert {word: sum(text.count(f"{word}(") + text.count(f"{word} =") for text in texts) for word in once} == once


def test_a_device_on_cuda_turns_tf32_off_once_for_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    Device("cpu")
    assert torch.backends.cudnn.allow_tf32
    Device("cuda:1")
    assert not torch.backends.cudnn.allow_tf32
