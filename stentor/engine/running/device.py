"""Streams, events and pinned memory for CUDA. On a CPU the same names do nothing, so other files
need not check."""

from __future__ import annotations

import itertools
import math
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from mmap import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor.config import check_device
from stentor.errors import InvalidRequest
from stentor.kernels.shipped import install_shipped_kernels

_LOADING = threading.Lock()
_IDLE: defaultdict[tuple[torch.device, int], deque[torch.cuda.Stream]] = defaultdict(deque)
"""Streams that nobody has any more, by device and priority."""


class Event:
    """A point on a stream. On a CPU everything before it has already happened."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()

    def record(self) -> None:
        if self._event is not None:
            self._event.record(current_stream(self._device))

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def wait_host(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def wait_stream(self) -> None:
        """Work submitted to the current stream from now on waits for this event, on the device."""
        if self._event is not None:
            current_stream(self._device).wait_event(self._event)


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which the calling thread launches.

    With the index, torch does not look for the current device, which takes longer than an event.
    """
    return torch.cuda.current_stream(device.index)


class CudaStream:
    """An ordered queue of device work. Lower `priority` runs first.

    Whoever drops one leaves it to the next who wants one: torch keeps libraries' workspaces for
    every stream that was ever used, so a model that is loaded again and again would take new ones
    each time.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.cuda: torch.cuda.Stream | None = None
        if device.type == "cuda":
            idle = _IDLE[device, priority]
            try:
                self.cuda = idle.popleft()
            except IndexError:
                self.cuda = torch.cuda.Stream(device, priority)
            weakref.finalize(self, idle.append, self.cuda).atexit = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the calling thread launches on this stream. Its current device is that of the
        stream."""
        if self.cuda is None:
            yield
            return
        before = current_stream(self.cuda.device)
        torch.cuda.set_stream(self.cuda)
        try:
            yield
        finally:
            torch.cuda.set_stream(before)

    def use(self) -> None:
        """Launch on this stream what the calling thread launches from now on."""
        if self.cuda is not None:
            torch.cuda.set_stream(self.cuda)

    def synchronize(self) -> None:
        """Wait for this stream's work. Only at start."""
        if self.cuda is not None:
            self.cuda.synchronize()


LANGUAGE_MODEL = -2
CODEC = -1
BACKGROUND = 0
"""Priorities of streams: steps before audio, and audio before encoding references and priming the
codec with them. A kernel with priority still waits for running blocks of others."""

Shape = tuple[tuple[int, ...], torch.dtype]
ALIGN = 16  # bytes
DOWNLOADS = 4
"""Downloads of one size at once, for which there is pinned memory from the start."""


class StagingBuffer:
    """Host memory for arrays of any shapes and dtypes that reach the device in one copy: fill
    `host`, then `send`.

    `host` has numpy's arrays. A thread that uses torch releases the GIL with each operation, and
    waits for it while other threads run. numpy keeps it for small ones.
    """

    def __init__(self, parts: Mapping[str, Shape], device: Device) -> None:
        self._device = device
        self._parts = parts
        sizes = [
            -(-math.prod(shape) * dtype.itemsize // ALIGN) * ALIGN
            for shape, dtype in parts.values()
        ]
        self._bytes = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.cuda)
        self._starts = [
            end - size for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)
        ]
        memory = self._bytes.numpy()
        self.host = {
            name: np.ndarray(shape, host_dtype(dtype), memory, start)
            for (name, (shape, dtype)), start in zip(parts.items(), self._starts, strict=True)
        }

    def send(self) -> dict[str, Tensor]:
        """Copy the arrays to the device, without waiting."""
        data = self._bytes.to(self._device.torch, non_blocking=True)
        typed = {dtype: data.view(dtype) for dtype in {dtype for _, dtype in self._parts.values()}}
        sent = {}
        for (name, (shape, dtype)), start in zip(self._parts.items(), self._starts, strict=True):
            strides = [stride // dtype.itemsize for stride in self.host[name].strides]
            sent[name] = typed[dtype].as_strided(shape, strides, start // dtype.itemsize)
        return sent


def host_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """numpy's dtype. bfloat16, which it lacks, is held as its bits."""
    return np.dtype("int16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch."))


def host_values(values: Any, dtype: torch.dtype) -> np.ndarray:
    """Numbers, an array or a tensor as an array of `host_dtype`."""
    if dtype == torch.bfloat16:
        return torch.as_tensor(values, dtype=dtype).view(torch.int16).numpy()
    return np.asarray(values, host_dtype(dtype))


class Device:
    """The device of the tensors, and copies to it and back."""

    def __init__(self, name: str, stream_priorities: bool = True) -> None:
        """stream_priorities: whether streams have the priorities that they are requested with."""
        self.torch = torch.device(name)
        self.cuda = self.torch.type == "cuda"
        self._stream_priorities = stream_priorities
        self._before = 0  # bytes that torch had taken when the model's load began
        if self.cuda:
            _configure_process()

    def select(self) -> None:
        """Make this the calling thread's current device, on which Triton launches its kernels."""
        if self.cuda and self.torch.index is not None:
            torch.cuda.set_device(self.torch)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside, this is the calling thread's current device."""
        if self.cuda:
            with torch.cuda.device(self.torch):
                yield
        else:
            yield

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Inside, no other model of the process is loaded. What torch takes from now on is this
        model's."""
        if not self.cuda:
            yield
            return
        with _LOADING:
            self.release_cached()
            self._before = torch.cuda.memory_reserved(self.torch)
            yield

    def stream(self, priority: int) -> CudaStream:
        if not self._stream_priorities:
            priority = BACKGROUND
        return CudaStream(self.torch, priority)

    def event(self) -> Event:
        return Event(self.torch)

    def upload(self, value: np.ndarray | list[int]) -> Tensor:
        """A host array on the device, without waiting for work that is under way."""
        if isinstance(value, list):
            value = np.array(value, np.int64)
        host = self._pinned(torch.from_numpy(np.ascontiguousarray(value)))
        return host.to(self.torch, non_blocking=True)

    def fill(self, target: Tensor, value: np.ndarray | list[int]) -> None:
        """Copy a host array into the front of a device buffer, converted on the host, without
        waiting.

        numpy makes an array of a list in a fifth of torch's time.
        """
        if isinstance(value, list):
            value = np.array(value)
        host = self._pinned(torch.as_tensor(value, dtype=target.dtype))
        target[: len(value)].copy_(host, non_blocking=True)

    def _pinned(self, host: Tensor) -> Tensor:
        """Return a host tensor in memory from which a GPU copies by itself."""
        if self.cuda:
            return host.pin_memory()
        return host

    def release_cached(self) -> None:
        """Return memory that torch caches to the driver: after it ran out, a load or an unload."""
        if self.cuda:
            torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for the work of this thread's current stream. Only at start. Other engines' streams
        are not waited for, and one of them may be capturing."""
        if self.cuda:
            torch.cuda.current_stream(self.torch).synchronize()

    def allocated_bytes(self) -> int:
        """Device memory that torch has taken from the driver since this model's load began. On a
        CPU 0."""
        if self.cuda:
            return torch.cuda.memory_reserved(self.torch) - self._before
        return 0

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Device memory that `run` takes at its peak, beyond what was taken before. Only at start.
        On a CPU 0."""
        if not self.cuda:
            return 0
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.torch)
        before = torch.cuda.memory_allocated(self.torch)
        run()
        self.synchronize()
        peak = torch.cuda.max_memory_allocated(self.torch) - before
        torch.cuda.empty_cache()
        return peak

    def stage(self, value: Tensor) -> Tensor:
        """A copy on the device that later work on this stream does not change, for another stream
        to download. On a CPU the value itself, since a download copies at once."""
        if self.cuda and value.numel():
            return value.clone()
        return value

    def download(self, value: Tensor) -> Tensor:
        """A pinned host copy that is complete once an event recorded after this call is ready."""
        if not self.cuda:
            return value.clone()
        if not value.numel():
            return torch.empty(value.shape, dtype=value.dtype)
        return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(
            value, non_blocking=True
        )

    def reserve_pinned(self, num_bytes: int) -> None:
        """Take pinned memory for downloads of up to `num_bytes`, which torch keeps by powers of
        two: a size that is new takes a millisecond while streams run. Only at start."""
        if self.cuda:
            for exponent in range(num_bytes.bit_length() + 1):
                buffers = [
                    torch.empty(1 << exponent, dtype=torch.uint8, pin_memory=True)
                    for _ in range(DOWNLOADS)
                ]
                del buffers

    def read(self, value: Tensor) -> np.ndarray:
        """A host copy. Waits for the device."""
        return value.cpu().numpy()

    def describe(self) -> str:
        if self.cuda:
            return torch.cuda.get_device_name(self.torch)
        return "CPU"

    def compute_capability(self) -> int | None:
        """Such as 90 for sm_90. On a CPU None."""
        if not self.cuda:
            return None
        major, minor = torch.cuda.get_device_capability(self.torch)
        return 10 * major + minor

    def free_bytes(self) -> int | None:
        """Free device memory. On a CPU None."""
        if self.cuda:
            return torch.cuda.mem_get_info(self.torch)[0]
        return None


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A large buffer of zeros. A CPU takes memory for its parts when they are first written.

    It takes pages of 4 KB. numpy allocates pages of 2 MB, and a first request would take one for
    each layer's keys and one for its values.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = mmap(-1, max(size, 1))  # -1: of no file
    return torch.frombuffer(memory, dtype=torch.uint8)[:size].view(dtype).view(shape)


def _configure_process() -> None:
    """Set what all engines of the process share. Two engines that set and reset it around their
    calls would undo each other's.

    cuDNN computes float32 in float32: TF32 has ten bits, which changes codes. cuBLASLt, which
    multiplies where there is a bias, gets no workspace. With one it takes an algorithm for large
    products that clears a counter there first. A graph with many such memsets is launched in
    pieces: the host waits for a third of it, and steps wait meanwhile.

    Attention is not cuDNN's, which makes a plan of 1.6 MB for each shape in each thread and never
    frees it. A model that is loaded again has new threads. torch's other kernels make none.
    """
    install_shipped_kernels()
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    # torch reads it with its first such product
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "0")


def pick_device(name: str) -> str:
    """`cpu`, or `cuda:N` with the index of a device that exists. `auto` is CUDA if there is one,
    and CUDA without an index is the calling thread's current device. InvalidRequest if a named
    device does not exist."""
    if check_device(name) == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise InvalidRequest(
            "device", f"{name!r} asked for, but torch sees no CUDA device; use cpu or auto"
        )
    if name in ("auto", "cuda"):
        return f"cuda:{torch.cuda.current_device()}"
    there = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    index = int(name.removeprefix("cuda:"))
    if index >= len(there):
        raise InvalidRequest(
            "device", f"{name!r} asked for, but torch sees only {', '.join(there)}"
        )
    return there[index]
