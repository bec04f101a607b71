"""Choice of the kernel of linear layers, and the tables of tiles."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

from benchmarks.kernels.tile_search import (
    ARCH,
    ONE_ORDER_ROWS,
    candidates,
    fits,
    text,
    with_estimates,
)
from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.product import SHARED_BYTES, Product
from stentor.kernels.linear import Backend, Problem, select
from stentor.kernels.switches import CUDA_CPP, NO_KERNELS, Kernel

TRITON = frozenset((Kernel.GEMV, Kernel.GEMM, Kernel.QUANTIZED, Kernel.W8A8))
HOPPER = TRITON | CUDA_CPP
DEPTH = ((1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024))
LARGE = ((2560, 6144), (4096, 2560), (2560, 19456), (9728, 2560))


def problem(rows: int, k: int = 2048, n: int = 4096, **other) -> Problem:
    made = {
        "dtype": torch.bfloat16,
        "weight": torch.bfloat16,
        "groups": 0,
        "norm": False,
        "gate": False,
    }
    return Problem(rows, k, n, **{**made, "device": "cuda", "kernels": HOPPER, **other})


def backends(rows: int, shapes: tuple[tuple[int, int], ...], **other) -> list[str]:
    return [c.backend for c in select(*(problem(rows, k, n, **other) for k, n in shapes))]


def test_one_or_two_rows_are_a_gemv_where_tables_have_no_tile():
    assert backends(2, ((2048, 4096), (100, 30)), kernels=TRITON) == ["gemv", "gemv"]
    assert backends(2, ((2048, 4096), (100, 30))) == ["few rows", "gemv"]
    assert backends(3, ((2048, 4096),), kernels=TRITON) == ["library"]
    assert backends(0, ((2048, 4096),)) == ["library"]


def test_a_block_is_fused_as_a_whole_or_not_at_all():
    assert backends(4, DEPTH) == ["few rows"] * 4
    assert backends(12, DEPTH) == ["few rows", "cluster", "few rows", "cluster"]
    assert backends(60, DEPTH) == ["cluster"] * 4
    assert backends(60, LARGE) == ["library"] * 4
    assert backends(4, (*DEPTH, (100, 30))) == ["library"] * 5


def test_the_library_keeps_the_products_that_it_does_faster():
    """Measured on an H200: a block of a depth loop wins up to 32 rows at least, one of the largest model up to 22."""
    assert [rows for rows in (8, 22, 32, 48) if "library" not in backends(rows, DEPTH)] == [
        8,
        22,
        32,
        48,
    ]
    assert [rows for rows in (8, 22, 32, 48) if "library" not in backends(rows, LARGE)] == [8, 22]


def test_many_rows_of_int8_layers_make_activations_int8_where_no_cluster_is_faster():
    int8 = {"weight": torch.int8, "groups": 1}
    assert backends(16, LARGE, **int8) == ["few rows"] * 4
    assert backends(17, LARGE, **int8) == ["w8a8", "cluster", "w8a8", "cluster"]
    assert backends(64, DEPTH, **int8) == ["w8a8", "cluster", "w8a8", "cluster"]
    assert {b for rows in (40, 256, 5000) for b in backends(rows, LARGE, **int8)} == {"w8a8"}
    assert backends(40, (*LARGE, (100, 30)), **int8, kernels=TRITON) == ["w8a8"] * 5
    assert [c.fused for c in select(problem(17, **int8), problem(17, 2048, 1024, **int8))] == [
        True,
        True,
    ]


def test_activations_stay_wide_where_int8_is_off_or_weights_are_otherwise():
    int8 = {"weight": torch.int8, "groups": 1}
    without = HOPPER - {Kernel.W8A8}
    assert [backends(rows, LARGE, **int8, kernels=without)[0] for rows in (40, 300)] == [
        "8 bits",
        "library",
    ]
    others = (
        {"weight": torch.float8_e4m3fn},
        {"groups": 2},
        {"dtype": torch.float32},
        {"invariant": True},
    )
    assert [backends(300, LARGE, **int8 | other)[0] for other in others] == ["library"] * 3 + [
        "cluster"
    ]


def test_a_layer_that_has_fused_its_block_gets_fused_products():
    assert backends(30, ((9728, 2560),)) == ["library"]
    assert backends(30, ((9728, 2560),), must_fuse=True) == ["few rows"]


@pytest.mark.parametrize("other", [{}, {"weight": torch.int8, "groups": 1}])
@pytest.mark.parametrize("shapes", [DEPTH, LARGE, ((2048, 4096),)])
def test_rows_that_must_not_depend_on_their_number_go_by_clusters_that_split_k_alike(shapes, other):
    made = {"invariant": True, "norm": True, **other}
    for must_fuse in (False, True):
        found = [
            select(*(problem(rows, k, n, **made, must_fuse=must_fuse) for k, n in shapes))
            for rows in (1, 2, 3, 8, 12, 17, 33, 48, 64, 100, 256, 5000)
        ]
        for choices in zip(*found, strict=True):
            assert {c.backend for c in choices} == {Backend.CLUSTER}
            assert len({c.tile.splits for c in choices}) == 1
            assert {c.tile.columns for c in choices} >= {8, 16, 32, 64, 128}


def test_rows_that_must_not_depend_on_their_number_are_summed_in_one_order_by_triton_elsewhere():
    """No cluster divides the product, one product of a block has none, or this GPU has none."""
    for other in (
        {"n": 4100},
        {"kernels": TRITON},
        {"kernels": HOPPER - {Kernel.CLUSTER_GEMM}},
        {"rows": 0},
    ):
        assert select(problem(**{"rows": 1, "invariant": True, **other}))[0].backend == "one order"
    assert backends(4, (*DEPTH, (100, 30)), invariant=True) == ["one order"] * 5
    int8 = {"invariant": True, "weight": torch.int8, "groups": 1}
    assert backends(300, ((2048, 4096),), **int8, kernels=TRITON) == ["8 bits"]
    assert backends(300, ((2048, 4096),), **int8 | {"groups": 2}) == ["8 bits"]
    assert backends(1, ((2048, 4096),), invariant=True, kernels=NO_KERNELS) == ["library"]


@pytest.mark.parametrize(("other", "backend"), [
    ({}, "cpu int8"), ({"rows": 9}, "cpu int8"), ({"k": 2056}, "library"), ({"groups": 2}, "library"),
    ({"weight": torch.float8_e4m3fn}, "library"), ({"dtype": torch.float64}, "library"),
])  # fmt: skip
def test_a_cpu_has_a_product_of_weights_in_int8(other, backend):
    cpu = {
        "weight": torch.int8,
        "groups": 1,
        "kernels": NO_KERNELS,
        "device": "cpu",
        "rows": 8,
        **other,
    }
    assert select(problem(**cpu))[0].backend == backend


def test_weights_and_activations_of_other_types_have_no_tiles():
    for other in (
        {"dtype": torch.float32},
        {"weight": torch.float8_e4m3fn, "groups": 1},
        {"groups": 4},
    ):
        assert select(problem(1, **other)) == select(problem(1, **other, kernels=TRITON))
        assert select(problem(1, **other))[0].backend is Backend.GEMV


def test_every_tile_of_the_tables_fits_its_product_and_the_chip():
    table = tables.of(90)
    assert table is not None
    for (k, weight_rows, weight), ranges in table.clusters.items():
        p = Product(k, weight_rows, "bf16", weight=weight)
        assert all(a[1] < b[0] for a, b in pairwise(ranges))
        for least, most, t in ranges:
            assert least <= most
            assert fits(t, p)
            assert t.shared_bytes(p) <= SHARED_BYTES
            assert table.cluster_tile(p, most) == t
        assert table.cluster_tile(p, 100_000) is None
    for (k, weight_rows, weight), ranges in table.one_order.items():
        p = Product(k, weight_rows, "bf16", weight=weight)
        assert ranges[0][0] == 1
        assert ranges[-1][1] == ONE_ORDER_ROWS[-1]
        assert all(a[1] + 1 == b[0] for a, b in pairwise(ranges))
        assert len({t.splits for _, _, t in ranges}) == 1, "a row's sums have one order"
        assert all(fits(t, p) and t.shared_bytes(p) <= SHARED_BYTES for _, _, t in ranges)
        assert all(
            table.one_order_tile(p, rows) == t
            for least, most, t in ranges
            for rows in (least, most)
        )
        assert table.one_order_tile(p, 0) is None
    for (k, n, gate, weight), found in table.few_rows.items():
        for norm in (False, True):
            p = Product(k, n, "bf16", norm=norm, gate=gate, weight=weight)
            for i in range(1, len(found.plain) + 1):
                t = table.few_rows_tile(p, p.row_tile * i)
                assert t is not None
                assert 0 < t.stages <= t.tiles * t.batch * t.batches
                assert t.shared_bytes(p) <= SHARED_BYTES // t.min_ctas
                assert t in candidates(p, t.row_tiles) or t.row_tiles <= i + 1
        assert table.few_rows_tile(p, p.row_tile * len(found.plain) + 1) is None


def test_the_table_is_what_its_measurements_and_the_estimates_make():
    """`python benchmarks/kernels/tile_search.py` writes it."""
    stored = tables.file(ARCH).read_text(encoding="utf-8")
    assert text(with_estimates(json.loads(stored), [])) == stored
