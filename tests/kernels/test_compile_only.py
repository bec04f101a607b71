"""Launches that only compile, and kernels in CUDA C++ among them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from stentor.kernels import compile_only
from stentor.kernels.cuda_cpp import launch
from tests.helpers.child import python

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)


def test_kernels_are_compiled_and_loaded_in_threads_and_nothing_is_launched(tmp_path: Path) -> None:
    done = python("-m", "tests.kernels.compile_only", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "checked\n"


def test_a_kernel_in_cuda_cpp_begins_to_compile_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Path, dict[str, int], int]] = []
    monkeypatch.setattr(launch, "begin_compiling", lambda *given: begun.append(given))
    monkeypatch.setattr(launch, "compiles_only", lambda: True)
    kernel = launch.load(Path("skinny_gemm.cu"), {"N": 16}, 128, 0, 1)
    kernel((1, 1), launch.Arguments())
    assert begun == [(Path("skinny_gemm.cu"), {"N": 16}, 1)]
    assert not compile_only.compiles_only()


def test_a_stamp_is_of_one_kind_of_start_and_of_these_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_only, "PACKAGE", tmp_path)
    (tmp_path / "kernel.cu").write_text("one")
    first = compile_only.stamp_of("a start")
    assert first.parent == tmp_path / "cache"
    assert compile_only.stamp_of("a start") == first != compile_only.stamp_of("another")
    (tmp_path / "kernel.cu").write_text("two")
    assert compile_only.stamp_of("a start") != first
