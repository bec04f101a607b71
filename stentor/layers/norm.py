"""RMS normalisation with the two rounding orders that released models use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor import kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_after_cast: bool) -> Tensor:
    """`RMSNorm` of x [..., size] by weight [size]."""
    if kernels.enabled(kernels.Kernel.NORM, x) and x.dtype == weight.dtype:
        return kernels.norm_rope.rms_norm(x, weight, eps, weight_after_cast)
    # the same operations in one call
    if x.dtype == weight.dtype == torch.float32 and not x.is_cuda:
        return torch.rms_norm(x, weight.shape, weight, eps)
    y = x.float()
    mean_square = y.pow(2).mean(-1, keepdim=True)
    y = y * torch.rsqrt(mean_square + eps)
    if weight_after_cast:
        return y.to(x.dtype) * weight
    return (y * weight.float()).to(x.dtype)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension.

    The statistics are float32. With `weight_after_cast`, the result is rounded to the model's dtype
    and then multiplied by the weight in that dtype, as in Llama. Without, the product is formed in
    float32, which is torch's own order.
    """

    def __init__(self, size: int, eps: float, weight_after_cast: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.weight_after_cast = weight_after_cast

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, *self.kernel_args)

    @property
    def kernel_args(self) -> tuple[Tensor, float, bool]:
        """The arguments of kernels that apply this norm: (weight, eps, weight_after_cast)."""
        return self.weight, self.eps, self.weight_after_cast

    def add_norm(self, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """(x + delta, its norm): a residual branch joins. (x, its norm) where `delta` is None."""
        if delta is None:
            return x, self(x)
        one_dtype = x.dtype == delta.dtype == self.weight.dtype
        if one_dtype and kernels.enabled(kernels.Kernel.NORM, x):
            return kernels.norm_rope.add_rms_norm(x, delta, *self.kernel_args)
        x = x + delta
        return x, self(x)
