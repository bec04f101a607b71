"""Switches of kernels: the names in STENTOR_KERNELS_OFF, and modules that are imported when they are used."""

from __future__ import annotations

import pytest
import torch

from stentor import kernels
from stentor.kernels import Kernel, switches
from tests.helpers.child import python


def test_names_turn_kernels_off():
    assert switches.parse_off("") == frozenset()
    assert switches.parse_off("norm, gemv,") == {Kernel.NORM, Kernel.GEMV}
    assert switches.parse_off("norm,all") == frozenset(Kernel)


def test_a_name_that_is_no_kernel_is_an_error_that_lists_those_there_are():
    with pytest.raises(ValueError, match="nrom") as e:
        switches.parse_off("gemv,nrom")
    assert all(kernel.value in str(e.value) for kernel in Kernel)
    done = python("-c", "import stentor; stentor.TTS('dummy:toy')", STENTOR_KERNELS_OFF="nrom")
    assert done.returncode != 0
    assert "no kernel is named 'nrom'" in done.stderr


def test_kernels_serve_their_dtypes_in_inference_mode_only(monkeypatch):
    monkeypatch.setattr(switches, "AVAILABLE", True)
    monkeypatch.setattr(switches, "INTERPRETED", True)
    monkeypatch.setattr(switches, "OFF", frozenset({Kernel.NORM}))
    x = torch.zeros(3, 8)
    assert not kernels.enabled(Kernel.SILU, x)
    with torch.inference_mode():
        assert kernels.enabled(Kernel.SILU, x)
        assert not kernels.enabled(Kernel.NORM, x)
        assert not kernels.enabled(Kernel.SILU, x.double())
        assert kernels.slot_kernels_enabled(x.device)
        triton = {Kernel.GEMV, Kernel.GEMM, Kernel.QUANTIZED, Kernel.W8A8}
        assert switches.linear_kernels(x) == triton | switches.CUDA_CPP
        assert switches.linear_kernels(x.double()) == switches.NO_KERNELS
        assert kernels.conv_kernels_enabled(x.half())
        assert not kernels.conv_kernels_enabled(x)


def test_the_package_imports_triton_only_when_a_kernel_is_used():
    done = python(
        "-c", "import sys, stentor.api, stentor.kernels; sys.exit('triton' in sys.modules)"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with pytest.raises(AttributeError, match="no_kernel"):
        _ = kernels.no_kernel
