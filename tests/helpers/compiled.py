"""Compiles kernels for GPUs of several generations on any machine, as their launchers would launch them.

A launcher runs on tensors of the meta device, which have no values. Its launches are recorded and then compiled with
the signature, constants and options that Triton itself derives from the arguments. Needs a process in which
TRITON_INTERPRET is not set.

Tests compile every case for Hopper in one of its dtypes, taken in turns, and each kernel for one of the other GPUs. Of
the other dtypes they check the types, which finds most of what may be wrong: with an empty cache of Triton a compilation
takes 0.35 s and such a check 0.06 s. benchmarks/kernels/compile_targets.py compiles all of it for every GPU.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from stentor.kernels.gpus import COMPILED, has_pdl

HOPPER = 90
OTHERS = (86, 120, 80, 100, 89)
Case = Callable[[torch.dtype], object]
"""Calls a launcher with tensors of a dtype."""


class Launch(NamedTuple):
    """A kernel and the arguments and options of its launch."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


def meta(*shape: int, dtype: torch.dtype) -> Tensor:
    """A tensor without values."""
    return torch.empty(shape, dtype=dtype, device="meta")


def integers(*shape: int) -> Tensor:
    """Return a meta tensor of int64."""
    return meta(*shape, dtype=torch.int64)


def floats(*shape: int) -> Tensor:
    """Return a meta tensor of float32."""
    return meta(*shape, dtype=torch.float32)


def launches(call: Callable[[], object]) -> list[Launch]:
    """List what `call` launches. Nothing runs."""
    recorded: list[Launch] = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        recorded.append(Launch(self, args, kwargs))

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(JITFunction, "run", record)
        call()
    return recorded


def _source(launch: Launch, arch: int, ones: bool) -> tuple[ASTSource, Any, Any]:
    """(source, settings, backend) of a launch, with programmatic dependent launch where the GPU has it.

    ones: every integer that Triton specialises is 1, of which it makes a constant.
    """
    kernel, backend = launch.kernel, make_backend(GPUTarget("cuda", arch, 32))
    pdl = {"USE_PDL": has_pdl(arch)} if "USE_PDL" in kernel.arg_names else {}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    arguments, specialization, options = bind(*launch.args, **{**launch.kwargs, **pdl})
    if ones:
        free = {p.name for p in kernel.params if not (p.is_constexpr or p.do_not_specialize)}
        arguments = {
            name: 1 if name in free and type(value) is int else value
            for name, value in arguments.items()
        }
        arguments, specialization, options = bind(**arguments, **options)
    settings, signature, constants, attributes = kernel._pack_args(
        backend, options, arguments, specialization, options
    )
    return ASTSource(kernel, signature, constants, attributes), settings, backend


def compile_launch(launch: Launch, arch: int) -> Any:
    """The compiled kernel, for a compute capability."""
    source, settings, _ = _source(launch, arch, ones=False)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=settings.__dict__)


def waits_for_each_wgmma(kernel: Any) -> bool:
    """Whether the assembler lets each wgmma of a compiled kernel wait for the one before. It does for all of them where
    something else may write the accumulators of one, and says so only here."""
    if "wgmma" not in kernel.asm["ptx"]:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(kernel.asm["ptx"])
        command = [
            knobs.nvidia.ptxas.path,
            f"-arch=sm_{HOPPER}a",
            "-v",
            source,
            "-o",
            source.with_suffix(".cubin"),
        ]
        listing = subprocess.run(command, capture_output=True, text=True, check=True)
    return "are serialized" in listing.stdout + listing.stderr


def check_types(launch: Launch, ones: bool) -> None:
    """Compile as far as types are checked."""
    source, settings, backend = _source(launch, HOPPER, ones)
    context = triton._C.libtriton.ir.context()
    triton._C.libtriton.ir.load_dialects(context)
    backend.load_dialects(context)
    target = GPUTarget("cuda", HOPPER, 32)
    source.make_ir(
        target,
        settings,
        backend.get_codegen_implementation(settings),
        backend.get_module_map(),
        context,
    )


def in_turns() -> Callable[[Launch], Iterable[int]]:
    """For which GPUs a launch is compiled here."""
    names: set[str] = set()

    def archs(launch: Launch) -> Iterable[int]:
        if launch.name in names:
            return (HOPPER,)
        names.add(launch.name)
        return (HOPPER, OTHERS[(len(names) - 1) % len(OTHERS)])

    return archs


def compiled_cases(
    cases: dict[str, Case],
    dtypes: Sequence[torch.dtype],
    archs: Callable[[Launch], Iterable[int]],
    every_dtype: bool = True,
) -> Iterator[tuple[str, str, int, int]]:
    """Compile every launch of every case for the GPUs that `archs` names: in each dtype, or in one, taken in turns.

    Yields (what, kernel, compute capability, bytes that a CTA shares).
    """
    for n, (name, case) in enumerate(cases.items()):
        for i, dtype in enumerate(dtypes):
            all_archs = every_dtype or i == n % len(dtypes)
            for launch in launches(lambda case=case, dtype=dtype: case(dtype)):
                what = f"{name}, {launch.name} {dtype}"
                if not all_archs:
                    check_types(launch, ones=False)
                for arch in archs(launch) if all_archs else ():
                    kernel = compile_launch(launch, arch)
                    waits = arch == HOPPER and waits_for_each_wgmma(kernel)
                    assert not waits, f"{what}: each wgmma waits for the one before"
                    shared, limit = kernel.metadata.shared, COMPILED[arch].shared_kib * 1024
                    assert shared <= limit, (
                        f"{what}: {shared} bytes are shared, sm_{arch} has {limit}"
                    )
                    yield what, launch.name, arch, shared
                if i == 0:
                    check_types(launch, ones=True)


def compile_cases(cases: dict[str, Case], dtypes: Sequence[torch.dtype]) -> None:
    """Compile for Hopper in one dtype of each case, and for the other GPUs in turns. Prints a line for each."""
    for what, _, arch, shared in compiled_cases(cases, dtypes, in_turns(), every_dtype=False):
        print(f"{what}, sm_{arch}: {shared} bytes shared")
