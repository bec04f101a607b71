"""Linear layers of a CPU with weights in 16 bits, laid out as FBGEMM reads them: twice as fast as float32 for few rows.

Activations and sums stay in float32. A weight is rounded to float16, which changes the eleventh bit.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ENGINES = ("x86", "fbgemm")  # torch's engines that have this product
CAPABILITIES = ("AVX2", "AVX512")  # of the processor


def packs(layer: nn.Linear) -> bool:
    """Whether a layer can be packed: in float32 on an x86 CPU with AVX2, by a torch with FBGEMM."""
    if layer.weight.device.type != "cpu" or layer.weight.dtype != torch.float32:
        return False
    return torch.backends.quantized.engine in ENGINES and torch.backends.cpu.get_cpu_capability() in CAPABILITIES


class PackedLinear(nn.Linear):
    """x W^T + b, W in float16. It takes the place of `base`, a layer that `packs` is true of.

    Of `weight` only shape and dtype are left.
    """

    def __init__(self, base: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = base.in_features, base.out_features, base.bias
        self.weight = base.weight.detach().to("meta")  # no parameter, since no device can hold it
        self._packed = torch.ops.quantized.linear_prepack_fp16(base.weight.detach(), base.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] float32 -> [..., out]."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return out
