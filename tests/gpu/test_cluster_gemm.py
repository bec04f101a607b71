"""GEMMs by clusters on a GPU: against the formula, with fewer rows than a tile has, and a row's bits in any company."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from torch.nn.functional import silu

from benchmarks.kernels.tile_search import cluster_candidates
from stentor.kernels import batch_invariant, hopper_gemm
from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.launch import HOPPER, SOURCES, available_on, begin_compiling
from stentor.kernels.cuda_cpp.product import ClusterTile, Product
from stentor.kernels.hopper_gemm import Operands
from stentor.kernels.linear import problem, select
from stentor.layers.linear import linear
from stentor.layers.quantized import dequantize, quantize

pytestmark = pytest.mark.gpu
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
PRODUCTS = (
    {"norm": True},
    {"norm": True, "gate": True},
    {"norm": True, "bias": True},
    {"add": True},
)


@pytest.mark.parametrize("weights", ["same", "int8"])
@pytest.mark.parametrize("rows", [16, 88, 352])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("k", "n"), [(1024, 2560), (4096, 1024), (1024, 4096)])
def test_products_by_clusters_equal_their_formula(k, n, dtype, rows, weights):
    if not available_on(0):
        pytest.skip("GEMMs by clusters need a Hopper GPU and cuda-bindings")
    made = {"device": "cuda", "dtype": TYPES[dtype]}
    for fused in PRODUCTS:
        p = Product(k, n, dtype, **fused, weight=weights)
        x, weight, norm = (
            torch.randn(rows, k, **made),
            torch.randn(p.weight_rows, k, **made) / k**0.5,
            torch.rand(k, **made),
        )
        scale, exact = None, weight.double()
        if weights == "int8":
            weight, scale = quantize(weight, torch.int8)
            exact = dequantize(weight, scale, torch.float64)
        bias, residual = torch.randn(n, **made), torch.randn(rows, n, **made)
        y = x.double()
        if p.norm:
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * norm.double()
        y = y @ exact.T
        if p.gate:
            gate, up = y.chunk(2, -1)
            y = silu(gate) * up
        y = y + bias.double() * p.bias + residual.double() * p.add
        for t in cluster_candidates(p, rows)[:3]:
            outs = [torch.full((rows, n), float("nan"), **made) for _ in range(2)]
            for out, count in zip(outs, (rows, rows - 3), strict=True):
                hopper_gemm.launch(
                    p, t, Operands(x[:count], weight, (norm, 1e-6), bias, residual, scale), out
                )
            assert float((outs[0].double() - y).norm() / y.norm()) < (
                8e-3 if dtype == "bf16" else 1e-3
            )
            assert torch.equal(outs[1][: rows - 3], outs[0][: rows - 3])
            assert outs[1][rows - 3 :].isnan().all()


@pytest.mark.parametrize("rows", [257, 344])
def test_a_block_with_few_rows_leaves_no_reads_behind(rows):
    """CTAs of a cluster read rows that do not exist, use none of them, and may only leave once these reads are done."""
    if not available_on(0):
        pytest.skip("GEMMs by clusters need a Hopper GPU and cuda-bindings")
    k, n = 4096, 2560
    x, weight = (torch.randn(count, k, device="cuda", dtype=torch.bfloat16) for count in (rows, n))
    out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
    for _ in range(200):
        hopper_gemm.launch(
            Product(k, n, "bf16"), ClusterTile(256, 2, 4, 4, False), Operands(x, weight), out
        )
    wanted = x.double() @ weight.double().T
    assert float((out.double() - wanted).norm() / wanted.norm()) < 8e-3


LAYERS = (
    (1024, 4096, {"norm": True}),
    (2048, 1024, {"add": True}),
    (1024, 3072, {"norm": True, "gate": True}),
    (3072, 1024, {"add": True}),
    (2048, 6144, {"norm": True, "gate": True}),
    (6144, 2048, {"add": True}),
    (1024, 2048, {"norm": True}),
    (896, 1152, {"norm": True, "bias": True}),
    (4096, 2560, {}),
    (9728, 2560, {"add": True}),
    (2560, 6144, {"norm": True}),
)
"""Inputs, outputs and what is fused: layers of Qwen3-TTS, CosyVoice3, VoxCPM2 and Fish S2 Pro."""


@cache
def begin_compiling_all() -> None:
    """Compile for all layers at once, since each test would wait for its largest kernel."""
    table = tables.of(HOPPER)
    for weights, dtype, (k, n, fused) in product(("same", "int8"), TYPES, LAYERS):
        p = Product(k, n, dtype, **fused, weight=weights)
        for t in table.tiles(p, one_order=True):
            begin_compiling(SOURCES / "cluster_gemm.cu", t.macros(p), 0)


@pytest.mark.parametrize("weights", ["same", "int8"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("k", "n", "fused"), LAYERS)
def test_a_row_that_must_not_depend_on_others_has_the_same_bits_among_any(
    k, n, fused, dtype, weights
):
    if not available_on(0):
        pytest.skip("GEMMs by clusters need a Hopper GPU and cuda-bindings")
    begin_compiling_all()
    made, most = {"device": "cuda", "dtype": TYPES[dtype]}, 600
    p = Product(k, n, dtype, **fused)
    x, weight, scale = (
        torch.randn(most, k, **made),
        torch.randn(p.weight_rows, k, **made) / k**0.5,
        None,
    )
    if weights == "int8":
        weight, scale = quantize(weight, torch.int8)
    norm = (torch.rand(k, **made) + 0.5, 1e-6, True) if p.norm else None
    bias = torch.randn(n, **made) if p.bias else None
    residual = torch.randn(most, n, **made) if p.add else None

    def rows_of(first: int, end: int) -> torch.Tensor:
        assert select(problem(x[first:end], weight, scale, p.norm, p.gate))[0].backend == "cluster"
        added = None if residual is None else residual[first:end]
        return linear(x[first:end], weight, bias, scale, added, norm, p.gate)

    with torch.inference_mode(), batch_invariant(True):
        alone = torch.cat([rows_of(i, i + 1) for i in range(most)])
        for rows in (2, 3, 8, 9, 17, 33, 48, 64, 100, 256, most):
            assert torch.equal(rows_of(0, rows), alone[:rows]), f"{rows} rows"
            assert torch.equal(rows_of(most - rows, most), alone[-rows:]), f"the last {rows} rows"
    with torch.inference_mode():
        usual = linear(x, weight, bias, scale, residual, norm, p.gate).double()
    # By default many rows of int8 layers are made int8 too.
    assert float((alone.double() - usual).norm() / usual.norm()) < (
        0.05 if weights == "int8" else 0.02
    )
