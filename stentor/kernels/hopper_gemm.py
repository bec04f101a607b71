"""Linear layers of up to some hundreds of rows on Hopper GPUs, with norm, gate, bias and residual
addition inside.

The sources are CUDA C++, compiled by NVRTC, and explain how they work: skinny_gemm.cu and
skinny_int8_gemm.cu for few rows, whose results are the same bit for bit whatever other rows are
computed with them, and cluster_gemm.cu for more rows. There too a row keeps its bits, as long as K
is split alike. The tile, from `cuda_cpp.tables`, selects one. Weights may be int8, with
one scale for each output.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.launch import HOPPER, SOURCES, begin_compiling, load
from stentor.kernels.cuda_cpp.product import ClusterTile, ElementType, Product, Tile, WeightType
from stentor.kernels.switches import is_batch_invariant

DTYPES: dict[torch.dtype, ElementType] = {torch.bfloat16: "bf16", torch.float16: "f16"}
WEIGHTS: dict[torch.dtype, WeightType] = {torch.int8: "int8"}
"""Quantised weights. Others have the dtype of the activations."""
ALIGNMENT = 16
"""Bytes to whose multiples every row of an operand must begin."""


class Arguments(ctypes.Structure):
    """`Arguments` of common.cuh, which GEMMs take."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("x", "weight", "scale", "norm", "bias", "residual", "out")
        ),
        *((name, ctypes.c_int) for name in ("stride_x", "stride_residual", "rows")),
        ("eps", ctypes.c_float),
    ]


@dataclass(frozen=True)
class Operands:
    """x [rows, K], weight [N or 2 N, K], and what is fused: the norm's weight and eps, bias [N],
    residual [rows, N].

    A weight in int8 has a scale [N or 2 N, 1] float32.
    """

    x: Tensor
    weight: Tensor
    norm: tuple[Tensor, float] | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None
    scale: Tensor | None = None

    def arguments(self, out: Tensor) -> Arguments:
        """Arguments of a kernel."""
        norm, eps = (None, 0.0) if self.norm is None else self.norm
        if self.residual is None:
            stride_residual = 0
        else:
            stride_residual = self.residual.stride(0)
        operands = (self.x, self.weight, self.scale, norm, self.bias, self.residual, out)
        pointers = (None if t is None else t.data_ptr() for t in operands)
        return Arguments(*pointers, self.x.stride(0), stride_residual, len(self.x), eps)


def weight_type(weight: Tensor) -> WeightType:
    """Type of the weight, as a `Product` names it."""
    return WEIGHTS.get(weight.dtype, "same")


def aligned(rows: Tensor) -> Tensor:
    """Rows as the kernels read them."""
    strides = rows.stride(1) == 1 and rows.stride(0) * rows.element_size() % ALIGNMENT == 0
    if strides and rows.data_ptr() % ALIGNMENT == 0:
        return rows
    return rows.contiguous()


def fused_linear(
    x: Tensor,
    weight: Tensor,
    tile: Tile | ClusterTile,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual) for x [..., K], weight [N, K]: see
    `layers.linear`."""
    k = x.shape[-1]
    if gate:
        n = len(weight) // 2
    else:
        n = len(weight)
    fused = (norm is not None, gate, bias is not None, residual is not None)
    p = Product(k, n, DTYPES[x.dtype], *fused, weight_type(weight))
    rows = aligned(x.reshape(-1, k))
    if residual is None:
        added = None
    else:
        added = aligned(rows_of(residual, n))
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    _compile_others(p, tile.source(p), out.device.index, is_batch_invariant())
    launch(p, tile, Operands(rows, weight, norm, bias, added, scale), out)
    return out.view(*x.shape[:-1], n)


def launch(p: Product, tile: Tile | ClusterTile, o: Operands, out: Tensor) -> None:
    """One product, o.x [M, K] -> out [M, N].

    A step reads more weights than L2 holds, so lines of weights leave it before activations and
    keys, which the next kernels read.
    """
    source = SOURCES / f"{tile.source(p)}.cu"
    kernel = load(source, tile.macros(p), tile.threads(p), tile.shared_bytes(p), out.device.index)
    kernel(tile.grid(p, len(o.x)), o.arguments(out), read_once=o.weight)


@cache
def _compile_others(p: Product, source: str, device: int, one_order: bool) -> None:
    """Begin to compile a source for other numbers of rows, which other graphs will need."""
    table = tables.of(HOPPER)
    assert table is not None
    for tile in table.tiles(p, one_order):
        if tile.source(p) == source:
            begin_compiling(SOURCES / f"{source}.cu", tile.macros(p), device)
