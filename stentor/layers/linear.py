"""Products outside the transformer blocks: one or two rows by our own kernel, which reads the weights faster."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from stentor import kernels


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] @ weight.T [K, N] (+ bias [N])."""
    if kernels.is_gemv(x) and x.dtype == weight.dtype:
        return kernels.gemv.fused_linear(x, weight, bias=bias)
    return F.linear(x, weight, bias)
