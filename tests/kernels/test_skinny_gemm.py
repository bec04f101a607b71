"""The CUDA C++ of few-row products, run on a CPU: right, whole, and the same bit for bit whatever the tile."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.kernels.tile_search import candidates, tile
from stentor.kernels.cuda_cpp import launch
from stentor.kernels.cuda_cpp.product import SHARED_BYTES, ElementType, Product, Tile, WeightType
from stentor.kernels.hopper_gemm import Operands
from stentor.layers.quantized import dequantize, quantize
from tests.helpers.cuda_emulator import emulated

if shutil.which("g++") is None:
    pytest.skip("g++ is not installed", allow_module_level=True)

EPS = 1e-6
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def operands(p: Product, rows: int) -> Operands:
    """The first rows are the same for any number of rows. Weights in int8 have scales of very different sizes."""
    made = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    norm, bias = torch.rand(p.k, generator=made) + 0.5, normal(p.n)
    weight = normal(p.weight_rows, p.k) / p.k**0.5
    x, residual = normal(160, p.k + 16), normal(160, p.n + 8)
    dtype = TYPES[p.dtype]
    rest = ((norm.to(dtype), EPS), bias.to(dtype), residual.to(dtype)[:rows, : p.n])
    o = Operands(x.to(dtype)[:rows, : p.k], weight.to(dtype), *rest)
    if p.weight == "same":
        return o
    bits, scale = quantize(weight * torch.linspace(0.5, 2, p.weight_rows)[:, None], torch.int8)
    return replace(o, weight=bits, scale=scale)


def expected(p: Product, o: Operands) -> Tensor:
    y = o.x.double()
    if p.norm:
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * o.norm[0].double()
    weight = o.weight.double() if o.scale is None else dequantize(o.weight, o.scale, torch.float64)
    y = y @ weight.T
    if p.bias:
        y = y + o.bias.double()
    if p.gate:
        gate, up = y.chunk(2, -1)
        y = torch.nn.functional.silu(gate) * up
    return y + o.residual.double() if p.add else y


def empty(rows: int, columns: int, p: Product) -> Tensor:
    return torch.full((rows, columns), float("nan"), dtype=TYPES[p.dtype])


def skinny(p: Product, t: Tile, o: Operands, folder: Path) -> Tensor:
    out = empty(len(o.x), p.n, p)
    source = launch.SOURCES / f"{t.source(p)}.cu"
    emulated(source, t.macros(p), folder)(t.grid(p, len(o.x)), t.shared_bytes(p), o.arguments(out))
    return out


def error(p: Product, out: Tensor, o: Operands) -> float:
    wanted = expected(p, o)
    return float((out.double() - wanted).norm() / wanted.norm())


def test_products_of_many_inputs_have_tiles_too() -> None:
    for k, n in ((16384, 4096), (16384, 2048)):
        for rows in (1, 8, 16):
            p = Product(k, n, "bf16", weight="int8")
            assert tile(p, rows).shared_bytes(p) <= SHARED_BYTES


CASES = {
    "norm": (Product(512, 48, "bf16", norm=True), 11),
    "gate": (Product(512, 40, "bf16", norm=True, gate=True), 8),
    "gate without norm": (Product(512, 40, "bf16", gate=True), 8),
    "residual": (Product(1088, 64, "bf16", add=True), 3),
    "norm and bias": (Product(2048, 32, "f16", norm=True, bias=True), 19),
    "wide": (Product(512, 2176, "f16"), 2),
    "int8, norm": (Product(512, 48, "bf16", norm=True, weight="int8"), 11),
    "int8, gate": (Product(1088, 40, "bf16", norm=True, gate=True, weight="int8"), 8),
    "int8, gate without norm": (Product(512, 40, "bf16", gate=True, weight="int8"), 5),
    "int8, residual in batches": (Product(9728, 32, "bf16", add=True, weight="int8"), 15),
    "int8, wide": (Product(512, 2176, "f16", bias=True, weight="int8"), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_of_few_rows(name: str, tmp_path: Path) -> None:
    p, rows = CASES[name]
    o = operands(p, rows)
    out = skinny(p, tile(p, rows), o, tmp_path)
    assert error(p, out, o) < (0.006 if p.dtype == "bf16" else 0.001)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_weight_in_int8_is_exact(dtype: ElementType, tmp_path: Path) -> None:
    p = Product(64, 256, dtype, weight="int8")
    stored = torch.zeros(256, 64, dtype=torch.int8)
    stored[torch.arange(256), torch.arange(256) % 8 * 9] = torch.arange(-128, 128, dtype=torch.int8)
    o = Operands(torch.eye(64, dtype=TYPES[dtype])[::9], stored, scale=torch.ones(256, 1))
    out = skinny(p, tile(p, 8), o, tmp_path)
    assert torch.equal(out.double(), stored.double().T[::9])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_element_in_int8_products_that_is_not_finite_reaches_its_own_row_alone(
    value: float, tmp_path: Path
) -> None:
    p = Product(1024, 32, "bf16", add=True, weight="int8")
    o = operands(p, 6)
    (tmp_path / "fine").mkdir()
    fine = skinny(p, tile(p, 6), o, tmp_path / "fine")
    x = o.x.clone()
    x[2, 700] = value
    out = skinny(p, tile(p, 6), replace(o, x=x), tmp_path)
    others = [0, 1, 3, 4, 5]
    assert out[2].isnan().all()
    assert torch.equal(out[others], fine[others])


@pytest.mark.parametrize("weight", ["same", "int8"])
def test_a_row_is_the_same_in_any_company_and_with_any_tile(
    weight: WeightType, tmp_path: Path
) -> None:
    p = Product(2048, 32, "bf16", norm=True, gate=True, weight=weight)
    alone = skinny(p, tile(p, 1), operands(p, 1), tmp_path)
    for row_tiles, rows, first_or_last in ((1, 8, (-1,)), (2, 25, (0, -1)), (3, 22, (0,))):
        for i in first_or_last:
            folder = tmp_path / f"{row_tiles} {rows} {i}"
            folder.mkdir()
            assert torch.equal(
                skinny(p, candidates(p, row_tiles)[i], operands(p, rows), folder)[0], alone[0]
            )


@pytest.mark.skipif(not launch.available(), reason="cuda-bindings and NVRTC are not installed")
@pytest.mark.parametrize("weight", ["same", "int8"])
def test_kernels_compile_for_a_hopper_gpu(
    weight: WeightType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "CACHE", tmp_path)
    p = Product(2048, 6144, "bf16", norm=True, gate=True, weight=weight)
    for rows in (1, 16):
        t = tile(p, rows)
        source, macros = launch.SOURCES / f"{t.source(p)}.cu", {**t.macros(p), "PDL": 1}
        assert launch.Compiler().begin(source, macros, "sm_90a").result()[:4] == b"\x7fELF"
