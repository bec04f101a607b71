"""Low-rank weights of several adapters in one linear layer: each row of a batch gets those of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stentor.layers.lora import LoraLinear, LoraRows

WIDTHS, INPUTS, SLOTS, RANK = (6, 4, 4), 8, 3, 5


@pytest.fixture
def layer() -> LoraLinear:
    """A stacked layer. Adapters 1 and 3 are stored, 3 for its first part only and of a smaller rank."""
    torch.manual_seed(0)
    layer = LoraLinear(nn.Linear(INPUTS, sum(WIDTHS), bias=False), WIDTHS, SLOTS, RANK, LoraRows())
    for part, width in enumerate(WIDTHS):
        layer.write(0, part, torch.randn(RANK, INPUTS), torch.randn(width, RANK))
    layer.write(2, 0, torch.randn(2, INPUTS), torch.randn(WIDTHS[0], 2))
    return layer.requires_grad_(False)


def merged(layer: LoraLinear, number: int) -> Tensor:
    """The weight with an adapter merged."""
    if number == 0:
        return layer.weight
    a, b = layer.lora_a[:, number - 1], layer.lora_b[number - 1].split(WIDTHS, dim=1)
    return layer.weight + torch.cat([p.T @ a[i] for i, p in enumerate(b)])


@pytest.mark.parametrize("shape", [(4,), (4, 3), (8, 3), (4, 1)])
def test_each_row_gets_its_own_adapter_also_the_rows_for_guidance_behind(
    layer: LoraLinear, shape: tuple[int, ...]
) -> None:
    numbers = [3, 0, 1, 2]
    x = torch.randn(*shape, INPUTS)
    with layer.rows.of(torch.tensor(numbers)):
        y = layer(x)
    for n, row in enumerate(x):
        assert torch.allclose(y[n], row @ merged(layer, numbers[n % 4]).T, atol=1e-5)


def test_a_row_without_adapter_gets_the_base_layer_bit_for_bit(layer: LoraLinear) -> None:
    x = torch.randn(4, INPUTS)
    with layer.rows.of(torch.tensor([0, 1, 0, 2])):
        y = layer(x)
    base = torch.nn.functional.linear(x, layer.weight)
    assert torch.equal(y[0::2], base[0::2])
    assert torch.equal(y[3], base[3])  # a slot that was never written


def test_a_slot_that_is_written_again_keeps_nothing_of_what_it_held(layer: LoraLinear) -> None:
    for part, width in enumerate(WIDTHS):
        layer.write(0, part, torch.randn(1, INPUTS), torch.zeros(width, 1))
    assert not layer.lora_b[0].any()
    assert not layer.lora_a[:, 0, 1:].any()


def test_rows_that_are_picked_take_their_adapters_with_them_and_padding_takes_none(
    layer: LoraLinear,
) -> None:
    rows = layer.rows
    with rows.of(torch.tensor([3, 0, 1])):
        with rows.at(torch.tensor([2, 0, 3])):
            assert rows.index.tolist() == [1, 3, 0]
        assert rows.index.tolist() == [3, 0, 1]
    assert not len(rows.index)


def test_layers_of_no_rows_and_outside_of_a_step_are_the_base_layer(layer: LoraLinear) -> None:
    x = torch.randn(4, INPUTS)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight))
    with layer.rows.of(torch.tensor([1])):
        assert layer(x[:0]).shape == (0, sum(WIDTHS))
