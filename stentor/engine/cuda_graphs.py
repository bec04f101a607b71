"""One capture mechanism for every captured function: CUDA graphs by shape key, eager where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from stentor.engine.device import Device, Stream
from stentor.errors import EngineError

log = logging.getLogger("stentor.graphs")

Key = tuple[int, ...]


class GraphLadder:
    """`fn(*key)` over static buffers, captured per key. Keys are captured in the order given: largest first, so that
    later captures fit into the memory pool of the first.

    Two graphs may share memory only if they are never replayed at once, so a ladder belongs to one stream: ladders of
    the same stream share their pool (`beside`), and capture happens on that very stream, because the libraries keep a
    workspace per stream and a graph keeps the one it was captured with. On a CPU nothing is captured and every call
    runs `fn`.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., None],
        device: Device,
        stream: Stream,
        required: bool = False,
        beside: GraphLadder | None = None,
    ) -> None:
        self.name, self.fn, self.device, self.stream, self.required = name, fn, device, stream, required
        self.graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self.failed: dict[Key, str] = {}
        self.eager_calls = 0
        self.pool: Any = None
        if device.cuda:
            self.pool = beside.pool if beside is not None else torch.cuda.graph_pool_handle()

    def capture(self, keys: Iterable[Key]) -> None:
        """Capture what can be captured. A key that fails is named once and left to eager calls (or is fatal)."""
        if not self.device.cuda:
            return
        for key in keys:
            try:
                self._capture(key)
            except RuntimeError as e:
                if self.required:
                    raise EngineError(f"graph capture of {self.name}{key} failed: {e}") from e
                self.failed[key] = str(e)
                log.warning("graph capture of %s%s failed, it will run eagerly: %s", self.name, key, e)
        torch.cuda.empty_cache()  # what the calls before each capture took: graphs have memory of their own

    def _capture(self, key: Key) -> None:
        self.fn(*key)  # lazy initialisation and compilation must happen outside the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream.cuda, capture_error_mode="thread_local"):
            self.fn(*key)
        self.graphs[key] = graph

    def fit(self, key: Key) -> Key:
        """The smallest captured key that covers `key` in every dimension; `key` itself when there is none."""
        covering = [k for k in self.graphs if all(a >= b for a, b in zip(k, key, strict=True))]
        return min(covering, default=key)

    def __call__(self, *key: int) -> None:
        graph = self.graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self.eager_calls += 1
        self.fn(*key)
