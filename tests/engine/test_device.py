"""Names of devices, and that a device's work runs with it as the current device."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import PAGESIZE
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from stentor import TTS, InvalidRequest, registry
from stentor.engine.running import device as device_module
from stentor.engine.running.device import (
    CudaStream,
    Device,
    StagingBuffer,
    host_values,
    pick_device,
)
from tests.helpers.random_callers import VOICE


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, of which the second is the calling thread's current one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("auto", "cuda:1"),
        ("cuda", "cuda:1"),
        ("cuda:0", "cuda:0"),
        ("cuda:01", "cuda:1"),
        ("cpu", "cpu"),
    ],
)
def test_a_name_becomes_a_device_with_an_index(name: str, device: str):
    assert pick_device(name) == device


@pytest.mark.usefixtures("two")
def test_an_index_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(
        InvalidRequest, match=r"device: 'cuda:2' asked for, but torch sees only cuda:0, cuda:1$"
    ):
        TTS("dummy:toy", device="cuda:2")


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "cpu"
    with pytest.raises(
        InvalidRequest, match=r"device: 'cuda.*torch sees no CUDA device; use cpu or auto"
    ):
        pick_device(name)


def test_the_current_device_is_that_of_the_tensors(monkeypatch: pytest.MonkeyPatch):
    selected = []

    @contextmanager
    def device(which: torch.device) -> Iterator[None]:
        selected.append(which.index)
        yield
        selected.append(None)

    monkeypatch.setattr(torch.cuda, "device", device)
    with Device("cuda:1").current():
        assert selected == [1]
    with Device("cpu").current():
        assert selected == [1, None]


def test_models_are_loaded_and_references_encoded_with_their_device_as_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
):
    threads, seen = threading.local(), []

    def inside() -> bool:
        return bool(threads.__dict__.get("inside"))

    @contextmanager
    def current(device: Device) -> Iterator[None]:
        threads.inside = True
        yield
        threads.inside = False

    monkeypatch.setattr(Device, "current", current)
    plain = registry.load
    monkeypatch.setattr(registry, "load", lambda *a: seen.append(("load", inside())) or plain(*a))
    plain_sizes = Device.free_bytes
    monkeypatch.setattr(
        Device, "free_bytes", lambda d: seen.append(("sizes", inside())) or plain_sizes(d)
    )
    plain_read = Device.read
    monkeypatch.setattr(
        Device, "read", lambda d, t: seen.append(("encode", inside())) or plain_read(d, t)
    )
    with TTS("dummy:toy", max_num_seqs=1, memory_gb=0.001) as tts:
        assert not inside()
        tts.prompt(tts.request("hello", reference=VOICE))
    assert {what for what, _ in seen} >= {"load", "encode"}
    assert all(within for _, within in seen)


def test_a_stream_that_nobody_has_any_more_serves_the_next(monkeypatch):
    made = []
    monkeypatch.setattr(device_module, "_IDLE", defaultdict(deque))
    monkeypatch.setattr(
        torch.cuda, "Stream", lambda device, priority: made.append(priority) or object()
    )
    gpu = torch.device("cuda:0")
    first, other = CudaStream(gpu, -2), CudaStream(gpu, -1)
    kept = first.cuda
    del first
    assert CudaStream(gpu, -2).cuda is kept
    both = CudaStream(gpu, -2), CudaStream(gpu, -2)
    assert both[0].cuda is kept
    assert both[1].cuda is not kept
    assert other.cuda is not kept
    assert made == [-2, -1, -2]


def test_zeros_are_zeros_of_their_dtype():
    """A CPU's take no memory before they are written, which the system decides."""
    made = device_module.zeros((3, 4, 5), torch.bfloat16, torch.device("cpu"))
    assert (made.shape, made.dtype) == ((3, 4, 5), torch.bfloat16)
    assert made.is_contiguous()
    assert not made.any()
    made += 1
    assert device_module.zeros((2, 0), torch.float32, torch.device("meta")).device.type == "meta"


@pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory of the process as Linux says it"
)
def test_zeros_of_a_cpu_take_memory_where_they_are_written_and_not_2_mb_around_it():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE

    made = device_module.zeros((64, 1 << 20), torch.uint8, torch.device("cpu"))
    before = resident()
    made[:, 7] = 1
    assert int(made[:, :8].sum()) == 64
    assert resident() - before < 8 << 20
    assert device_module.zeros((2, 0), torch.float32, torch.device("cpu")).shape == (2, 0)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int64,
        torch.int32,
        torch.bool,
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ],
    ids=str,
)
def test_arrays_of_any_dtype_reach_the_device_together(dtype: torch.dtype):
    numbers = [[1, 0, 3], [0, 1, 2.5]]
    buffer = StagingBuffer(
        {"byte": ((3,), torch.bool), "these": ((2, 3), dtype), "one": ((), torch.int64)},
        Device("cpu"),
    )
    buffer.host["byte"][:] = [True, False, True]
    buffer.host["these"][:] = host_values(numbers, dtype)
    buffer.host["one"][...] = 7
    sent = buffer.send()
    assert sent["these"].dtype == dtype
    assert torch.equal(sent["these"], torch.tensor(numbers, dtype=dtype))
    assert sent["byte"].tolist() == [True, False, True]
    assert sent["one"].item() == 7


def test_a_tensor_becomes_the_bits_that_the_host_holds():
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert np.array_equal(host_values(half, torch.bfloat16), half.view(torch.int16).numpy())
    assert np.array_equal(host_values(half.float(), torch.float32), [1.5, -2.0])


def test_pinned_memory_for_audio_is_taken_by_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def empty(size: int, dtype: torch.dtype, pin_memory: bool) -> None:
        assert pin_memory
        taken.append(size)

    monkeypatch.setattr(torch, "empty", empty)
    Device("cpu").reserve_pinned(5)
    assert not taken
    Device.reserve_pinned(cast(Device, SimpleNamespace(cuda=True)), 5)
    assert taken == [size for size in (1, 2, 4, 8) for _ in range(device_module.DOWNLOADS)]
