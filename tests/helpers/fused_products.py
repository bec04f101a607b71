"""GEMMs of few rows, and of some more by clusters, as on a Hopper GPU, computed by torch: what modules do with them can be seen on a CPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.kernels import cluster_gemm, skinny_gemm
from stentor.kernels.cuda_cpp.operands import WEIGHTS
from stentor.layers.quantized import dequantize


def fuse_products(monkeypatch: pytest.MonkeyPatch, rows: int, cluster_rows: int = 0) -> Counter[str]:
    """Products of up to so many rows are fused, those of more, up to `cluster_rows`, by clusters.

    Returns the number of products, and of what was fused into them.
    """
    found: Counter[str] = Counter()

    def fused(x: Tensor, weight: Tensor, norm=None, residual=None, gate=False, bias=None, scale=None) -> Tensor:
        found.update(n for n, on in (("norm", norm), ("residual", residual), ("bias", bias)) if on is not None)
        found["product"] += 1
        if scale is not None:
            found["scale"] += 1
            weight = dequantize(weight, scale, x.dtype)
        y = F.linear(x if norm is None else F.rms_norm(x, x.shape[-1:], norm[0], norm[1]), weight, bias)
        if gate:
            found["gate"] += 1
            y, up = y.chunk(2, -1)
            y = F.silu(y) * up
        return y if residual is None else residual + y

    def fits(x: Tensor, weight: Tensor, scale: Tensor | None) -> bool:
        return weight.dtype == x.dtype if scale is None else weight.dtype in WEIGHTS

    def by_cluster(*args: object, **named: object) -> Tensor:
        found["cluster"] += 1
        return fused(*args, **named)

    def fits_cluster(x: Tensor, weight: Tensor, scale: Tensor | None) -> bool:
        return rows < x.numel() // x.shape[-1] <= cluster_rows and fits(x, weight, scale)

    monkeypatch.setattr(kernels, "is_cluster", lambda x: cluster_rows > 0)
    monkeypatch.setattr(cluster_gemm, "fits", fits_cluster)
    monkeypatch.setattr(cluster_gemm, "fused_linear", by_cluster)
    monkeypatch.setattr(kernels, "is_skinny", lambda x: x.numel() <= rows * x.shape[-1])
    monkeypatch.setattr(skinny_gemm, "fits", fits)
    monkeypatch.setattr(skinny_gemm, "pays", lambda x, *weights: True)
    monkeypatch.setattr(skinny_gemm, "fused_linear", fused)
    return found
