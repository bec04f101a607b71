"""CUDA graphs by shape key, for every captured function. A key without a graph runs eagerly."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch

from stentor.engine.running.device import CudaStream, Device
from stentor.errors import EngineError

log = logging.getLogger("stentor.graphs")

Key = tuple[int, ...]


class CudaGraphRunner:
    """`fn(*key)` over static buffers, captured per key: the largest first, so that later captures
    fit into the memory pool of the first.

    Two graphs may share memory only if they are never replayed at once. Runners of one stream
    therefore share their pool (`shares_pool_of`), and others do not. Capture happens on that very
    stream, because libraries keep a workspace per stream and a graph keeps the workspace it was
    captured with. On a CPU nothing is captured and every call runs `fn`.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., None],
        device: Device,
        stream: CudaStream,
        required: bool = False,
        shares_pool_of: CudaGraphRunner | None = None,
    ) -> None:
        self.name = name
        self.fn = fn
        self.device = device
        self.stream = stream
        self.required = required
        self.graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self.failed: dict[Key, str] = {}
        self.eager_calls = 0
        self.pool: Any = None
        if device.cuda:
            if shares_pool_of is not None:
                self.pool = shares_pool_of.pool
            else:
                self.pool = torch.cuda.graph_pool_handle()

    def capture(self, keys: Iterable[Key]) -> None:
        """Capture these keys, with `stream` active. A key that fails is logged and runs eagerly.
        EngineError if graphs are required."""
        if not self.device.cuda:
            return
        for key in keys:
            try:
                self.graphs[key] = record_graph(self, key)
            except RuntimeError as e:
                self.failed[key] = str(e)
                if self.required:
                    raise EngineError(f"graph capture of {self.name}{key} failed: {e}") from e
                log.warning(
                    "graph capture of %s%s failed, it runs eagerly or in a larger graph: %s",
                    self.name,
                    key,
                    e,
                )
        # what the calls before each capture took: graphs have memory of their own
        self.device.release_cached()

    def drop(self, key: Key) -> None:
        """Release a graph. Its key runs eagerly from now on."""
        del self.graphs[key]

    def close(self) -> None:
        """Release the graphs explicitly: they form a reference cycle with their runner, and a
        garbage collection that frees one during another model's capture in that thread breaks the
        capture."""
        self.graphs.clear()

    def covering_key(self, key: Key, least: int = 0) -> Key:
        """The smallest captured key that covers `key` in every dimension, or `key` itself when
        there is none.

        least: so many numbers at the end are to be small before the others are.
        """
        if key in self.graphs:
            return key
        first = len(key) - least
        covering = (
            k
            for k in self.graphs
            if all(large >= small for large, small in zip(k, key, strict=True))
        )
        return min(covering, key=lambda k: (k[first:], k[:first]), default=key)

    def __call__(self, *key: int) -> None:
        graph = self.graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self.eager_calls += 1
        self.fn(*key)


def record_graph(runner: CudaGraphRunner, key: Key) -> torch.cuda.CUDAGraph:
    """Capture `fn(*key)`, after a run that initialises and compiles: both must happen outside the
    capture.

    `torch.cuda.graph` would wait for the whole device, which other engines use, and which is an
    error while one of them captures.
    """
    runner.fn(*key)
    runner.stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=runner.pool, capture_error_mode="thread_local")
    try:
        runner.fn(*key)
    except BaseException:
        with suppress(RuntimeError):  # the capture is broken, which the first error says
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
