"""How graphs are captured beside other engines, on a device that is simulated."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stentor
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import Device

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
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda *_: pytest.fail("waited for the whole device")
    )
    return SimpleNamespace(cuda=True, release_cached=lambda: EVENTS.append("release"))


STREAM: Any = SimpleNamespace(synchronize=lambda: EVENTS.append("stream"))


def test_a_capture_waits_for_its_own_stream_only(device: Any) -> None:
    runner = CudaGraphRunner("decode", EVENTS.append, device, STREAM)
    runner.capture([(2,), (1,)])
    assert EVENTS == [
        2,
        "stream",
        "thread_local",
        2,
        "end",
        1,
        "stream",
        "thread_local",
        1,
        "end",
        "release",
    ]
    assert set(runner.graphs) == {(2,), (1,)}


def test_a_capture_that_fails_is_ended_and_its_key_runs_eagerly(device: Any) -> None:
    def fails_when_captured(key: int) -> None:
        if EVENTS and EVENTS[-1] == "thread_local":
            raise RuntimeError("not allowed in a capture")
        EVENTS.append(key)

    runner = CudaGraphRunner("decode", fails_when_captured, device, STREAM)
    runner.capture([(2,)])
    assert EVENTS == [2, "stream", "thread_local", "end", "release"]
    assert runner.failed == {(2,): "not allowed in a capture"}


def test_a_closed_engine_lets_go_of_its_graphs_without_a_garbage_collection() -> None:
    """A collection in the midst of another model's capture would destroy them there, which breaks it."""
    with stentor.TTS("dummy:toy", memory_gb=0.001, max_num_seqs=1) as tts:
        graph = Graph()
        held = weakref.ref(graph)
        for runner in tts.engine.side.graph_runners:
            runner.graphs[0, 0] = graph  # type: ignore[assignment]
        del graph
        assert held() is not None
    assert held() is None


def test_nothing_in_the_package_waits_for_a_whole_device_or_sets_what_other_engines_share() -> None:
    everywhere = (
        "torch.cuda.synchronize",
        "torch.cuda.graph(",
        "cudnn.flags",
        "set_float32_matmul_precision",
    )
    # an engine's process freezes what it has loaded
    once = {"cudnn.allow_tf32": 1, "enable_cudnn_sdp": 1, "gc.freeze": 1, "setswitchinterval": 0}
    texts = [p.read_text() for p in Path(stentor.__file__).parent.rglob("*.py")]
    assert {word: sum(text.count(word) for text in texts) for word in everywhere} == dict.fromkeys(
        everywhere, 0
    )
    assert {
        word: sum(text.count(f"{word}(") + text.count(f"{word} =") for text in texts)
        for word in once
    } == once


def test_a_device_on_cuda_sets_what_all_models_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 changes codes, cuBLASLt's workspace puts memsets into graphs, and cuDNN's attention never frees its plans."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.delenv("CUBLASLT_WORKSPACE_SIZE", raising=False)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        Device("cpu")
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.cudnn_sdp_enabled()
        Device("cuda:1")
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert os.environ["CUBLASLT_WORKSPACE_SIZE"] == "0"
        monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "1024")
        Device("cuda:1")
        assert os.environ["CUBLASLT_WORKSPACE_SIZE"] == "1024"  # who sets it keeps it
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
