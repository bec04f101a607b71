"""Linear layers, with weights in 8 bits or not, and fused with a norm before and a gate or residual
addition after.

`kernels.linear` chooses how they are computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels.linear import Backend, problem
from stentor.layers.norm import rms_norm
from stentor.layers.quantized import quantized_product


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    norm: tuple[Tensor, float, bool] | None = None,
    gate: bool = False,
    must_fuse: bool = False,
) -> Tensor:
    """norm(x [..., K]) @ weight.T [K, N] (+ bias [N]) (+ residual [..., N]) -> [..., N].

    `norm` is an RMSNorm as (weight, eps, weight_after_cast). With `gate`, the result is SwiGLU's
    silu(first half) * second half, [..., N / 2]. With `scale` [N, groups] the weight is quantised.
    must_fuse: the product is one of those that `kernels.linear.fuses` is true of.
    """
    has_norm = norm is not None
    product_problem = problem(x, weight, scale, has_norm, gate, must_fuse)
    (choice,) = kernels.linear.select(product_problem)
    if choice.backend is Backend.GEMV:
        return kernels.gemv.fused_linear(x, weight, norm, residual, gate, bias, scale=scale)
    if choice.tile is not None:
        if norm is None:
            normed = None
        else:
            normed = norm[:2]
        return kernels.hopper_gemm.fused_linear(
            x, weight, choice.tile, normed, residual, gate, bias, scale
        )
    if choice.backend is Backend.W8A8:
        assert scale is not None
        return kernels.w8a8_gemm.fused_linear(x, weight, scale, norm, residual, gate, bias)
    if norm is not None:
        x = rms_norm(x, *norm)
    y = _product(choice.backend, x, weight, bias, scale)
    if gate:
        y = swiglu(y)
    if residual is None:
        return y
    return residual + y


def _product(
    backend: Backend,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
) -> Tensor:
    if scale is not None:
        return quantized_product(backend, x, weight, scale, bias)
    if backend is Backend.ONE_ORDER:
        return kernels.gemm.linear(x, weight, bias)
    return F.linear(x, weight, bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K] @ weight.T [K, N] (+ bias [N]) of many rows, by the library.

    Where a row must not depend on their number (`kernels.batch_invariant`), our GEMM of any number
    of rows does it.
    """
    return _product(kernels.linear.any_rows(x), x, weight, bias, None)


def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [..., 2 N] -> silu(first half) * second half, [..., N]."""
    if kernels.enabled(kernels.Kernel.SILU, gate_up):
        return kernels.norm_rope.silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class Linear(nn.Linear):
    """`product` as a layer."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return product(x, self.weight, self.bias)


class QuantizedLinear(nn.Linear):
    """x W^T + b, where W is `weight` in 8 bits times `weight_scale` [out, groups]. It takes the
    place of a layer.

    Made on the device of `base`, with its bias and without its weight. dtype: of the weight, a key
    of `quantized.LARGEST`. groups: scales of each output.
    """

    def __init__(self, base: nn.Linear, dtype: torch.dtype, groups: int = 1) -> None:
        nn.Module.__init__(self)
        self.in_features = base.in_features
        self.out_features = base.out_features
        self.bias = base.bias
        self.dtype = base.weight.dtype  # of the activations
        self.weight = self._empty(base.weight.device, base.in_features, dtype)
        self.weight_scale = self._empty(base.weight.device, groups, torch.float32)

    def _empty(self, device: torch.device, columns: int, dtype: torch.dtype) -> nn.Parameter:
        empty = torch.empty(self.out_features, columns, dtype=dtype, device=device)
        return nn.Parameter(empty, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return linear(x, self.weight, self.bias, self.weight_scale)


def scale_of(layer: nn.Linear) -> Tensor | None:
    """The scales of a quantised layer's weight, else None."""
    if isinstance(layer, QuantizedLinear):
        return layer.weight_scale
    return None


def activation_dtype(layer: nn.Linear) -> torch.dtype:
    """The dtype that a layer's input and output have."""
    if isinstance(layer, QuantizedLinear):
        return layer.dtype
    return layer.weight.dtype


def some_outputs(layer: nn.Linear, x: Tensor, start: int, stop: int) -> Tensor:
    """Outputs `start` to `stop` - 1 of a layer without bias for x [..., in], neither packed nor
    with adapters."""
    scale = scale_of(layer)
    if scale is not None:
        return linear(x, layer.weight[start:stop], None, scale[start:stop])
    return product(x, layer.weight[start:stop])


def linear_gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """x [..., in] -> [..., out]."""
    if x.is_cuda and layer.bias is not None:  # inside the product
        rows = x.flatten(0, -2)
        y = torch._addmm_activation(layer.bias, rows, layer.weight.T, use_gelu=True)
        return y.view(*x.shape[:-1], -1)
    return F.gelu(layer(x), approximate="tanh")
