"""Linear layers of a CPU with weights in 16 bits, laid out as FBGEMM reads them: twice as fast as float32 for few rows.

Activations and sums stay in float32. A weight is rounded to float16, which changes the eleventh bit.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor, nn

from stentor.layers.linear import Linear

ENGINES = ("x86", "fbgemm")  # torch's engines that have this product
CAPABILITIES = ("AVX2", "AVX512")  # of the processor
PRODUCT = "fbgemm_linear_fp16_weight_fp32_activation"


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether layers can be packed: those in float32 of an x86 CPU with AVX2, by a torch with FBGEMM."""
    if device.type != "cpu" or dtype != torch.float32 or torch.backends.quantized.engine not in ENGINES:
        return False
    return torch.backends.cpu.get_cpu_capability() in CAPABILITIES and _has_product()


@cache
def _has_product() -> bool:
    """Whether torch has the product. It may leave one day, and torch says so once in a process, here unheard.

    The operator that is to stay takes 7 us more for a call (docs/log/2026-11.md).
    """
    if PRODUCT not in dir(torch):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(1, 1)
        return bool(torch.fbgemm_linear_fp16_weight_fp32_activation(one, torch.fbgemm_pack_gemm_matrix_fp16(one), None))


class PackedLinear(nn.Linear):
    """x W^T + b, W [out, in] in float16. Of `weight`, in float32 where `packs` says so, shape and dtype are left."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))
        self.weight = weight.detach().to("meta")  # no parameter, since no device can hold it
        self._packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] float32 -> [..., out]."""
        return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self._packed, self.bias)


def pack_linears(module: nn.Module) -> None:
    """Let the `Linear` layers of `module`, which `packs` is true of, run so. Their weights are rounded to float16."""
    for name, layer in [(n, m) for n, m in module.named_modules() if isinstance(m, Linear)]:
        packed = PackedLinear(layer.weight, layer.bias)
        module.get_submodule(name.rpartition(".")[0]).register_module(name.rpartition(".")[2], packed)
