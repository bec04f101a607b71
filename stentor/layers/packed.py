"""Layers of a CPU with weights in 16 bits, laid out as FBGEMM reads them: twice as fast as float32
for few rows.

Activations and sums stay in float32. A weight is rounded to float16, which changes the eleventh
bit. Convolutions of a streaming codec are products by such weights, in a third of the time of
float32's. FBGEMM wants activations as rows of channels, so all convolutions of a codec that was
packed return [B, C, n] views of [B, n, C] in memory.
"""

from __future__ import annotations

import warnings
from concurrent.futures import Executor
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d, CausalModule, StreamingState
from stentor.layers.linear import Linear

ENGINES = ("x86", "fbgemm")  # torch's engines that have this product
CAPABILITIES = ("AVX2", "AVX512")  # of the processor
PRODUCT = "fbgemm_linear_fp16_weight_fp32_activation"


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether layers can be packed: those in float32 of an x86 CPU with AVX2, by a torch with
    FBGEMM."""
    if device.type != "cpu" or dtype != torch.float32:
        return False
    if torch.backends.quantized.engine not in ENGINES:
        return False
    if torch.backends.cpu.get_cpu_capability() not in CAPABILITIES:
        return False
    return _has_product()


@cache
def _has_product() -> bool:
    """Whether torch has the product. A later release may drop it. torch warns of that once in a
    process, which is silenced here.

    The operator that is to stay takes 7 us more for a call (docs/log/2026-11.md).
    """
    if PRODUCT not in dir(torch):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(1, 1)
        packed = torch.fbgemm_pack_gemm_matrix_fp16(one)
        product = torch.fbgemm_linear_fp16_weight_fp32_activation(one, packed, None)
        return bool(product)


class PackedLinear(nn.Linear):
    """x W^T + b, W [out, in] in float16. Of `weight`, in float32 where `packs` requires it, shape
    and dtype are left."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        if bias is None:
            self.register_parameter("bias", None)
        else:
            self.bias = nn.Parameter(bias.detach(), requires_grad=False)
        self.weight = weight.detach().to("meta")  # no parameter, since no device can hold it
        self._packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] float32 -> [..., out]."""
        return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self._packed, self.bias)


def pack_linears(module: nn.Module) -> None:
    """Pack the `Linear` layers of `module` for which `packs` holds. Their weights are
    rounded to float16."""
    layers = {name: m for name, m in module.named_modules() if isinstance(m, Linear)}
    for name, layer in layers.items():
        _replace(module, name, PackedLinear(layer.weight, layer.bias))


def _replace(module: nn.Module, name: str, replacement: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    module.get_submodule(parent).register_module(last, replacement)


def pack_convolutions(codec: nn.Module, pool: Executor, taps: bool = False) -> None:
    """Pack the convolutions of `codec` for which `packs` holds. Weights of 1x1 and
    transposed ones are rounded to float16.

    pool: its threads do the work, which holds no lock of Python's. taps: those of longer kernels
    too, where they are dense and have several outputs.
    """
    kinds = (CausalConv1d, CausalConvTranspose1d)
    convolutions = {name: m for name, m in codec.named_modules() if type(m) in kinds}
    pack = partial(_packed, taps=taps)
    packed_convolutions = pool.map(pack, convolutions.values())
    for name, packed in zip(convolutions, packed_convolutions, strict=True):
        _replace(codec, name, packed)


def _is_product(conv: nn.Module) -> bool:
    """Whether each output is a product of one input column."""
    if isinstance(conv, CausalConv1d):
        return conv.weight.shape[2] == conv.groups == conv.stride == 1
    return isinstance(conv, CausalConvTranspose1d)


def _packed(conv: CausalModule, taps: bool) -> CausalModule:
    if isinstance(conv, CausalConvTranspose1d):
        return PackedConvTranspose1d(conv)
    assert isinstance(conv, CausalConv1d)
    if taps and conv.groups == conv.dilation == 1 and conv.weight.shape[0] > 1:
        return PackedTaps1d(conv)
    if _is_product(conv):
        return PackedConv1d(conv)
    return RowsConv1d(conv)


class _OnRows(CausalModule):
    """Replacement of `base`, with history in front of x [B, C, n] that lies as [B, n, C] in
    memory."""

    def __init__(self, base: CausalModule) -> None:
        CausalModule.__init__(self, base.channels, base.tail)
        self.key = base.key
        self.bias = base.bias

    def with_history(self, x: Tensor, state: StreamingState | None) -> Tensor:
        """`tail` columns of history before x, laid out as x is."""
        if not self.tail or state is None:
            return super().with_history(x, state)
        rows = state.concat_history(self.key, x.transpose(1, 2), self.tail, dim=1)
        return rows.transpose(1, 2)


class RowsConv1d(_OnRows, CausalConv1d):
    """A convolution of any kernel."""

    def __init__(self, base: CausalConv1d) -> None:
        _OnRows.__init__(self, base)
        self.weight = base.weight
        self.dilation = base.dilation
        self.groups = base.groups
        self.stride = base.stride

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        """x [B, in, n] -> [B, out, n / stride]."""
        # of one dimension, torch would lay it out as [B, C, n]
        x = self.with_history(x, state)[:, :, None]
        stride = (1, self.stride)
        dilation = (1, self.dilation)
        weight = self.weight[:, :, None]
        y = F.conv2d(x, weight, self.bias, stride, 0, dilation, self.groups)
        return y[:, :, 0]


class PackedConv1d(_OnRows, CausalConv1d):
    """A 1x1 convolution. Of `weight` only shape and dtype are left."""

    def __init__(self, base: CausalConv1d) -> None:
        _OnRows.__init__(self, base)
        self.weight = base.weight.detach().to("meta")
        self.dilation = 1
        self.groups = 1
        self.stride = 1
        self.product = PackedLinear(base.weight[:, :, 0])

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        """x [B, in, n] -> [B, out, n]."""
        y: Tensor = self.product(x.transpose(1, 2))
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.transpose(1, 2)


class PackedTaps1d(_OnRows, CausalConv1d):
    """A dense convolution of any kernel and stride: a product of all taps of an output, which lie
    side by side. Of `weight` only shape and dtype are left."""

    def __init__(self, base: CausalConv1d) -> None:
        _OnRows.__init__(self, base)
        self.weight = base.weight.detach().to("meta")
        self.dilation = 1
        self.groups = 1
        self.stride = base.stride
        by_tap = base.weight.detach().transpose(1, 2)
        self.product = PackedLinear(by_tap.flatten(1).contiguous(), base.bias)

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        """x [B, in, n] -> [B, out, n / stride]."""
        x = self.with_history(x, state).transpose(1, 2).contiguous()
        rows, time, channels = x.shape
        kernel = self.weight.shape[2]
        num_outputs = (time - kernel) // self.stride + 1
        size = (rows, num_outputs, kernel * channels)
        strides = (time * channels, self.stride * channels, 1)
        y: Tensor = self.product(x.as_strided(size, strides))
        return y.transpose(1, 2)


class PackedConvTranspose1d(_OnRows, CausalConvTranspose1d):
    """Up-sampling. Of `weight` only shape and dtype are left."""

    def __init__(self, base: CausalConvTranspose1d) -> None:
        _OnRows.__init__(self, base)
        self.weight = base.weight.detach().to("meta")
        self.stride = base.stride
        inputs, outputs, kernel = base.weight.shape
        rows = base.weight.detach().flatten(1).t().contiguous()  # two copies are faster than one
        by_tap = rows.view(outputs, kernel, inputs).transpose(0, 1)
        self.product = PackedLinear(by_tap.flatten(0, 1))

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        """x [B, in, n] -> [B, out, n * stride]."""
        x = self.with_history(x, state).transpose(1, 2)
        _, outputs, kernel = self.weight.shape
        taps = self.product(x).view(*x.shape[:2], kernel, outputs)
        if self.tail:
            present = taps[:, 1:, : self.stride]
            before = taps[:, :-1, self.stride :]
            taps = present + before
        y: Tensor = taps.flatten(1, 2)
        if self.bias is not None:
            y = y.add_(self.bias)
        return y.transpose(1, 2)
