"""RMS normalisation with the two rounding orders that released models use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor import kernels


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
        if kernels.enabled(kernels.Kernel.NORM, x) and x.dtype == self.weight.dtype:
            return kernels.norm_rope.rms_norm(x, self.weight, self.eps, self.late_weight)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight if self.late_weight else (y * self.weight.float()).to(x.dtype)

    @property
    def terms(self) -> tuple[Tensor, float, bool]:
        """As kernels take it."""
        return self.weight, self.eps, self.late_weight

    def after(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """A residual branch joins: x + delta and its norm."""
        if kernels.enabled(kernels.Kernel.NORM, x) and x.dtype == delta.dtype == self.weight.dtype:
            return kernels.norm_rope.add_rms_norm(x, delta, self.weight, self.eps, self.late_weight)
        x = x + delta
        return x, self(x)
