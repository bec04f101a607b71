"""How tools/gpu_check.py reads what pytest and compute-sanitizer print."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CLEAN = """========= COMPUTE-SANITIZER
......                                                                   [100%]
6 passed, 76 deselected in 3.30s
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""
BROKEN = """========= COMPUTE-SANITIZER
........................................................................ [ 52%]
.............................========= Invalid __global__ read of size 4 bytes
=========     at cudnn_generated_fort_native_sdpa_sm80_kernel0_0+0x1890
=========     by thread (2,0,0) in block (0,0,0)
=========         Host Frame: sdpa in attention.py:19
========= Error: process didn't terminate successfully
========= ERROR SUMMARY: 5 errors
"""


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools" / "gpu_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_clean_run_under_a_sanitizer_has_passed(check):
    found = check.judged("racecheck", 0, CLEAN, 7.0)
    assert found["verdict"] == "passed"
    assert found["counts"].startswith("6 passed")
    assert "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" in found["facts"]
    assert "bfloat16" in check.table([found])


def test_a_run_in_which_every_test_was_left_out_has_not_passed(check):
    assert check.judged("racecheck", 0, "82 deselected in 0.10s\n", 7.0)["verdict"] == "nothing ran"


def test_an_error_names_its_kernel_and_how_far_the_run_had_come(check):
    found = check.judged("memcheck", 9, BROKEN, 43.0)
    assert found["verdict"] == "FAILED (9)"
    assert found["counts"] == "no result; 101 had passed"
    assert "in the kernel cudnn_generated_fort_native_sdpa_sm80_kernel0_0" in found["facts"]


def test_facts_are_read_behind_failures_and_backtraces_of_libraries_are_left_out(check):
    text = "..Ffish_s2 500 done 79 cancelled\n.\n1 failed, 2 passed in 3.1s\n"
    assert check.judged("company", 1, text, 3.1)["facts"] == ["fish_s2 500 done 79 cancelled"]
    frame = "=========         Host Frame: {}"
    for left_out in (
        "cudnnBackendExecute [0x178365] in libcudnn_graph.so.9",
        "_multicall in _callers.py:121",
    ):
        assert check.LIBRARY_FRAME.search(frame.format(left_out))
    assert not check.LIBRARY_FRAME.search(frame.format("sdpa in attention.py:19"))


def test_every_section_names_tests_that_exist(check):
    for _, arguments in check.SECTIONS.values():
        files = [a for a in arguments if a.endswith(".py")]
        assert files
        assert all((ROOT / a).exists() for a in files)


RACES = """========= COMPUTE-SANITIZER
.========= Error: Race reported between Read access at {}+0x2e0
=========     and Write access at {}+0x3c40 [96 hazards]
=========
47 passed, 47 deselected in 52.08s
========= RACECHECK SUMMARY: 1 hazards displayed (1 errors, 0 warnings)
"""


@pytest.mark.parametrize(
    ("name", "verdict"), [("cudnn_sdpa_kernel0_0", "passed"), ("_paged", "FAILED (9)")]
)
def test_races_count_in_our_kernels_and_not_in_the_libraries(check, name, verdict):
    found = check.judged("racecheck", 9, RACES.format(name, name), 52.0)
    assert found["verdict"] == verdict
    assert f"hazards in {name}" in found["facts"]
