"""The CUDA C++ of products of some dozens of rows and more, run on a CPU: right, whole, and split over a cluster."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.kernels.tile_search import cluster_candidates, fits
from stentor.kernels.cuda_cpp import launch
from stentor.kernels.cuda_cpp.product import SHARED_BYTES, ClusterTile, Product, WeightType
from tests.helpers.cuda_emulator import emulated
from tests.kernels.test_skinny_gemm import empty, error, operands

if shutil.which("g++") is None:
    pytest.skip("g++ is not installed", allow_module_level=True)

SOURCE = launch.SOURCES / "cluster_gemm.cu"
CASES = {
    "norm and gate, some rows in a second CTA": (
        Product(512, 64, "bf16", norm=True, gate=True), ClusterTile(16, 2, 2, 4), 19
    ),
    "gate without norm": (Product(512, 64, "bf16", gate=True), ClusterTile(16, 2, 2, 4), 19),
    "norm and bias, stages used again": (Product(1024, 64, "bf16", norm=True, bias=True), ClusterTile(40, 1, 2, 3), 77),
    "residual, four parts of K": (Product(1024, 64, "f16", add=True), ClusterTile(24, 1, 4, 4), 24),
    "int8, norm and gate": (
        Product(1024, 64, "bf16", norm=True, gate=True, weight="int8"), ClusterTile(16, 2, 2, 4), 19
    ),
    "int8, norm and bias, stages used again": (
        Product(1024, 64, "bf16", norm=True, bias=True, weight="int8"), ClusterTile(24, 1, 2, 3), 24
    ),
    "int8, residual, four parts of K": (Product(2048, 128, "f16", add=True, weight="int8"), ClusterTile(24, 2, 4, 5), 9),
    "all of K, fewer rows than columns": (Product(512, 64, "f16"), ClusterTile(24, 1, 1, 3), 9),
}  # fmt: skip


def product(p: Product, t: ClusterTile, rows: int, folder: Path) -> Tensor:
    out, o = empty(rows + 1, p.n, p), operands(p, rows)
    emulated(SOURCE, t.macros(p), folder)(t.grid(p, rows), t.shared_bytes(p), o.arguments(out))
    assert out[rows].isnan().all()
    return out[:rows]


@pytest.mark.parametrize("name", CASES)
def test_a_product_by_a_cluster(name: str, tmp_path: Path) -> None:
    p, t, rows = CASES[name]
    assert fits(t, p)
    out = product(p, t, rows, tmp_path)
    assert error(p, out, operands(p, rows)) < (0.006 if p.dtype == "bf16" else 0.001)


def test_candidates_fit_and_differ() -> None:
    p = Product(1024, 4096, "bf16", norm=True, gate=True)
    for rows in (16, 88, 352):
        found = cluster_candidates(p, rows)
        assert len(set(found)) == len(found) > 10
        assert all(fits(t, p) and t.shared_bytes(p) <= SHARED_BYTES for t in found)
        assert all(t.columns * t.grid(p, rows)[1] >= rows for t in found)
    assert not fits(replace(found[0], splits=3), p)


@pytest.mark.parametrize("weight", ["same", "int8"])
def test_a_row_has_the_same_bits_in_every_tile_that_splits_k_alike(
    weight: WeightType, tmp_path: Path
) -> None:
    p = Product(1024, 64, "f16", norm=True, gate=True, weight=weight)
    tiles = (
        ClusterTile(8, 1, 2, 8),
        ClusterTile(16, 2, 2, 4, True),
        ClusterTile(32, 1, 2, 3),
        ClusterTile(64, 2, 2, 5),
    )
    outs = []
    for i, t in enumerate(tiles):
        (folder := tmp_path / str(i)).mkdir()
        outs += [product(p, t, rows, folder) for rows in (1, 17, 65)[: 1 if t.columns == 64 else 3]]
    assert all(torch.equal(out, outs[2][: len(out)]) for out in outs)
    (folder := tmp_path / "other").mkdir()
    assert not torch.equal(product(p, ClusterTile(8, 1, 4, 4), 17, folder), outs[1])


@pytest.mark.skipif(not launch.available(), reason="cuda-bindings and NVRTC are not installed")
def test_the_kernel_compiles_for_a_hopper_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "CACHE", tmp_path)
    p = Product(1024, 4096, "bf16", norm=True, gate=True)
    macros = {**cluster_candidates(p, 88)[0].macros(p), "PDL": 1}
    assert launch.Compiler().begin(SOURCE, macros, "sm_90a").result()[:4] == b"\x7fELF"
