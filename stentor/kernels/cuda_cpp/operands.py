"""Operands of the GEMMs in CUDA C++, in the types and at the addresses that they take."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from stentor.kernels.cuda_cpp.product import ElementType, WeightType

DTYPES: dict[torch.dtype, ElementType] = {torch.bfloat16: "bf16", torch.float16: "f16"}
WEIGHTS: dict[torch.dtype, WeightType] = {torch.int8: "int8"}
"""Quantised weights. Others have the dtype of the activations."""
ALIGNMENT = 16
"""Bytes to whose multiples every row of an operand must begin."""


class Arguments(ctypes.Structure):
    """`Arguments` of common.cuh, which GEMMs take."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scale", "norm", "bias", "residual", "out")),
        *((name, ctypes.c_int) for name in ("stride_x", "stride_residual", "rows")),
        ("eps", ctypes.c_float),
    ]


@dataclass(frozen=True)
class Operands:
    """x [rows, K], weight [N or 2 N, K], and what is fused: the norm's weight and eps, bias [N], residual [rows, N].

    A weight in int8 has a scale [N or 2 N, 1] float32.
    """

    x: Tensor
    weight: Tensor
    norm: tuple[Tensor, float] | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None
    scale: Tensor | None = None

    def arguments(self, out: Tensor) -> Arguments:
        """Arguments of a kernel."""
        norm, eps = (None, 0.0) if self.norm is None else self.norm
        stride_residual = 0 if self.residual is None else self.residual.stride(0)
        pointers = (self.x, self.weight, self.scale, norm, self.bias, self.residual, out)
        return Arguments(*map(_pointer, pointers), self.x.stride(0), stride_residual, len(self.x), eps)


def weight_type(weight: Tensor) -> WeightType:
    """Type of the weight, as a `Product` names it."""
    return WEIGHTS.get(weight.dtype, "same")


def aligned(rows: Tensor) -> Tensor:
    """Rows as the kernels read them."""
    strides = rows.stride(1) == 1 and rows.stride(0) * rows.element_size() % ALIGNMENT == 0
    return rows if strides and rows.data_ptr() % ALIGNMENT == 0 else rows.contiguous()


def _pointer(t: Tensor | None) -> int | None:
    return None if t is None else t.data_ptr()
