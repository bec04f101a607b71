"""Kernels on a device: loaded once, launched on torch's current stream, with programmatic dependent launch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.skinny_gemm import nvrtc
from stentor.kernels.switches import pdl_enabled


class Arguments(ctypes.Structure):
    """`Arguments` of common.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "norm", "scale", "bias", "residual", "out")),
        *((name, ctypes.c_int) for name in ("stride_x", "stride_residual", "rows")),
        ("eps", ctypes.c_float),
    ]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on one device."""

    function: Any
    threads: int
    shared_bytes: int

    def __call__(self, grid: tuple[int, int], arguments: Arguments) -> None:
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


def load(name: str, macros: Mapping[str, int | str], threads: int, shared_bytes: int, device: int) -> LoadedKernel:
    """Kernel `name` for `device`, compiled if it has not been. See `nvrtc.cubin` for errors."""
    return _load(name, tuple(macros.items()), threads, shared_bytes, device)


@cache
def _load(
    name: str, macros: tuple[tuple[str, int | str], ...], threads: int, shared_bytes: int, device: int
) -> LoadedKernel:
    from cuda.bindings import driver

    code = nvrtc.cubin(name, {**dict(macros), "PDL": int(pdl_enabled())}, architecture(device))
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # makes the device's context
        module = _check(driver.cuModuleLoadData(code))
        function = _check(driver.cuModuleGetFunction(module, name.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(function, limit, shared_bytes))
    return LoadedKernel(function, threads, shared_bytes)


@cache
def architecture(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" + ("a" if major == 9 else "")  # 9.0a: instructions that only Hopper has


def pointer(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()


def _check(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return values[0] if values else None
