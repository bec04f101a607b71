"""GEMMs of few rows on a GPU against the formula, and the same bits whatever the number of rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, silu

from benchmarks.kernels.tile_search import tile
from stentor.kernels import hopper_gemm
from stentor.kernels.cuda_cpp.launch import available_on
from stentor.kernels.cuda_cpp.product import Product
from stentor.kernels.hopper_gemm import DTYPES, weight_type
from stentor.kernels.linear import problem, select
from stentor.layers.norm import RMSNorm
from stentor.layers.quantized import dequantize, quantize

pytestmark = pytest.mark.gpu
ROWS = (2, 3, 8, 9, 16, 22, 32)


def product(x: torch.Tensor, weight: torch.Tensor, norm=None, gate=False, **other) -> torch.Tensor:
    """A product with the tile in use, or else the most promising one."""
    n = len(weight) // 2 if gate else len(weight)
    p = Product(x.shape[1], n, DTYPES[x.dtype], norm is not None, gate, weight=weight_type(weight))
    return hopper_gemm.fused_linear(x, weight, tile(p, len(x)), norm, gate=gate, **other)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm())


def test_a_linear_layer_of_few_rows_takes_them():
    if not available_on(0):
        pytest.skip("GEMMs of few rows need a Hopper GPU and cuda-bindings")
    weight = random(4096, 1024, dtype=torch.bfloat16)
    with torch.inference_mode():
        for rows, backend in ((1, "few rows"), (32, "few rows"), (56, "cluster"), (300, "library")):
            (choice,) = select(problem(random(rows, 1024, dtype=torch.bfloat16), weight))
            assert choice.backend == backend
        (choice,) = select(
            problem(
                random(32, 1024, dtype=torch.bfloat16), random(4097, 1024, dtype=torch.bfloat16)
            )
        )
        assert choice.backend == "library"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("k", "n"), [(1024, 4096), (3072, 1024), (6144, 2048), (9728, 2560), (64, 16)]
)
def test_products_of_few_rows_equal_their_formula(k, n, dtype):
    weight, gates = random(n, k, dtype=dtype) / k**0.5, random(2 * n, k, dtype=dtype) / k**0.5
    bias, norm = random(n, dtype=dtype), RMSNorm(k, 1e-6).to("cuda", dtype)
    norm.weight.data = random(k, dtype=dtype)
    if not available_on(0):
        pytest.skip("GEMMs of few rows need a Hopper GPU and cuda-bindings")
    x, residual = random(max(ROWS), k, dtype=dtype), random(max(ROWS), n, dtype=dtype)
    first = []
    with torch.inference_mode():
        for rows in ROWS:
            some, added = x[:rows], residual[:rows]
            plain = product(some, weight, residual=added)
            biased = product(some, weight, norm.kernel_args[:2], bias=bias)
            gated = product(some, gates, norm.kernel_args[:2], gate=True)
            gate, up = linear(norm(some).float(), gates.float()).chunk(2, -1)
            limit = 8e-3 if dtype == torch.bfloat16 else 1e-3
            assert error(plain, added.float() + linear(some.float(), weight.float())) < limit
            assert error(biased, linear(norm(some).float(), weight.float(), bias.float())) < limit
            assert error(gated, silu(gate) * up) < limit
            first.append([t[:2].clone() for t in (plain, biased, gated)])
    for others in first[1:]:
        assert all(torch.equal(a, b) for a, b in zip(first[0], others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("k", "n"), [(2048, 4096), (6144, 2048), (2560, 6144), (9728, 2560), (64, 16)]
)
def test_products_with_weights_in_int8_equal_those_with_the_weights_that_they_stand_for(
    k, n, dtype
):
    weight, scale = quantize(random(n, k, dtype=torch.float32) / k**0.5, torch.int8)
    gates, gates_scale = quantize(random(2 * n, k, dtype=torch.float32) / k**0.5, torch.int8)
    bias, norm = random(n, dtype=dtype), RMSNorm(k, 1e-6).to("cuda", dtype)
    x, residual = random(max(ROWS), k, dtype=dtype), random(max(ROWS), n, dtype=dtype)
    if not available_on(0):
        pytest.skip("GEMMs of few rows need a Hopper GPU and cuda-bindings")
    wide, wide_gates = (
        dequantize(w, s, torch.float64) for w, s in ((weight, scale), (gates, gates_scale))
    )
    first = []
    with torch.inference_mode():
        for rows in (1, *ROWS):
            some, added = x[:rows], residual[:rows]
            plain = product(some, weight, residual=added, scale=scale)
            biased = product(some, weight, norm.kernel_args[:2], bias=bias, scale=scale)
            gated = product(some, gates, norm.kernel_args[:2], gate=True, scale=gates_scale)
            gate, up = linear(norm(some).double(), wide_gates).chunk(2, -1)
            limit = 8e-3 if dtype == torch.bfloat16 else 1e-3
            assert error(plain, added.double() + linear(some.double(), wide)) < limit
            assert error(biased, linear(norm(some).double(), wide, bias.double())) < limit
            assert error(gated, silu(gate) * up) < limit
            first.append([t[:1].clone() for t in (plain, biased, gated)])
    for others in first[1:]:
        assert all(torch.equal(a, b) for a, b in zip(first[0], others, strict=True))
