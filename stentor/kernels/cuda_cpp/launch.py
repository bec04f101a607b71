"""Kernels on a device: loaded once, launched on torch's current stream, with programmatic dependent launch."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stentor.kernels.cuda_cpp.nvrtc import available, compiler
from stentor.kernels.switches import pdl_enabled

log = logging.getLogger(__name__)

HOPPER = 90  # compute capability 9.0


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on one device."""

    function: Any
    threads: int
    shared_bytes: int

    def __call__(self, grid: tuple[int, int], arguments: ctypes.Structure) -> None:
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY = grid
        config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.sharedMemBytes = self.threads, self.shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        if pdl_enabled():
            overlap = driver.CUlaunchAttribute()
            overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            overlap.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [overlap], 1
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        _check(driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0))


def load(
    file: Path, macros: Mapping[str, int | str], threads: int, shared_bytes: int, device: int
) -> Callable[[tuple[int, int], ctypes.Structure], None]:
    """Compile and load the kernel of a file, which has its name. RuntimeError with the compiler's log if that fails."""
    return _load(file, tuple(macros.items()), threads, shared_bytes, device)


def begin_compiling(file: Path, macros: Mapping[str, int | str], device: int) -> Future[bytes]:
    """Machine code of a kernel for `device`, compiled in another thread."""
    return compiler().begin(file, {**macros, "PDL": int(pdl_enabled())}, architecture(device))


@cache
def _load(
    file: Path, macros: tuple[tuple[str, int | str], ...], threads: int, shared_bytes: int, device: int
) -> LoadedKernel:
    from cuda.bindings import driver

    code = begin_compiling(file, dict(macros), device).result()
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # makes the device's context
        module = _check(driver.cuModuleLoadData(code))
        function = _check(driver.cuModuleGetFunction(module, file.stem.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(function, limit, shared_bytes))
    return LoadedKernel(function, threads, shared_bytes)


@cache
def available_on(device: int) -> bool:
    """Whether these kernels run on a device. They were measured on Hopper only, where their tiles fill the chip."""
    if _capability(device) != HOPPER:
        return False
    if not available():
        log.warning("cuda-bindings is not installed: small GEMMs use the slower library kernels")
        return False
    return True


@cache
def architecture(device: int) -> str:
    capability = _capability(device)
    return f"sm_{capability}" + ("a" if capability == HOPPER else "")  # 9.0a: instructions that only Hopper has


def _capability(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _check(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return values[0] if values else None
