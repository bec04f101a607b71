"""Linear layers of a CPU with weights in 16 bits, laid out as FBGEMM reads them: twice as fast as float32 for few rows.

Activations and sums stay in float32. A weight is rounded to float16, which changes the eleventh bit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ENGINES = ("x86", "fbgemm")  # torch's engines that have this product
CAPABILITIES = ("AVX2", "AVX512")  # of the processor


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether layers can be packed: those in float32 of an x86 CPU with AVX2, by a torch with FBGEMM."""
    if device.type != "cpu" or dtype != torch.float32:
        return False
    return torch.backends.quantized.engine in ENGINES and torch.backends.cpu.get_cpu_capability() in CAPABILITIES


class PackedLinear(nn.Linear):
    """x W^T, W [out, in] in float16. Of `weight`, in float32 where `packs` says so, only shape and dtype are left."""

    def __init__(self, weight: Tensor) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.register_parameter("bias", None)
        self.weight = weight.detach().to("meta")  # no parameter, since no device can hold it
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.detach(), None)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] float32 -> [..., out]."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return out
