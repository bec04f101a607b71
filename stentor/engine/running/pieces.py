"""The running side of a family without steps over torch."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from stentor.config import EngineConfig
from stentor.engine.on_host import threads_of
from stentor.engine.running.device import CudaStream, Device
from stentor.engine.running.forked import one_thread
from stentor.engine.running_pieces.side import PieceSide
from stentor.models.codec_timing import PieceTiming
from stentor.models.piece_model import PieceModel


class TorchPieceSide(PieceSide):
    """Calls of torch, whose errors and memory are those of a device."""

    def __init__(
        self, model: PieceModel, timing: PieceTiming, device: Device, config: EngineConfig
    ) -> None:
        super().__init__(model, timing, config)
        self.device = device
        self.config = config
        self.on_gpu = device.cuda
        self._streams: list[CudaStream] = []

    def set_up_thread(self) -> None:
        self.device.select()
        torch.set_flush_denormal(True)
        if not self.device.cuda:
            torch.set_num_threads(threads_of(self.config))

    def set_up_worker(self) -> None:
        """Launch on a stream of this thread, so that calls of several threads overlap. A call ends
        when its stream is empty, so any other stream may read its results."""
        self.device.select()
        stream = CudaStream(self.device.torch)
        stream.use()
        self._streams.append(stream)

    def warm_up(self) -> None:
        if self.device.cuda:
            self.model.warm_up()
            # Each thread has its own libraries, and memory of its stream.
            self.workers.in_each(self.model.warm_up)

    def caller_thread(self) -> AbstractContextManager[object]:
        return one_thread()

    def is_fatal(self, error: Exception) -> bool:
        return isinstance(error, torch.AcceleratorError) and not self.out_of_memory(error)

    def out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, torch.OutOfMemoryError) or super().out_of_memory(error)

    def release_cached(self) -> None:
        self.device.release_cached()

    def device_bytes(self) -> int:
        return self.device.allocated_bytes()
