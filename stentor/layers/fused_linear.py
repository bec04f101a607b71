"""Linear layers fused with a norm before and a gate, bias or residual addition after: which kernel computes them.

A few rows are a GEMM that reads the weights once, on a GPU that has it. One or two are a GEMV elsewhere.
"""

from __future__ import annotations

from torch import Tensor

from stentor import kernels


def fuses(x: Tensor, *weights: Tensor) -> bool:
    """Whether `fused_linear` takes x [..., K] and what follows from it, and is faster than the library.

    weights: [N, K] of one product after the other, quantised ones too.
    """
    if kernels.is_gemv(x):
        return True
    return all(_is_skinny(x, weight) for weight in weights) and kernels.skinny_gemm.pays(x, *weights)


def fused_linear(
    x: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, float, bool] | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """norm(x) @ weight.T (+ bias) (+ residual), for x [..., K] that `fuses` is true of, weight [N, K].

    `norm` is an RMSNorm as (weight, eps, weight_after_cast). With `gate`, the result is SwiGLU's silu(first half) *
    second half, [..., N / 2], without bias. With `scale` [N, groups] float32 the weight is quantised.
    """
    if _is_skinny(x, weight):
        return kernels.skinny_gemm.fused_linear(x, weight, None if norm is None else norm[:2], residual, gate, bias)
    return kernels.gemv.fused_linear(x, weight, norm, residual, gate, bias, scale=scale)


def _is_skinny(x: Tensor, weight: Tensor) -> bool:
    return kernels.is_skinny(x) and weight.dtype == x.dtype and kernels.skinny_gemm.fits(weight)
