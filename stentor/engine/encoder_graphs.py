"""CUDA graphs of reference encoders, captured by function and shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.device import CudaStream, Device

Call = Callable[..., tuple[Tensor, ...]]


@dataclass
class _Captured:
    """A function over static buffers."""

    fn: Call
    inputs: list[Tensor]
    outputs: tuple[Tensor, ...] = ()


class EncoderGraphs:
    """A Launch on one stream, for one thread. What was not captured, and all on a CPU, runs eagerly."""

    def __init__(self, device: Device, stream: CudaStream, required: bool, columns: int) -> None:
        self.device, self.columns = device, columns
        self.graphs = CudaGraphRunner("encoding", self._run, device, stream, required)
        self._capturing = False
        self._captured: list[_Captured] = []
        self._numbers: dict[tuple[Call, tuple[torch.Size, ...]], int] = {}

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Inside, what is launched for the first time is captured."""
        self._capturing = self.device.cuda
        try:
            yield
        finally:
            self._capturing = False

    def __call__(self, fn: Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        """fn(*inputs). The results of a graph are valid until its next launch."""
        key = fn, tuple(t.shape for t in inputs)
        number = self._numbers.get(key)
        if number is None and self._capturing:
            number = self._numbers[key] = len(self._captured)
            self._captured.append(_Captured(fn, [t.clone() for t in inputs]))
            self.graphs.capture([(number,)])
        if number is None:
            self.graphs.eager_calls += 1
            return fn(*inputs)
        call = self._captured[number]
        for buffer, value in zip(call.inputs, inputs, strict=True):
            buffer.copy_(value)
        self.graphs(number)
        return call.outputs

    def _run(self, number: int) -> None:
        """The captured function."""
        call = self._captured[number]
        call.outputs = call.fn(*call.inputs)
