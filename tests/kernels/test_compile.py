"""Every kernel compiles for a Hopper GPU and others, on any machine, within the shared memory that such a GPU has.

Triton's interpreter, in which the other tests run on a CPU, accepts more than the compiler does.
"""

from __future__ import annotations

import importlib.util

import pytest

from stentor.kernels.gpus import COMPILED, has_pdl, known
from tests.helpers.child import ROOT, python

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)


@pytest.mark.slow
def test_every_shared_kernel_compiles_for_gpus():
    done = python("-m", "tests.kernels.compile_kernels", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 85
    assert {f"sm_{arch}: " in done.stdout for arch in COMPILED} == {True}


def test_every_family_is_compiled_for_every_gpu_by_the_benchmark():
    program = (ROOT / "benchmarks" / "kernels" / "compile_targets.py").read_text()
    modules = [
        p.relative_to(ROOT).with_suffix("").parts
        for p in (ROOT / "tests").rglob("compile_kernels.py")
    ]
    assert len(modules) > 3
    assert [".".join(m) for m in modules if f"from {'.'.join(m)} import ALL" not in program] == []


def test_pdl_is_used_only_where_it_exists():
    assert [arch for arch in COMPILED if has_pdl(arch)] == [90, 100, 120]


def test_what_is_known_of_a_gpu():
    assert known("NVIDIA H200", 90) == "NVIDIA H200 was measured"
    assert known("NVIDIA H100 80GB HBM3", 90) == "NVIDIA H100 80GB HBM3 was measured"
    assert "sm_86: kernels are compiled for it in tests, speed was not measured" in known(
        "NVIDIA A10", 86
    )
    assert "kernels are not compiled for it" in known("Tesla T4", 75)
    assert "sm_80, sm_86, sm_89, sm_90, sm_100, sm_120" in known("", None)
