"""A linear layer followed by GELU (its tanh formula), in one kernel of the library on a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear_gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """x [..., in] -> [..., out]."""
    if x.is_cuda and layer.bias is not None:  # inside the product
        flat = torch._addmm_activation(layer.bias, x.flatten(0, -2), layer.weight.T, use_gelu=True)
        return flat.view(*x.shape[:-1], -1)
    return F.gelu(layer(x), approximate="tanh")
