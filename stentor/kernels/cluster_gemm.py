"""Linear layers of some dozens to some hundreds of rows on Hopper GPUs, with norm, gate, bias and residual inside.

The source is CUDA C++ (cluster_gemm.cu says how it works), compiled by NVRTC. It serves the shapes and numbers of rows
that were measured (`cuda_cpp.measured_clusters`). There it takes less time than the library's GEMM with the kernels for
what is fused here.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from stentor.kernels.buffers import rows_of
from stentor.kernels.cuda_cpp.cluster import ClusterTile
from stentor.kernels.cuda_cpp.launch import begin_compiling, load, serves
from stentor.kernels.cuda_cpp.measured_clusters import tile, tiles
from stentor.kernels.cuda_cpp.nvrtc import SOURCES
from stentor.kernels.cuda_cpp.operands import DTYPES, Operands, aligned, takes, weight_type
from stentor.kernels.cuda_cpp.product import Product

SOURCE = SOURCES / "cluster_gemm.cu"


def fits(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> bool:
    """Whether the kernel multiplies x [..., K] by `weight` [N, K], with a gate or without, faster than others do.

    scale: [N, groups] of a quantised weight.
    """
    measured = tile(weight.shape[1], len(weight), x.numel() // x.shape[-1], weight_type(weight)) is not None
    return measured and takes(x, weight, scale) and serves(weight.device.index)


def fused_linear(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual) for x [..., K] that `fits`, weight [N, K]: see `layers.fused_linear`."""
    k = x.shape[-1]
    n = len(weight) // 2 if gate else len(weight)
    fused = (norm is not None, gate, bias is not None, residual is not None)
    p = Product(k, n, DTYPES[x.dtype], *fused, weight_type(weight))
    rows = aligned(x.reshape(-1, k))
    added = None if residual is None else aligned(rows_of(residual, n))
    chosen = tile(k, len(weight), len(rows), p.weight)
    assert chosen is not None, "x fits"
    out = torch.empty(len(rows), n, dtype=x.dtype, device=x.device)
    launch(p, chosen, Operands(rows, weight, norm, bias, added, scale), out)
    return out.view(*x.shape[:-1], n)


def launch(p: Product, t: ClusterTile, o: Operands, out: Tensor) -> None:
    """One product, o.x [M, K] -> out [M, N]."""
    _compile_others(p, out.device.index)
    kernel = load(SOURCE, t.macros(p), t.threads, t.shared_bytes(p), out.device.index)
    kernel(t.grid(p, len(o.x)), o.arguments(out))


@cache
def _compile_others(p: Product, device: int) -> None:
    """Begin to compile a product's kernels for other numbers of rows, which other graphs will ask for."""
    for t in tiles(p.k, p.weight_rows, p.weight):
        begin_compiling(SOURCE, t.macros(p), device)
