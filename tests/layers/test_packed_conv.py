"""Convolutions of a codec on a CPU with weights in 16 bits."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from stentor.layers.codec_blocks import UpsampleBlock
from stentor.layers.conv import CausalConv1d, StreamingState, state_columns
from stentor.layers.packed import (
    PackedConv1d,
    PackedConvTranspose1d,
    PackedLinear,
    PackedTaps1d,
    RowsConv1d,
    pack_convolutions,
    packs,
)
from stentor.models.dummy import random_init

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not packs(CPU, torch.float32), reason="this CPU or torch has no such product"
)


class Codec(nn.Module):
    """A convolution with a kernel, two blocks as a decoder has them, and a convolution with fewer channels."""

    def __init__(self) -> None:
        super().__init__()
        dense = UpsampleBlock(12, 8, 3), UpsampleBlock(8, 6, 2, depthwise=True)
        self.layers = nn.ModuleList(
            [CausalConv1d(5, 12, 3), *dense, CausalConv1d(6, 2, 7, bias=False)]
        )

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, state)
        return x


@pytest.fixture
def codec() -> Codec:
    """With weights that are numbers of float16."""
    net = Codec().requires_grad_(False)
    random_init(net, 3)
    for p in net.parameters():
        p.copy_(p.half())
    return net


def pack(net: nn.Module, taps: bool = False) -> nn.Module:
    with ThreadPoolExecutor(2) as pool:
        pack_convolutions(net, pool, taps)
    return net


def chunks(net: nn.Module, x: Tensor, sizes: list[int]) -> Tensor:
    """The output of x, given so many columns at a time."""
    state = {name: column.rows(len(x), CPU) for name, column in state_columns(net).items()}
    parts = []
    for part in x.split(sizes, dim=2):
        streaming = StreamingState(state)
        parts.append(net(part, streaming))
        state = streaming.new
    return torch.cat(parts, dim=2)


def test_outputs_are_those_of_float32_in_chunks_and_whole(codec: Codec) -> None:
    x = torch.randn(2, 5, 11)
    with torch.inference_mode():
        want = codec(x)
        packed = pack(copy.deepcopy(codec))
        for got in (packed(x), chunks(packed, x, [1, 4, 6]), chunks(packed, x, [11])):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_every_convolution_is_replaced_under_its_name_and_keeps_its_state(codec: Codec) -> None:
    before, names = state_columns(codec), set(dict(codec.named_modules()))
    packed = pack(codec)
    assert state_columns(packed) == before
    found = {name: type(m) for name, m in packed.named_modules() if not isinstance(m, PackedLinear)}
    assert set(found) == names
    kinds = [
        kind for kind in found.values() if issubclass(kind, CausalConv1d | PackedConvTranspose1d)
    ]
    assert (
        kinds.count(PackedConv1d),
        kinds.count(PackedConvTranspose1d),
        kinds.count(RowsConv1d),
    ) == (6, 2, 8)


def test_activations_lie_as_rows_of_channels(codec: Codec) -> None:
    packed = pack(codec)
    x = torch.randn(1, 9, 5).transpose(1, 2)
    with torch.inference_mode():
        for layer in packed.get_submodule("layers").children():
            x = layer(
                x,
                StreamingState({name: c.rows(1, CPU) for name, c in state_columns(packed).items()}),
            )
            assert x.transpose(1, 2).is_contiguous()


def test_convolutions_of_longer_kernels_are_products_where_that_is_asked_for(codec: Codec) -> None:
    x = torch.randn(2, 5, 11)
    with torch.inference_mode():
        want = codec(x)
        packed = pack(codec, taps=True)
        for got in (packed(x), chunks(packed, x, [1, 4, 6])):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    kinds = [type(m) for m in packed.modules()]
    assert kinds.count(PackedTaps1d) >= 2
    assert all(m.groups > 1 or m.dilation > 1 for m in packed.modules() if type(m) is RowsConv1d)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (8, 4), (12, 6)])
def test_a_strided_convolution_is_a_product_too(kernel: int, stride: int) -> None:
    net = nn.ModuleList(
        [CausalConv1d(6, 10, kernel, stride=stride, left=kernel - stride)]
    ).requires_grad_(False)
    random_init(net, 1)
    for p in net.parameters():
        p.copy_(torch.randn_like(p).half())
    x = torch.randn(3, 6, 4 * stride)
    with torch.inference_mode():
        want = net[0](x)
        packed = pack(net, taps=True)[0]
        assert isinstance(packed, PackedTaps1d)
        torch.testing.assert_close(packed(x), want, rtol=1e-5, atol=1e-5)
