"""CUDA C++ to machine code by NVRTC, once per source, architecture and version, and launches of
what came out.

cuda-bindings and NVRTC come with CUDA builds of torch. Kernels are loaded once on a device, and
launched on torch's current stream, with programmatic dependent launch.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor.host.machine import cpus
from stentor.kernels.switches import pdl_enabled

SOURCES = Path(__file__).parent
HEADERS = ("cluster.cuh", "common.cuh", "device.cuh", "skinny.cuh", "wgmma.cuh")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "stentor" / "cubins"
LOG_CHARACTERS = 2000  # of an error
READABLE = 0o644
"""Mode of a file in the cache, which an image may ship to another user."""


def source(file: Path, macros: Mapping[str, int | str]) -> str:
    """The text of a kernel's file after its macros."""
    return defines(macros) + file.read_text(encoding="utf-8")


def defines(macros: Mapping[str, int | str]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())


@cache
def available() -> bool:
    """Whether cuda-bindings is installed."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


@cache
def compiler() -> Compiler:
    """The one of this process."""
    return Compiler()


class Compiler:
    """Compiles in threads, since a model needs some dozens of kernels and NVRTC takes half a second
    for each."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(cpus(), "stentor-nvrtc")
        self._jobs: dict[str, Future[bytes]] = {}
        self._lock = threading.Lock()

    def begin(self, file: Path, macros: Mapping[str, int | str], arch: str) -> Future[bytes]:
        """Machine code of a kernel's file for `arch`, such as "sm_90a", from the cache where it was
        compiled before.

        The result is a RuntimeError with the compiler's log if it does not compile.
        """
        text = source(file, macros)
        with self._lock:
            if text + arch not in self._jobs:
                self._jobs[text + arch] = self._pool.submit(_cubin, text, arch)
            return self._jobs[text + arch]


def _cubin(text: str, arch: str) -> bytes:
    from cuda.bindings import nvrtc

    headers = {name: (SOURCES / name).read_text(encoding="utf-8") for name in HEADERS}
    version = _checked(nvrtc.nvrtcVersion())
    key = hashlib.sha256(repr((text, sorted(headers.items()), arch, version)).encode()).hexdigest()
    file = CACHE.expanduser() / f"{key[:40]}.cubin"
    if file.exists():
        return file.read_bytes()
    code = _compile(text, headers, arch)
    _keep(file, code)
    return code


def _compile(text: str, headers: Mapping[str, str], arch: str) -> bytes:
    from cuda.bindings import nvrtc

    contents = [h.encode() for h in headers.values()]
    names = [name.encode() for name in headers]
    program = _checked(
        nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", len(names), contents, names)
    )
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    if (
        nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        != nvrtc.nvrtcResult.NVRTC_SUCCESS
    ):
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"NVRTC: {log.decode(errors='replace')[:LOG_CHARACTERS]}")
    code: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return code


def _checked(result: tuple[Any, ...], by: str = "NVRTC") -> Any:
    """The values of a call, without its status. RuntimeError if it failed."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"{by}: {status!r}")
    if len(values) == 1:
        return values[0]
    return tuple(values)


def _keep(file: Path, code: bytes) -> None:
    """Write whole or not at all. A folder that cannot be written costs the next start its time, and
    nothing else."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
            part.write(code)
        os.chmod(part.name, READABLE)  # a temporary file is its owner's only
        os.replace(part.name, file)
    except OSError:
        return


log = logging.getLogger(__name__)

HOPPER = 90  # compute capability 9.0


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on one device.

    window: bytes of one operand that a launch may mark as read once. 0: the device marks none.
    """

    function: Any
    threads: int
    shared_bytes: int
    window: int

    def __call__(
        self, grid: tuple[int, int], arguments: ctypes.Structure, read_once: Tensor | None = None
    ) -> None:
        """Launch on the current stream. read_once: the operand that leaves L2 first."""
        from cuda.bindings import driver

        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY = grid
        config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX = self.threads
        config.sharedMemBytes = self.shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        attributes = []
        if pdl_enabled():
            attributes.append(_programmatic_launch())
        if read_once is not None and self.window:
            attributes.append(_evict_first(read_once, self.window))
        config.attrs = attributes
        config.numAttrs = len(attributes)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        _checked(
            driver.cuLaunchKernelEx(config, self.function, ctypes.addressof(pointers), 0),
            "CUDA driver",
        )


def _programmatic_launch() -> Any:
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def _evict_first(operand: Tensor, max_bytes: int) -> Any:
    """The launch attribute by which lines of an operand leave L2 before all others. A hint in
    `cp.async` would be an illegal instruction on an H200."""
    from cuda.bindings import driver

    window = driver.CUaccessPolicyWindow()
    window.base_ptr = operand.data_ptr()
    window.num_bytes = min(operand.nbytes, max_bytes)
    window.hitRatio = 1.0
    window.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
    window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_NORMAL
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
    attribute.value.accessPolicyWindow = window
    return attribute


def load(
    file: Path, macros: Mapping[str, int | str], threads: int, shared_bytes: int, device: int
) -> LoadedKernel:
    """Compile and load the kernel of a file, which has its name. RuntimeError with the compiler's
    log if that fails."""
    return _load(file, tuple(macros.items()), threads, shared_bytes, device)


def begin_compiling(file: Path, macros: Mapping[str, int | str], device: int) -> Future[bytes]:
    """Machine code of a kernel for `device`, compiled in another thread."""
    return compiler().begin(file, {**macros, "PDL": int(pdl_enabled())}, architecture(device))


@cache
def _load(
    file: Path,
    macros: tuple[tuple[str, int | str], ...],
    threads: int,
    shared_bytes: int,
    device: int,
) -> LoadedKernel:
    from cuda.bindings import driver

    code = begin_compiling(file, dict(macros), device).result()
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # makes the device's context
        module = _checked(driver.cuModuleLoadData(code), "CUDA driver")
        function = _checked(driver.cuModuleGetFunction(module, file.stem.encode()), "CUDA driver")
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(function, limit, shared_bytes), "CUDA driver")
    return LoadedKernel(function, threads, shared_bytes, _max_window(device))


def _max_window(device: int) -> int:
    """Bytes of the largest access policy window. 0 where L2 has no policies, as in parts of a GPU
    by MIG."""
    from cuda.bindings import driver

    limit = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE
    handle = _checked(driver.cuDeviceGet(device), "CUDA driver")
    size: int = _checked(driver.cuDeviceGetAttribute(limit, handle), "CUDA driver")
    return size


@cache
def available_on(device: int) -> bool:
    """Whether these kernels run on a device. They were measured on Hopper only, where their tiles
    fill the chip."""
    if _capability(device) != HOPPER:
        return False
    if not available():
        log.warning("cuda-bindings is not installed: small GEMMs use the slower library kernels")
        return False
    return True


@cache
def architecture(device: int) -> str:
    capability = _capability(device)
    # 9.0a: instructions that only Hopper has
    return f"sm_{capability}" + ("a" if capability == HOPPER else "")


def _capability(device: int) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
