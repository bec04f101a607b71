"""CUDA graphs by shape key, for every captured function. A key without a graph runs eagerly."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from stentor.engine.capture_order import Key
from stentor.engine.device import CudaStream, Device
from stentor.errors import EngineError

log = logging.getLogger("stentor.graphs")


class CudaGraphRunner:
    """`fn(*key)` over static buffers, captured per key. Keys are captured in the order planned: largest first, so that
    later captures fit into the memory pool of the first.

    Two graphs may share memory only if they are never replayed at once. Runners of one stream therefore share their
    pool (`shares_pool_of`), and others do not. Capture happens on that very stream, because libraries keep a workspace
    per stream and a graph keeps the workspace it was captured with. On a CPU nothing is captured and every call runs
    `fn`.
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
        self.name, self.fn, self.device, self.stream, self.required = name, fn, device, stream, required
        self.graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._planned: list[Key] = []
        self.later: deque[Key] = deque()
        self.asked = False  # whether a launch would have taken the first of those
        self.failed: dict[Key, str] = {}
        self.eager_calls = 0
        self.pool: Any = None
        if device.cuda:
            self.pool = shares_pool_of.pool if shares_pool_of is not None else torch.cuda.graph_pool_handle()

    def plan(
        self, keys: Iterable[Key], later: Iterable[Key] = (), compiled: Iterable[Key] = ()
    ) -> list[Callable[[], None]]:
        """Say which keys `capture` captures. Returns calls that launch their kernels, to be compiled before.

        later: what `capture_next` captures, one by one. compiled: keys with the same kernels and fewer launches, if
        there are any.
        """
        if not self.device.cuda:
            return []
        self._planned = list(keys)
        self.later.extend(later)
        return [partial(self.fn, *key) for key in list(compiled) or sorted(self._planned)]

    def capture(self) -> None:
        """Capture what was planned, with `stream` active. A key that fails is logged and runs eagerly. EngineError if
        graphs are required."""
        for key in self._planned:
            self._try(key)
        self._planned = []
        self.device.release_cached()  # what the calls before each capture took: graphs have memory of their own

    def capture_next(self) -> None:
        """The same for the first key that was left for later. Until then another graph covers it, as it does if this
        fails."""
        self.asked = False
        try:
            self._try(self.later[0])
        finally:
            self.later.popleft()

    def ask(self, key: Key, taken: Key) -> None:
        """`key` is launched in the graph `taken`. If a smaller one is left for later, it comes first."""
        fits = [k for k in self.later if k != taken and _covers(k, key) and _covers(taken, k)]
        if fits:
            wanted = min(fits)
            self.later.remove(wanted)
            self.later.appendleft(wanted)
            self.asked = True

    def _try(self, key: Key) -> None:
        try:
            self._capture(key)
        except RuntimeError as e:
            self.failed[key] = str(e)
            if self.required:
                raise EngineError(f"graph capture of {self.name}{key} failed: {e}") from e
            log.warning("graph capture of %s%s failed, it runs eagerly or in a larger graph: %s", self.name, key, e)

    def _capture(self, key: Key) -> None:
        """`torch.cuda.graph` would wait for the whole device, which other engines use, and which is an error while
        one of them captures."""
        self._prepare(key)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            self.fn(*key)
        except BaseException:
            with suppress(RuntimeError):  # the capture is broken, which the first error says
                graph.capture_end()
            raise
        graph.capture_end()
        self.graphs[key] = graph

    def close(self) -> None:
        """Let go of the graphs. They are in a circle with whoever captured them, and a garbage collection that
        destroys one while another model's graph is captured in that thread breaks the capture."""
        self.graphs.clear()
        self.later.clear()
        self.asked = False

    def _prepare(self, key: Key) -> None:
        """Lazy initialisation and compilation, which must happen outside the capture."""
        self.fn(*key)
        self.stream.synchronize()

    def covering_key(self, key: Key, least: int = 0) -> Key:
        """The smallest captured key that covers `key` in every dimension, or `key` itself when there is none.

        least: so many numbers at the end are to be small before the others are.
        """
        if key in self.graphs:
            return key
        first = len(key) - least
        covering = (k for k in self.graphs if _covers(k, key))
        found = min(covering, key=lambda k: (k[first:], k[:first]), default=key)
        self.ask(key, found)
        return found

    def __call__(self, *key: int) -> None:
        graph = self.graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self.eager_calls += 1
        self.fn(*key)


def _covers(large: Key, small: Key) -> bool:
    return all(a >= b for a, b in zip(large, small, strict=True))
