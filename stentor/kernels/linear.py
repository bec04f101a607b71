"""Linear layers: which kernel computes a product, in one function. This module does not import
Triton.

A layer describes its product, or the products of a block that run one after the other, and calls
`select` once. Where a backend is fused, norm, gate, bias and residual addition are part of the
product. The others leave them to the layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.launch import HOPPER, available_on
from stentor.kernels.cuda_cpp.product import ClusterTile, Product, Tile
from stentor.kernels.hopper_gemm import ALIGNMENT, DTYPES, WEIGHTS
from stentor.kernels.switches import (
    CUDA_CPP,
    NO_KERNELS,
    OFF,
    Kernel,
    enabled,
    is_batch_invariant,
    linear_kernels,
)

GEMV_ROWS = 2
"""Rows that our GEMV takes. It has no tensor cores."""
QUANTIZED_ROWS = 64
"""Rows up to which our GEMM reads weights in 8 bits. With more rows, time to make them 16 bits is
small."""
W8A8_ROWS = 17
"""Rows from which activations are made int8. Fewer wait for weights, and kernels that widen them
make one launch."""
CPU_INPUTS = 16
"""Inputs that torch's int8 product reads at a time. It reads past the end of rows of another
length."""


class Backend(StrEnum):
    """The implementations of a product."""

    CLUSTER = "cluster"
    """hopper_gemm with cluster_gemm.cu."""
    FEW_ROWS = "few rows"
    """hopper_gemm with skinny_gemm.cu or skinny_int8_gemm.cu."""
    GEMV = "gemv"
    """Triton, one or two rows."""
    EIGHT_BITS = "8 bits"
    """Triton, a few rows and weights in 8 bits: gemm."""
    W8A8 = "w8a8"
    """Triton, many rows, int8 of weights and activations: w8a8_gemm."""
    ONE_ORDER = "one order"
    """Triton, any number of rows, with each row's sums in one order: gemm. For products that
    clusters do not take."""
    CPU_INT8 = "cpu int8"
    """torch's product with weights in int8."""
    LIBRARY = "library"
    """torch's product, with weights in 8 bits made wide before."""


class Choice(NamedTuple):
    """A backend, and its tile if tables have one."""

    backend: Backend
    tile: Tile | ClusterTile | None = None

    @property
    def fused(self) -> bool:
        return self.tile is not None or self.backend in (Backend.GEMV, Backend.W8A8)


class Problem(NamedTuple):
    """x [rows, k] @ weight [n, k].T and what is around it. With `gate`, SwiGLU makes n / 2 outputs
    of n.

    groups: scales of an output of a quantised weight, else 0. device: "cpu" or "cuda".
    kernels: those that may run here and can read the weight where it lies.
    invariant: no row may depend on how many there are. must_fuse: the layer leaves norm and gate to
    the product.
    """

    rows: int
    k: int
    n: int
    dtype: torch.dtype
    weight: torch.dtype
    groups: int
    norm: bool
    gate: bool
    device: str
    kernels: frozenset[Kernel]
    invariant: bool = False
    must_fuse: bool = False

    @property
    def product(self) -> Product | None:
        """Describe it to the sources in CUDA C++. None: they do not take these types, or several
        scales."""
        if self.groups == 1:
            weight = WEIGHTS.get(self.weight)
        elif self.groups == 0:
            weight = "same"
        else:
            weight = None
        if weight is None or self.dtype not in DTYPES:
            return None
        return Product(
            self.k,
            self.n // (1 + self.gate),
            DTYPES[self.dtype],
            self.norm,
            self.gate,
            weight=weight,
        )


def problem(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None = None,
    norm: bool = False,
    gate: bool = False,
    must_fuse: bool = False,
) -> Problem:
    """Describe the product of x [..., k] and a weight [n, k], quantised with scale [n, groups] or
    not."""
    n, k = weight.shape
    if scale is not None or weight.dtype == x.dtype:
        kernels = linear_kernels(x)
    else:
        kernels = NO_KERNELS
    if CUDA_CPP & kernels and not (
        x.is_cuda and available_on(x.device.index) and _aligned(weight, scale)
    ):
        kernels -= CUDA_CPP
    rows = x.numel() // x.shape[-1]
    groups = 0 if scale is None else scale.shape[1]
    invariant = is_batch_invariant()
    dtypes = (x.dtype, weight.dtype)
    device = x.device.type
    return Problem(rows, k, n, *dtypes, groups, norm, gate, device, kernels, invariant, must_fuse)


def measured_on(device: torch.device) -> bool:
    """Whether products on a device are those of the tables (Hopper's)."""
    return device.type == "cuda" and CUDA_CPP.isdisjoint(OFF) and available_on(device.index)


def _aligned(weight: Tensor, scale: Tensor | None) -> bool:
    """Whether bulk copies can read the operands."""
    aligned = weight.is_contiguous() and weight.data_ptr() % ALIGNMENT == 0
    return aligned and (scale is None or scale.data_ptr() % ALIGNMENT == 0)


def fuses(x: Tensor, weights: Iterable[tuple[Tensor, Tensor | None]]) -> bool:
    """Whether norm, gate and additions are fused into the products of x [..., k], and of what
    follows from it, with one weight and its scale after the other."""
    if not linear_kernels(x):  # as on a CPU, where this is asked often
        return False
    return select(*(problem(x, weight, scale) for weight, scale in weights))[0].fused


@lru_cache(maxsize=1 << 13)
def select(*products: Problem) -> tuple[Choice, ...]:
    """Choose how to compute products that run one after the other. All are fused, or none is."""
    first = products[0]
    plain = tuple(unfused(p) for p in products)
    # Other tiles follow from the number of rows, on which no row may depend here.
    if first.invariant:
        fixed = tuple(choice for p in products if (choice := _one_order(p)) is not None)
        if len(fixed) == len(products):
            return fixed
        return plain
    tiles = [_tile(p) for p in products]
    # One or two rows take the time of reading the weights. GEMV does no more than that, for every
    # shape.
    if 0 < first.rows <= GEMV_ROWS and Kernel.GEMV in first.kernels:
        return tuple(tile or Choice(Backend.GEMV) for tile in tiles)
    fused = tuple(tile or choice for tile, choice in zip(tiles, plain, strict=True))
    # The tables do not have the shape or so many rows, or there are none for this GPU.
    if not all(choice.fused for choice in fused):
        return plain
    # The layer has asked for the whole block, and leaves norm and gate to its products.
    if first.must_fuse:
        return fused
    # Clusters are in the table only where they were faster.
    if all(choice.backend is not Backend.FEW_ROWS for choice in fused):
        return fused
    # With more rows the kernels for few rows lose against the library, by the times of all
    # products.
    timed = [
        p for p, choice in zip(products, fused, strict=True) if choice.backend is not Backend.W8A8
    ]
    if _faster_than_library(timed):
        return fused
    return plain


def _one_order(p: Problem) -> Choice | None:
    """Clusters that split K alike whatever the number of rows. No rows are left to other
    kernels."""
    table = tables.of(HOPPER)
    product = p.product
    if table is None or product is None or not p.kernels >= CUDA_CPP:
        return None
    tile = table.one_order_tile(product, p.rows)
    if tile is None:
        return None
    return Choice(Backend.CLUSTER, tile)


def _tile(p: Problem) -> Choice | None:
    table = tables.of(HOPPER)
    product = p.product
    if table is None or product is None or Kernel.SKINNY_GEMM not in p.kernels:
        return None
    # Clusters are in the table only where they are faster than the kernels for few rows.
    if (
        Kernel.CLUSTER_GEMM in p.kernels
        and (cluster := table.cluster_tile(product, p.rows)) is not None
    ):
        return Choice(Backend.CLUSTER, cluster)
    tile = table.few_rows_tile(product, p.rows)
    if tile is None:
        return None
    return Choice(Backend.FEW_ROWS, tile)


def _faster_than_library(products: Sequence[Problem]) -> bool:
    table = tables.of(HOPPER)
    tiled = [(product, p.rows) for p in products if (product := p.product) is not None]
    assert table is not None
    ours = sum(table.microseconds(product, rows) for product, rows in tiled)
    return ours <= sum(table.library_microseconds(product) for product, _ in tiled)


def unfused(p: Problem) -> Choice:
    """Choose how to compute a product alone."""
    if p.groups:
        # Tensor cores take int8 of both twice as fast as 16 bits, and nothing is widened.
        int8 = (
            Kernel.W8A8 in p.kernels
            and p.weight == torch.int8
            and p.groups == 1
            and p.dtype in DTYPES
        )
        if int8 and p.rows >= W8A8_ROWS and not p.invariant:
            return Choice(Backend.W8A8)
        # Few rows take the time of reading the weights. The library cannot read 8 bits.
        if Kernel.QUANTIZED in p.kernels and (p.invariant or p.rows <= QUANTIZED_ROWS):
            return Choice(Backend.EIGHT_BITS)
        # torch has a product for a CPU, with one scale for each output. It rounds activations, so
        # it must not depend on the rows: a seed would give other speech in a larger batch.
        one_scale = p.weight == torch.int8 and p.groups == 1
        rounds = p.dtype in (torch.float32, torch.bfloat16)
        if p.device == "cpu" and p.rows and p.k % CPU_INPUTS == 0 and one_scale and rounds:
            return Choice(Backend.CPU_INT8)
        return Choice(Backend.LIBRARY)
    # The library splits some sums by the number of rows (docs/design/gpu_facts.md).
    return Choice(
        Backend.ONE_ORDER if p.invariant and Kernel.GEMM in p.kernels else Backend.LIBRARY
    )


def any_rows(x: Tensor) -> Backend:
    """Choose for x of any number of rows, often many: kernels for few rows are not considered."""
    if is_batch_invariant() and enabled(Kernel.GEMM, x):
        return Backend.ONE_ORDER
    return Backend.LIBRARY
