"""What `compile_only` does, for a Hopper GPU that is simulated. test_compile_only.py runs it in a process of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from stentor.kernels.compile_only import compile_only, compiles_only
from stentor.kernels.launchers import make_launchers_alone

LAUNCHED: list[int] = []  # blocks of the kernels that were launched
LOADED: list[str] = []  # names of threads that loaded a kernel


class Launcher:
    """As Triton's."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.block = src.constants[2,]
        LOADED.append(threading.current_thread().name)

    def __call__(self, *args: Any) -> None:
        LAUNCHED.append(self.block)


class Hopper:
    """As Triton's driver of a GPU."""

    launcher_cls = Launcher

    @property
    def utils(self) -> Hopper:
        return self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 17}

    def load_binary(self, *args: Any) -> tuple[int, ...]:
        return 1, 1, 0, 0, 1024


@triton.jit
def _scale(x, factor, BLOCK: tl.constexpr):
    at = x + tl.arange(0, BLOCK)
    tl.store(at, tl.load(at) * factor)


@triton.jit
def _wrong(x, factor, BLOCK: tl.constexpr):
    tl.store(x, tl.arange(0, 3))


X = torch.empty(1, device="meta")


def launch(*blocks: int) -> None:
    for block in blocks:
        _scale[(1,)](X, 2.0, BLOCK=block)


def refused() -> bool:
    try:
        _wrong[(1,)](X, 2.0, BLOCK=16)
    except triton.CompilationError:
        return True
    return False


def check_threads() -> None:
    LOADED.clear(), LAUNCHED.clear()
    with compile_only(contextlib.nullcontext):
        assert compiles_only()
        launch(64, 128, 64)
        assert not refused(), "it says so when it is launched"
        beside = threading.Thread(target=launch, args=(256,), name="other")
        beside.start()
        beside.join()
    assert not compiles_only()
    assert LAUNCHED == [256], "threads that do something else launch what they always did"
    assert sorted(name.split("_")[0] for name in LOADED) == ["other", "stentor-launchers", "stentor-launchers"]
    LAUNCHED.clear()
    launch(64, 128)
    assert LAUNCHED == [64, 128]
    assert len(LOADED) == 3, "they had been loaded"
    assert refused()


def check_launchers() -> None:
    """Threads make them one at a time."""
    making, most = [0], [0]

    class Slow:
        def __init__(self, src: Any, metadata: Any) -> None:
            making[0] += 1
            most[0] = max(most[0], making[0])
            time.sleep(0.01)  # others have the time to begin
            making[0] -= 1
            assert (src, metadata) == ("source", "metadata")

    driver.active.launcher_cls = Slow
    for _ in range(2):  # every start says so
        make_launchers_alone()
    assert driver.active.launcher_cls is not Slow
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: driver.active.launcher_cls("source", "metadata"), range(8)))
    assert most == [1]
    assert all(isinstance(each, Slow) for each in made)


def check_errors() -> None:
    with contextlib.suppress(ValueError), compile_only(contextlib.nullcontext):
        raise ValueError
    assert not compiles_only()
    with compile_only(contextlib.nullcontext):  # not inside another one, as Triton would say
        pass


if __name__ == "__main__":
    backends["nvidia"].driver.is_active = staticmethod(lambda: True)  # type: ignore[method-assign]
    driver.set_active(Hopper())
    check_threads()
    check_errors()
    check_launchers()
    print("checked")
