"""Linear layers of up to some hundreds of rows on Hopper GPUs, with norm, gate, bias and residual addition inside.

The sources are CUDA C++, compiled by NVRTC, and say how they work: skinny_gemm.cu and skinny_int8_gemm.cu for few rows,
whose results are the same bit for bit whatever other rows are computed with them, and cluster_gemm.cu for more rows.
The tile, from `cuda_cpp.tables`, says which one it is. Weights may be int8, with one scale for each output.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.cuda_cpp import tables
from stentor.kernels.cuda_cpp.cluster import ClusterTile
from stentor.kernels.cuda_cpp.launch import HOPPER, begin_compiling, load
from stentor.kernels.cuda_cpp.nvrtc import SOURCES
from stentor.kernels.cuda_cpp.operands import DTYPES, Operands, aligned, weight_type
from stentor.kernels.cuda_cpp.product import Product, Tile


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
    """norm(x) @ weight.T (+ bias) (+ residual) for x [..., K], weight [N, K]: see `layers.linear`."""
    k = x.shape[-1]
    n = len(weight) // 2 if gate else len(weight)
    fused = (norm is not None, gate, bias is not None, residual is not None)
    p = Product(k, n, DTYPES[x.dtype], *fused, weight_type(weight))
    rows = aligned(x.reshape(-1, k))
    added = None if residual is None else aligned(rows_of(residual, n))
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    _compile_others(p, tile.source(p), out.device.index)
    launch(p, tile, Operands(rows, weight, norm, bias, added, scale), out)
    return out.view(*x.shape[:-1], n)


def launch(p: Product, tile: Tile | ClusterTile, o: Operands, out: Tensor) -> None:
    """One product, o.x [M, K] -> out [M, N]."""
    source = SOURCES / f"{tile.source(p)}.cu"
    kernel = load(source, tile.macros(p), tile.threads(p), tile.shared_bytes(p), out.device.index)
    kernel(tile.grid(p, len(o.x)), o.arguments(out))


@cache
def _compile_others(p: Product, source: str, device: int) -> None:
    """Begin to compile a source for other numbers of rows, which other graphs will ask for."""
    table = tables.of(HOPPER)
    assert table is not None
    for tile in table.tiles(p):
        if tile.source(p) == source:
            begin_compiling(SOURCES / f"{source}.cu", tile.macros(p), device)
