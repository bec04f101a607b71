"""Training steps as CUDA graphs: eager, a step is bound by thousands of launches."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

Losses = dict[str, Tensor]


class Inputs(Protocol):
    """Inputs of a step. A graph reads them where they lay when the graph was captured."""

    def shape(self) -> Hashable: ...
    def overwrite(self, other: object) -> None: ...


T = TypeVar("T", bound=Inputs)


class CapturedStep(Generic[T]):
    """`run` as one graph per shape of its inputs, after `WARM_UPS` eager steps. On a CPU it simply runs.

    `run` neither waits for the device nor draws numbers on the host. The graphs share their memory, as one runs at a
    time: losses are those of the last call.
    """

    WARM_UPS = 3  # they compile and allocate what a capture may not

    def __init__(self, run: Callable[[T], Losses], device: torch.device) -> None:
        self.run, self.cuda = run, device.type == "cuda"
        self.pool = torch.cuda.graph_pool_handle() if self.cuda else None
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, T, Losses]] = {}

    def __call__(self, inputs: T) -> Losses:
        if not self.cuda:
            return self.run(inputs)
        key = inputs.shape()
        if key not in self.graphs:
            self.graphs[key] = self._capture(inputs)
        graph, fixed, losses = self.graphs[key]
        fixed.overwrite(inputs)
        graph.replay()
        return dict(losses)

    def _capture(self, inputs: T) -> tuple[torch.cuda.CUDAGraph, T, Losses]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.WARM_UPS):
                self.run(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            losses = self.run(inputs)
        return graph, inputs, losses
