"""Prefills through the static buffers and shapes that a GPU captures, on a CPU.

A shape that is not captured runs as on a GPU: without a graph, and counted in `eager_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor import TTS
from stentor.engine.running import cuda_graphs, model_runner
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.kv_cache import PagedKV, PagedView
from stentor.engine.running.model_runner import ModelRunner
from stentor.engine.running.prefill_batch import BatchShape, PrefillBuffers
from stentor.kernels.types import TextWindow

TOKENS = 32  # of the largest shape here


class Replay:
    """Stand-in for a CUDA graph: the function of one key."""

    def __init__(self, fn: Callable[..., None], key: tuple[int, ...]) -> None:
        self.fn, self.key = fn, key

    def replay(self) -> None:
        self.fn(*self.key)


def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use as many kinds of shapes as on a GPU, of few tokens: padding costs a CPU as much as tokens do."""
    monkeypatch.setattr(model_runner, "PREFILL_TOKENS", (TOKENS, 16, 8, 4))
    monkeypatch.setattr(model_runner, "REPLAY_TOKENS", (TOKENS, 4))


def simulate_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners capture as on a GPU: the function runs, and then a graph of it is made. Prefills and frames 0 are not
    captured by an engine on a CPU."""
    made, captured = CudaGraphRunner.__init__, ModelRunner.capture

    def init(self: CudaGraphRunner, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.device = SimpleNamespace(cuda=True, release_cached=lambda: None)  # type: ignore[assignment]

    def record(runner: CudaGraphRunner, key: tuple[int, ...]) -> Replay:
        runner.fn(*key)
        return Replay(runner.fn, key)

    def every_loop(self: ModelRunner) -> None:
        self.evals = {self.model.spec.num_evals, *self.model.spec.captured_evals}
        captured(self)

    monkeypatch.setattr(CudaGraphRunner, "__init__", init)
    monkeypatch.setattr(cuda_graphs, "record_graph", record)
    monkeypatch.setattr(ModelRunner, "capture", every_loop)


def make_prefill_buffers(tts: TTS) -> None:
    """Make the buffers that a GPU would have for these sizes."""
    runner, slots = tts.engine.runner, tts.engine.sizes.slots
    spec = runner.model.spec
    largest = BatchShape(TOKENS, slots, TOKENS if spec.gives_frames else 0, TOKENS)
    runner.prefill_buffers = PrefillBuffers(spec, largest, slots, runner.device)


def capture_prefills(tts: TTS) -> None:
    """Give an engine that has served nothing yet every prefill that a GPU would capture."""
    runner = tts.engine.runner
    runner.evals = {runner.model.spec.num_evals, *runner.model.spec.captured_evals}
    make_prefill_buffers(tts)
    graphs: Any
    for graphs, keys in (
        (runner.prefill_graphs, runner.prefill_keys()),
        (runner.first_graphs, runner.first_keys()),
    ):
        graphs.graphs = {key: Replay(graphs.fn, key) for key in keys}
    read_rows_from_tokens(runner.kv, tts.engine.sizes.max_pages)


def read_rows_from_tokens(kv: PagedKV, max_pages: int) -> None:
    """Attention knows rows and lengths from the tokens' slots and positions, as the kernel does."""
    none = torch.empty(0, dtype=torch.int64)
    no_frames = kv.frames_of(none, max_pages)

    def prefill_view(
        idx: Tensor,
        row: Tensor,
        slot: Tensor,
        pos: Tensor,
        pages: int,
        longest: int,
        window: TextWindow | None,
        frame_at: Tensor | None,
    ) -> PagedView:
        assert not len(idx)
        assert not len(row)
        found, of = slot.unique(return_inverse=True)
        return PagedView(
            kv, found, of, pos, max_pages, max(2, int(torch.bincount(of).max())), window, no_frames
        )

    kv.prefill_view = prefill_view  # type: ignore[method-assign]


def eager_prefills(tts: TTS) -> int:
    """Prefills and frames 0 since start that no captured shape served."""
    runner = tts.engine.runner
    return runner.prefill_graphs.eager_calls + runner.first_graphs.eager_calls
