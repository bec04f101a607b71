"""RMS normalisation with the two rounding orders that released models use."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension.

    The statistics are float32. `late_weight` rounds to the model's dtype first and multiplies by the weight in that
    dtype (the Llama lineage); otherwise the product is formed in float32 (torch's own order).
    """

    def __init__(self, size: int, eps: float, late_weight: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.late_weight = late_weight

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight if self.late_weight else (y * self.weight.float()).to(x.dtype)
