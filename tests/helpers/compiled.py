"""Compiles kernels for a Hopper GPU on any machine, as their launchers would launch them.

A launcher runs on tensors of the meta device, which have no values. Its launches are recorded and then compiled with
the signature, constants and options that Triton itself derives from the arguments. Needs a process in which
TRITON_INTERPRET is not set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 227 * 1024
"""Shared memory of an SM that one CTA can have."""
Case = Callable[[torch.dtype], object]
"""Calls a launcher with tensors of a dtype."""


class Launch(NamedTuple):
    """A kernel and the arguments and options of its launch."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def meta(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor without values."""
    return torch.empty(shape, dtype=dtype, device="meta")


def integers(*shape: int) -> Tensor:
    """The same, of int64."""
    return meta(*shape, dtype=torch.int64)


def floats(*shape: int) -> Tensor:
    """The same, of float32."""
    return meta(*shape, dtype=torch.float32)


def launches(call: Callable[[], object]) -> list[Launch]:
    """What `call` launches, with programmatic dependent launch. Nothing runs."""
    found: list[Launch] = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if "USE_PDL" in self.arg_names:
            kwargs["USE_PDL"] = True
        found.append(Launch(self, args, kwargs))

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(JITFunction, "run", record)
        call()
    return found


def compile_launch(launch: Launch, ones: bool = False) -> Any:
    """The compiled kernel. `ones`: every integer that Triton specialises is 1, of which it makes a constant."""
    kernel, backend = launch.kernel, make_backend(HOPPER)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    given, specialization, options = bind(*launch.args, **launch.kwargs)
    if ones:
        free = {p.name for p in kernel.params if not (p.is_constexpr or p.do_not_specialize)}
        given = {name: 1 if name in free and type(value) is int else value for name, value in given.items()}
        given, specialization, options = bind(**given, **options)
    settings, signature, constants, attributes = kernel._pack_args(backend, options, given, specialization, options)
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=HOPPER, options=settings.__dict__)


def compile_cases(cases: dict[str, Case], dtypes: Iterable[torch.dtype]) -> None:
    """Compile every launch of every case in each dtype and, in the first, with ones. Prints a line for each."""
    for name, case in cases.items():
        for i, dtype in enumerate(dtypes):
            for launch in launches(lambda case=case, dtype=dtype: case(dtype)):
                for ones in (False, True)[: 2 - min(i, 1)]:
                    shared = compile_launch(launch, ones).metadata.shared
                    what = f"{name}, {launch.kernel.fn.__name__} {dtype}{', ones' if ones else ''}"
                    assert shared <= SHARED_BYTES, f"{what}: {shared} bytes are shared"
                    print(f"{what}: {shared} bytes shared")
