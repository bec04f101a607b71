"""Linear layers outside the transformer blocks. Our GEMV reads the weights faster than the library for few rows."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from stentor import kernels


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] @ weight.T [K, N] (+ bias [N]) -> [..., N]."""
    if kernels.is_gemv(x) and x.dtype == weight.dtype:
        return kernels.gemv.fused_linear(x, weight, bias=bias)
    return F.linear(x, weight, bias)
