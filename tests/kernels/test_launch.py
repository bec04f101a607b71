"""Launches of kernels in CUDA C++, with a driver that records them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stentor.kernels.cuda_cpp import launch
from stentor.kernels.cuda_cpp.launch import LoadedKernel
from stentor.kernels.hopper_gemm import Arguments

OVERLAP, POLICY = "overlap", "policy"


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configurations of the launches that a driver got."""
    configs: list[Any] = []

    def launch_kernel(config: Any, *rest: Any) -> tuple[int]:
        configs.append(config)
        return (0,)

    driver = SimpleNamespace(
        CUlaunchConfig=SimpleNamespace,
        CUlaunchAttribute=lambda: SimpleNamespace(value=SimpleNamespace()),
        CUlaunchAttributeID=SimpleNamespace(
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=OVERLAP,
            CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW=POLICY,
        ),
        CUaccessPolicyWindow=SimpleNamespace,
        CUaccessProperty=SimpleNamespace(
            CU_ACCESS_PROPERTY_STREAMING="evict first", CU_ACCESS_PROPERTY_NORMAL="normal"
        ),
        cuLaunchKernelEx=launch_kernel,
    )
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    return configs


def attributes(config: Any) -> dict[str, Any]:
    assert config.numAttrs == len(config.attrs)
    return {attribute.id: attribute.value for attribute in config.attrs}


@pytest.mark.parametrize(("window", "num_bytes"), [(1 << 20, 24), (16, 16)])
def test_an_operand_that_is_read_once_leaves_l2_first(
    window: int, num_bytes: int, launches: list[Any]
) -> None:
    weight = torch.zeros(3, 4, dtype=torch.bfloat16)
    LoadedKernel("function", 256, 1024, window)((5, 2), Arguments(), read_once=weight)
    policy = attributes(launches[0])[POLICY].accessPolicyWindow
    assert (policy.base_ptr, policy.num_bytes) == (weight.data_ptr(), num_bytes)
    assert (policy.hitProp, policy.missProp, policy.hitRatio) == ("evict first", "normal", 1.0)


def test_a_device_without_policies_and_a_launch_without_such_an_operand_have_none(
    launches: list[Any],
) -> None:
    weight = torch.zeros(3, 4)
    LoadedKernel("function", 256, 1024, 0)((5, 2), Arguments(), read_once=weight)
    LoadedKernel("function", 256, 1024, 1 << 20)((5, 2), Arguments())
    assert [POLICY in attributes(config) for config in launches] == [False, False]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_launch_may_overlap_the_end_of_the_one_before(
    enabled: bool, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "pdl_enabled", lambda: enabled)
    LoadedKernel("function", 256, 1024, 0)((5, 2), Arguments())
    config = launches[0]
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (5, 2, 1)
    assert (config.blockDimX, config.sharedMemBytes, config.hStream) == (256, 1024, 7)
    assert (OVERLAP in attributes(config)) == enabled


def test_machine_code_in_the_cache_is_readable_by_other_users(tmp_path: Path) -> None:
    file = tmp_path / "cubins" / "one.cubin"
    launch._keep(file, b"code")
    assert file.read_bytes() == b"code"
    assert file.stat().st_mode & 0o777 == 0o644
    assert list(file.parent.iterdir()) == [file]
