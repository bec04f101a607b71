"""Fused kernels for the memory-bound parts of the VAE during training; the arithmetic is the modules' own."""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers import codec_blocks, linear
from stentor.layers.conv import CausalConv1d, StreamingState


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    y = x.float()
    return (y + torch.sin(alpha * y).pow(2) / (alpha + 1e-9)).to(x.dtype)


def _depthwise(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    taps = weight.shape[-1]
    length = x.shape[-1] - (taps - 1) * dilation
    y = bias[None, :, None].float()
    for k in range(taps):
        y = y + weight[None, :, 0, k, None] * x[..., k * dilation : k * dilation + length].float()
    return y.to(x.dtype)


def accelerate(vae: nn.Module, depthwise: bool) -> None:
    """Compile snake, and if wanted depthwise convolutions, in place. Serving never calls this."""
    torch._dynamo.config.force_parameter_static_shapes = False  # else one kernel per channel count
    torch._dynamo.config.recompile_limit = 64
    fused = torch.compile(_snake, dynamic=True)
    for module in vae.modules():
        if isinstance(module, codec_blocks.Snake):
            module.forward = types.MethodType(lambda self, x: fused(x, self.alpha), module)  # type: ignore[method-assign]
    if not depthwise:
        return
    compiled = torch.compile(_depthwise, dynamic=True)

    def forward(self: CausalConv1d, x: Tensor, state: StreamingState | None = None) -> Tensor:
        return compiled(self.with_history(x, state), self.weight, self.bias, self.dilation)

    for module in vae.modules():
        if isinstance(module, CausalConv1d) and module.groups > 1:
            module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]


def plain_products() -> None:
    """Make linear layers the library's alone: torch.compile cannot follow the choice of a kernel. Never in serving."""
    linear.product = F.linear  # type: ignore[assignment]
