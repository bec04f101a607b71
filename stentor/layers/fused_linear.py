"""Linear layers fused with a norm before and a gate, bias or residual addition after: which kernel computes them.

A few rows are a GEMM that reads the weights once, and some more are one of clusters, on a GPU that has them. One or two
are a GEMV elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stentor import kernels


def may_fuse(x: Tensor) -> bool:
    """Whether any kernel takes x [..., K]: without one, weights need not be looked at."""
    return kernels.is_gemv(x) or kernels.is_skinny(x) or kernels.is_cluster(x)


def fuses(x: Tensor, *weights: Tensor, scales: Sequence[Tensor | None] = ()) -> bool:
    """Whether `fused_linear` takes x [..., K] and what follows from it, and is faster than the library.

    weights: [N, K] of one product after the other. scales: of each weight, [N, groups] of a quantised one.
    """
    if kernels.is_gemv(x):
        return True
    each = list(zip(weights, scales or [None] * len(weights), strict=True))
    if all(_is_cluster(x, *one) for one in each):
        return True
    return all(_is_cluster(x, *one) or _is_skinny(x, *one) for one in each) and kernels.skinny_gemm.pays(x, *weights)


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
    normed = None if norm is None else norm[:2]
    if _is_cluster(x, weight, scale):
        return kernels.cluster_gemm.fused_linear(x, weight, normed, residual, gate, bias, scale)
    if _is_skinny(x, weight, scale):
        return kernels.skinny_gemm.fused_linear(x, weight, normed, residual, gate, bias, scale)
    return kernels.gemv.fused_linear(x, weight, norm, residual, gate, bias, scale=scale)


def _is_skinny(x: Tensor, weight: Tensor, scale: Tensor | None) -> bool:
    return kernels.is_skinny(x) and kernels.skinny_gemm.fits(x, weight, scale)


def _is_cluster(x: Tensor, weight: Tensor, scale: Tensor | None) -> bool:
    return kernels.is_cluster(x) and kernels.cluster_gemm.fits(x, weight, scale)
