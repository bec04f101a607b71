"""Linear layers, with weights in 8 bits or not. Our kernels read the weights faster than the library for few rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.layers.fused_linear import fused_linear, fuses
from stentor.layers.quantized import quantized_linear


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """x [..., K] @ weight.T [K, N] (+ bias [N]) (+ residual [..., N]) -> [..., N].

    With `scale` [N, groups] the weight is quantised.
    """
    if (scale is not None or x.dtype == weight.dtype) and fuses(x, weight, scales=[scale]):
        return fused_linear(x, weight, residual=residual, bias=bias, scale=scale)
    y = product(x, weight, bias) if scale is None else quantized_linear(x, weight, scale, bias)
    return y if residual is None else residual + y


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] @ weight.T [K, N] (+ bias [N]) of many rows, by the library.

    Where a row must not depend on their number (`kernels.batch_invariant`), our GEMM of any number of rows does it.
    """
    return kernels.gemm.linear(x, weight, bias) if kernels.is_invariant_gemm(x) else F.linear(x, weight, bias)


class Linear(nn.Linear):
    """`product` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return product(x, self.weight, self.bias)


class QuantizedLinear(nn.Linear):
    """x W^T + b, where W is `weight` in 8 bits times `weight_scale` [out, groups]. It takes the place of a layer.

    Made on the device of `base`, with its bias and without its weight. dtype: of the weight, a key of
    `quantized.LARGEST`. groups: scales of each output.
    """

    def __init__(self, base: nn.Linear, dtype: torch.dtype, groups: int = 1) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = base.in_features, base.out_features, base.bias
        self.dtype = base.weight.dtype  # of the activations
        self.weight = self._empty(base.weight.device, base.in_features, dtype)
        self.weight_scale = self._empty(base.weight.device, groups, torch.float32)

    def _empty(self, device: torch.device, columns: int, dtype: torch.dtype) -> nn.Parameter:
        return nn.Parameter(torch.empty(self.out_features, columns, dtype=dtype, device=device), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return linear(x, self.weight, self.bias, self.weight_scale)


def scale_of(layer: nn.Linear) -> Tensor | None:
    """The scales of a quantised layer's weight, else None."""
    return layer.weight_scale if isinstance(layer, QuantizedLinear) else None


def activation_dtype(layer: nn.Linear) -> torch.dtype:
    """The dtype that a layer's input and output have."""
    return layer.dtype if isinstance(layer, QuantizedLinear) else layer.weight.dtype


def some_outputs(layer: nn.Linear, x: Tensor, start: int, stop: int) -> Tensor:
    """Outputs `start` to `stop` - 1 of a layer without bias for x [..., in], neither packed nor with adapters."""
    scale = scale_of(layer)
    if scale is not None:
        return linear(x, layer.weight[start:stop], None, scale[start:stop])
    return product(x, layer.weight[start:stop])
