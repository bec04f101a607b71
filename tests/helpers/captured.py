"""Prefills through the static buffers and shapes that a GPU captures, on a CPU.

A shape that is not captured runs as on a GPU: without a graph, and counted in `eager_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor import TTS
from stentor.engine import model_runner
from stentor.engine.kv_cache import PagedKV, PagedView
from stentor.engine.prefill_batch import BatchShape, PrefillBuffers
from stentor.kernels.types import TextWindow

TOKENS = 32  # of the largest shape here


class Replay:
    """As a CUDA graph: the function of one key."""

    def __init__(self, fn: Callable[..., None], key: tuple[int, ...]) -> None:
        self.fn, self.key = fn, key

    def replay(self) -> None:
        self.fn(*self.key)


def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many kinds of shapes as on a GPU, of few tokens: padding costs a CPU as much as tokens do."""
    monkeypatch.setattr(model_runner, "PREFILL_TOKENS", (TOKENS, 16, 8, 4))
    monkeypatch.setattr(model_runner, "REPLAY_TOKENS", (TOKENS, 4))


def capture_prefills(tts: TTS) -> None:
    """Give an engine that has served nothing yet every prefill that a GPU would capture."""
    runner, slots = tts.engine.runner, tts.engine.sizes.slots
    spec = runner.model.spec
    runner.evals = {spec.num_evals, *spec.captured_evals}
    largest = BatchShape(TOKENS, slots, TOKENS if spec.gives_frames else 0, TOKENS)
    runner.prefill_buffers = PrefillBuffers(spec, largest, slots, runner.device)
    graphs: Any
    for graphs, keys in (
        (runner.prefill_graphs, runner.prefill_keys()),
        (runner.first_graphs, runner.first_keys()),
    ):
        graphs.graphs = {key: Replay(graphs.fn, key) for key in keys}
    _read_rows_from_tokens(runner.kv, tts.engine.sizes.max_pages)


def _read_rows_from_tokens(kv: PagedKV, max_pages: int) -> None:
    """Attention knows rows and lengths from the tokens' slots and positions, as the kernel does."""

    def prefill_view(
        idx: Tensor, row: Tensor, slot: Tensor, pos: Tensor, pages: int, longest: int, window: TextWindow | None
    ) -> PagedView:
        assert not len(idx)
        assert not len(row)
        found, of = slot.unique(return_inverse=True)
        return PagedView(kv, found, of, pos, max_pages, max(2, int(torch.bincount(of).max())), window)

    kv.prefill_view = prefill_view  # type: ignore[method-assign]


def eager_prefills(tts: TTS) -> int:
    """Prefills and frames 0 since start that no captured shape served."""
    runner = tts.engine.runner
    return runner.prefill_graphs.eager_calls + runner.first_graphs.eager_calls
