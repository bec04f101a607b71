"""Products fused as on a Hopper GPU, of few rows and of some more by clusters, computed by torch: what modules do with them can be seen on a CPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch.nn.functional as F
from torch import Tensor

from stentor.kernels import hopper_gemm, linear
from stentor.kernels.cuda_cpp.product import ClusterTile, Tile
from stentor.kernels.hopper_gemm import WEIGHTS
from stentor.kernels.linear import Backend, Choice, Problem
from stentor.kernels.switches import CUDA_CPP
from stentor.layers.quantized import dequantize

FEW_ROWS = Choice(Backend.FEW_ROWS, Tile(1, 1, False, 1, 1, 1, 1))
CLUSTER = Choice(Backend.CLUSTER, ClusterTile(8, 1, 1, 3))


def fuse_products(
    monkeypatch: pytest.MonkeyPatch, rows: int, cluster_rows: int = 0
) -> Counter[str]:
    """Products of up to so many rows are fused, those of more, up to `cluster_rows`, by clusters.

    Returns the number of products, and of what was fused into them.
    """
    found: Counter[str] = Counter()

    def fused(
        x: Tensor, weight: Tensor, tile, norm=None, residual=None, gate=False, bias=None, scale=None
    ) -> Tensor:  # fmt: skip
        found.update(
            n
            for n, on in (("norm", norm), ("residual", residual), ("bias", bias))
            if on is not None
        )
        found.update(
            n
            for n, on in (("product", True), ("cluster", tile is CLUSTER.tile), ("gate", gate))
            if on
        )
        if scale is not None:
            found["scale"] += 1
            weight = dequantize(weight, scale, x.dtype)
        y = F.linear(
            x if norm is None else F.rms_norm(x, x.shape[-1:], norm[0], norm[1]), weight, bias
        )
        if gate:
            y, up = y.chunk(2, -1)
            y = F.silu(y) * up
        return y if residual is None else residual + y

    def select(*products: Problem) -> tuple[Choice, ...]:
        known = all(p.weight in WEIGHTS if p.groups else p.weight == p.dtype for p in products)
        if not known or products[0].rows > max(rows, cluster_rows):
            return tuple(linear.unfused(p) for p in products)
        return tuple(FEW_ROWS if p.rows <= rows else CLUSTER for p in products)

    monkeypatch.setattr(linear, "linear_kernels", lambda x: CUDA_CPP)
    monkeypatch.setattr(linear, "select", select)
    monkeypatch.setattr(hopper_gemm, "fused_linear", fused)
    return found
