"""The running side over torch: a model's buffers, runners and graphs on one device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch

from stentor import kernels
from stentor.config import EngineConfig, Policy
from stentor.engine.memory import plan_memory
from stentor.engine.running.codec_runner import CodecRunner
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import Device
from stentor.engine.running.forked import one_thread
from stentor.engine.running.model_runner import ModelRunner
from stentor.engine.scheduling.chunks import GENTLE_RAMP
from stentor.engine.sizes import size
from stentor.engine.voice import CodecPrimer, VoiceEncoder
from stentor.errors import InvalidRequest
from stentor.host.machine import cpus
from stentor.layers.types import torch_dtype
from stentor.models.base import SpeechModel

log = logging.getLogger("stentor.engine")


class TorchSide:
    """Implements engine.side.RunningSide."""

    def __init__(self, model: SpeechModel, device: Device, config: EngineConfig) -> None:
        self.model = model
        self.device = device
        self.config = config
        if config.deterministic:
            check_deterministic(model, device)
        weights = device.allocated_bytes()
        self.sizes = plan_memory(model, config, device)
        parts = self.sizes.describe()
        if weights:
            parts = f"weights ({size(weights)}), {parts}"
        log.info("memory on %s: %s", device.describe(), parts)
        self.overlap_steps = int(device.cuda)
        self.runner = ModelRunner(model, self.sizes, config, device)
        self.codec = CodecRunner(
            model, self.sizes, config, device, self.runner.slots, self.runner.stream
        )
        self.primer = CodecPrimer(model, config, device)
        self.encoder = VoiceEncoder(
            model,
            device,
            config.encoded_references,
            self.sizes.encoder_columns,
            config.require_graphs,
        )

    def announces_audio(self, wake: Callable[[], None]) -> bool:
        """A stream of CUDA reports nothing, and on a CPU calls have run when they return."""
        return False

    @property
    def on_gpu(self) -> bool:
        return self.device.cuda

    @property
    def graph_runners(self) -> tuple[CudaGraphRunner, ...]:
        return (
            *self.runner.graph_runners,
            self.codec.graphs,
            self.primer.graphs,
            self.encoder.graphs,
        )

    @property
    def eager_calls(self) -> int:
        return sum(x.eager_calls for x in self.graph_runners)

    def policy(self, policy: Policy) -> Policy:
        """Without a ramp of its own, a CPU takes the gentle one. A GPU's prefills are captured."""
        if self.device.cuda:
            tokens = min(policy.max_prefill_tokens, self.sizes.prefill_tokens)
            return replace(policy, max_prefill_tokens=tokens)
        if policy.ramp is None:
            return replace(policy, ramp=GENTLE_RAMP)
        return policy

    def set_up_thread(self) -> None:
        self.device.select()
        threads = self._torch_threads()
        if threads is not None:
            torch.set_num_threads(threads)  # OpenMP counts for each thread by itself
        torch.set_flush_denormal(True)  # silence decays into denormals, which are slow on a CPU

    def caller_thread(self) -> AbstractContextManager[object]:
        return one_thread()

    def _torch_threads(self) -> int | None:
        """Threads of torch on a CPU. None: torch's own number."""
        if self.config.threads is not None:
            return self.config.threads
        allowed = cpus()  # by a container too, which OpenMP does not ask
        quota = None
        if allowed < torch.get_num_threads():
            quota = allowed
        limits = (self.model.spec.threads, self.config.max_threads, quota)
        return min((limit for limit in limits if limit is not None), default=None)

    def warm_up(self) -> None:
        """Capture graphs for all that is launched, and run what the first voice would otherwise run
        cold."""
        self.device.synchronize()  # weights and buffers were made on another stream
        started = time.monotonic()
        before = self.device.allocated_bytes()
        with self.serving():
            self.runner.capture()
            self.codec.capture()
            self.primer.capture()
            self.device.release_cached()
        self.primer.warm_up()
        self.encoder.warm_up()
        if self.device.cuda:
            graphs = sum(len(x.graphs) for x in self.graph_runners)
            captured = size(self.device.allocated_bytes() - before)
            log.info(
                "captured %d graphs in %.1f s, %s", graphs, time.monotonic() - started, captured
            )

    @contextmanager
    def serving(self) -> Iterator[None]:
        with torch.inference_mode(), kernels.batch_invariant(self.config.deterministic):
            yield

    def is_fatal(self, error: Exception) -> bool:
        return isinstance(error, torch.AcceleratorError) and not self.out_of_memory(error)

    def out_of_memory(self, error: Exception) -> bool:
        # the latter: pinned memory
        return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)

    def release_cached(self) -> None:
        self.device.release_cached()

    def device_bytes(self) -> int:
        return self.device.allocated_bytes()

    def close(self) -> None:
        self.encoder.close()
        self.primer.close()
        for runner in self.graph_runners:
            runner.close()


def check_deterministic(model: SpeechModel, device: Device) -> None:
    """Raise InvalidRequest, which names what is missing, unless requests have the same bytes
    whatever else runs."""
    spec = model.spec
    if not kernels.batch_invariance_supported(device.torch, torch_dtype(spec.kv.dtype)):
        raise InvalidRequest(
            "deterministic",
            "needs a CUDA GPU, Triton, a dtype of at most 32 bits, and all kernels on; on a CPU, codes in float32 do "
            "not depend on other requests",
        )
    if not spec.batch_invariant:
        raise InvalidRequest("deterministic", f"is not available for {spec.family}")
    dtypes = [torch_dtype(c.dtype) for c in model.codec.columns.values()]
    wide = [dtype for dtype in dtypes if dtype.is_floating_point and dtype.itemsize > 2]
    if wide and spec.codec_timing.batch_invariant:
        raise InvalidRequest(
            "deterministic", f"needs a codec in 16 bits, got {str(wide[0]).removeprefix('torch.')}"
        )
