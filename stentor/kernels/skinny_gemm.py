"""Linear layers of a few rows on Hopper GPUs, with the same sums in the same order for any number of rows.

Norm, gate, bias and residual addition are part of the product, as in `kernels.gemv`. A row of the result is the same
bit for bit whatever other rows are computed with it. The sources are CUDA C++ (skinny_gemm.cu says how they work),
compiled by NVRTC. They are faster than the library's GEMM with up to 16 to 40 rows, and slower with more
(docs/decisions.md). Weights may be int8, with one scale for each output.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.cuda_cpp import tiles
from stentor.kernels.cuda_cpp.launch import begin_compiling, load, serves
from stentor.kernels.cuda_cpp.nvrtc import SOURCES
from stentor.kernels.cuda_cpp.operands import DTYPES, Operands, aligned, takes, weight_type
from stentor.kernels.cuda_cpp.product import GROUP, Product, WeightType
from stentor.kernels.switches import SKINNY_ROWS

SOURCE: dict[WeightType, Path] = {"same": SOURCES / "skinny_gemm.cu", "int8": SOURCES / "skinny_int8_gemm.cu"}


def fits(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> bool:
    """Whether the kernels multiply x [..., K] by `weight` [N, K], with a gate or without, on its GPU.

    scale: [N, groups] of a quantised weight.
    """
    n, k = weight.shape
    return n % 16 == 0 and k % GROUP == 0 and takes(x, weight, scale) and serves(weight.device.index)


def pays(x: Tensor, *weights: Tensor) -> bool:
    """Whether products of x [..., K], one after the other with each of these weights, are faster than the library's."""
    products = (Product(w.shape[1], len(w), DTYPES[x.dtype], weight=weight_type(w)) for w in weights)
    return tiles.pays(tuple(products), x.numel() // x.shape[-1])


def fused_linear(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual) for x [..., K], weight [N, K]: see `layers.fused_linear`."""
    k = x.shape[-1]
    n = len(weight) // 2 if gate else len(weight)
    fused = (norm is not None, gate, bias is not None, residual is not None)
    p = Product(k, n, DTYPES[x.dtype], *fused, weight_type(weight))
    rows = aligned(x.reshape(-1, k))
    added = None if residual is None else rows_of(residual, n)
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    _launch(p, Operands(rows, weight, norm, bias, added, scale), out)
    return out.view(*x.shape[:-1], n)


def _launch(p: Product, o: Operands, out: Tensor) -> None:
    t = tiles.tile(p, len(o.x))
    _compile_others(p, out.device.index)
    kernel = load(SOURCE[p.weight], t.macros(p), p.splits * 32, t.shared_bytes(p), out.device.index)
    kernel((t.ctas(p), -(-len(o.x) // (p.row_tile * t.row_tiles))), o.arguments(out))


@cache
def _compile_others(p: Product, device: int) -> None:
    """Begin to compile a product's kernels for other numbers of rows, which other graphs will ask for."""
    for rows in range(p.row_tile, (SKINNY_ROWS if p.weight == "same" else tiles.INT8_ROWS) + 1, p.row_tile):
        begin_compiling(SOURCE[p.weight], tiles.tile(p, rows).macros(p), device)
