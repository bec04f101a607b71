"""Random numbers by kernels, against `layers.rng`."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import rng as kernels
from stentor.kernels import switches
from stentor.layers.rng import grid_normal, uniform
from tests.helpers.kernel_tests import DEVICE, DTYPES, integers

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.fixture
def plain(monkeypatch):
    """The formulas, wherever they run."""
    monkeypatch.setattr(switches, "AVAILABLE", False)


@pytest.mark.parametrize("draws", [1, 16, 11, 256, 300])
def test_uniforms_are_the_same_to_the_last_bit(draws, plain):
    seed = integers(0, 1, 2**62, 2**63 - 1, -1, -(2**63), 1234567)
    step = integers(0, 5, 1, 4096, 2**31, 7, 2)
    got = kernels.uniform(seed, step, draws)
    assert torch.equal(got, uniform(seed, step, draws))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outer", "inner"), [(64, 4), (6, 2), (3, 8)])
def test_normals_lie_as_the_frame_does(dtype, outer, inner, plain):
    u = uniform(integers(3, 4, 5), integers(0, 9, 2), outer * inner)
    scale = torch.tensor([1.0, 0.0, 0.7], device=DEVICE)
    got, want = kernels.grid_normal(u, outer, scale, dtype), grid_normal(u, outer, scale, dtype)
    assert got.shape == want.shape == (3, inner, outer)
    assert got.dtype == want.dtype
    assert (got[1] == 0).all()
    torch.testing.assert_close(got, want, atol=2e-6 if dtype == torch.float32 else 2e-2, rtol=1e-2)
