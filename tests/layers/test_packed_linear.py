"""Linear layers with weights in 16 bits on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stentor.layers.linear import Linear
from stentor.layers.packed import PackedLinear, pack_linears, packs

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not packs(CPU, torch.float32), reason="this CPU or torch has no such product"
)


@pytest.fixture
def layers() -> tuple[Linear, PackedLinear]:
    torch.manual_seed(1)
    plain = Linear(24, 40, bias=False).requires_grad_(False)
    return plain, PackedLinear(plain.weight)


@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (2, 11, 24), (0, 24)])
def test_outputs_are_those_of_float32_up_to_the_rounding_of_weights(
    layers: tuple[Linear, PackedLinear], shape: tuple[int, ...]
) -> None:
    plain, packed = layers
    x = torch.randn(shape)
    torch.testing.assert_close(packed(x), plain(x), rtol=0, atol=2e-3)


def test_weights_are_held_once(layers: tuple[Linear, PackedLinear]) -> None:
    plain, packed = layers
    assert packed.weight.is_meta
    assert (packed.weight.shape, packed.weight.dtype) == (plain.weight.shape, plain.weight.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_only_float32_is_packed(dtype: torch.dtype) -> None:
    assert not packs(CPU, dtype)


def test_a_cpu_without_the_product_keeps_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not packs(CPU, torch.float32)


def test_layers_of_a_module_are_packed_with_their_biases_and_others_are_left() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(Linear(8, 6), nn.Linear(6, 4), Linear(4, 3, bias=False)).requires_grad_(
        False
    )
    for p in net.parameters():
        p.copy_(p.half())
    x = torch.randn(5, 8)
    want = net(x)
    pack_linears(net)
    assert [type(layer) for layer in net] == [PackedLinear, nn.Linear, PackedLinear]
    torch.testing.assert_close(net(x), want)
