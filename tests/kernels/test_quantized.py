"""Kernels that read weights in 8 bits, against the layers that make them float first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import gemm, gemv
from stentor.layers.norm import RMSNorm
from stentor.layers.quantized import LARGEST, dequantize, quantize
from tests.helpers.kernel_tests import DEVICE, DOTS, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")
linear = torch.nn.functional.linear


def weights(width: int, size: int, bits: torch.dtype, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """A weight in 8 bits, its scales, and the same in float32."""
    weight, scale = quantize(random(width, size) / size**0.5, bits)
    scale = scale * (1 + torch.rand(width, groups, device=DEVICE))
    return weight, scale, dequantize(weight, scale, torch.float32)


CASES = [(bits, groups) for bits in LARGEST for groups in (1, 3)]


@pytest.mark.parametrize(
    ("dtype", "rows", "size", "width"), [(DTYPES[0], 1, 48, 30), (DTYPES[1], 2, 1536, 40)]
)
@pytest.mark.parametrize(("bits", "groups"), CASES)
def test_narrow_products_equal_norm_linear_gate_and_addition(
    dtype, rows, size, width, bits, groups
):
    x, residual, bias = (random(rows, n, dtype=dtype) for n in (size, width, width))
    bias, norm = bias[0], RMSNorm(size, 1e-6).to(DEVICE, dtype)
    norm.weight.data = random(size, dtype=dtype)
    weight, scale, wide = weights(width, size, bits, groups)
    want = linear(x.float(), wide).to(dtype)
    close(gemv.fused_linear(x, weight, residual=residual, scale=scale), residual + want)
    close(
        gemv.fused_linear(x, weight, bias=bias, scale=scale),
        linear(x.float(), wide, bias.float()).to(dtype),
    )
    weight, scale, wide = weights(2 * width, size, bits, groups)
    gate, up = linear(norm(x).float(), wide).to(dtype).chunk(2, -1)
    got = gemv.fused_linear(x, weight, norm.kernel_args, gate=True, scale=scale)
    close(got, torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("bits", "groups"), CASES)
@pytest.mark.parametrize(("rows", "size", "width"), [(3, 48, 30), (17, 192, 70)])
def test_products_of_few_rows_equal_those_of_the_weight(dtype, bits, groups, rows, size, width):
    x, bias = random(rows, 2, size, dtype=dtype)[:, 1], random(width, dtype=dtype)
    weight, scale, wide = weights(width, size, bits, groups)
    close(gemm.linear(x, weight, scale=scale), linear(x.float(), wide).to(dtype))
    close(
        gemm.linear(x, weight, bias, scale=scale),
        linear(x.float(), wide, bias.float()).to(dtype),
    )
