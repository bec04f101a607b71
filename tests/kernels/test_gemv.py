"""Fused linear layers of one or two rows, against torch's."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import gemv
from stentor.layers.norm import RMSNorm
from tests.helpers.kernel_tests import DEVICE, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("size", "width"), [(48, 30), (1536, 64), (64, 1)])
def test_narrow_products_equal_norm_linear_gate_bias_and_addition(dtype, rows, size, width):
    product = gemv.fused_linear
    x, residual = random(rows, size, dtype=dtype), random(rows, width, dtype=dtype)
    weight, gates = (
        random(width, size, dtype=dtype) / size**0.5,
        random(2 * width, size, dtype=dtype) / size**0.5,
    )
    bias, norm = random(width, dtype=dtype), RMSNorm(size, 1e-6).to(DEVICE, dtype)
    norm.weight.data = random(size, dtype=dtype)
    linear = torch.nn.functional.linear
    close(product(x, weight, None, None, False), linear(x, weight))
    close(product(x, weight, None, residual, False), residual + linear(x, weight))
    close(product(x, weight, norm.kernel_args, None, False, bias), linear(norm(x), weight, bias))
    gate, up = linear(norm(x), gates).chunk(2, -1)
    close(product(x, gates, norm.kernel_args, None, True), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_take_rows_that_lie_apart(dtype):
    x, weight = random(2, 11, 64, dtype=dtype), random(30, 64, dtype=dtype) / 8
    want = torch.nn.functional.linear(x[:, -1:], weight)
    close(gemv.fused_linear(x[:, -1:], weight, None, None, False), want)
