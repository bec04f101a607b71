"""Weights in 8 bits: how they are made, and linear layers that hold them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stentor.layers.linear import QuantizedLinear, activation_dtype, linear, scale_of, some_outputs
from stentor.layers.lora import LoraLinear, LoraRows
from stentor.layers.quantized import CPU_OUTPUTS, LARGEST, dequantize, quantize

EIGHT_BITS = list(LARGEST)
ERROR = {torch.int8: 0.01, torch.float8_e4m3fn: 0.03}
"""Error of the product of a random weight, in parts of its size."""


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def layer(
    inputs: int, outputs: int, dtype: torch.dtype, groups: int = 1, bias: bool = False
) -> QuantizedLinear:
    """A quantised layer. Its groups have scales of their own."""
    torch.manual_seed(0)
    made = QuantizedLinear(nn.Linear(inputs, outputs, bias=bias), dtype, groups)
    weight, scale = quantize(torch.randn(outputs, inputs) / inputs**0.5, dtype)
    made.weight.data, made.weight_scale.data = weight, scale * (1 + torch.rand(outputs, groups))
    return made.requires_grad_(False)


def exact(made: QuantizedLinear) -> Tensor:
    """Its weight in float64, by torch's own conversion."""
    grouped = made.weight.to(torch.float32).double().unflatten(1, (made.weight_scale.shape[1], -1))
    return (grouped * made.weight_scale.double()[:, :, None]).flatten(1)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_the_largest_weight_of_each_output_is_exact_and_the_rest_is_near(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(40, 96) * torch.logspace(-6, 3, 40)[:, None]
    bits, scale = quantize(weight, dtype)
    assert (bits.dtype, bits.shape, scale.shape) == (dtype, weight.shape, (40, 1))
    back = dequantize(bits, scale, torch.float32)
    at = weight.abs().argmax(1, keepdim=True)
    assert torch.allclose(back.gather(1, at), weight.gather(1, at), rtol=1e-6)
    for row, other in zip(back, weight, strict=True):
        assert error(row, other) < 1.5 * ERROR[dtype]


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_an_output_of_zeros_stays_zero(dtype: torch.dtype) -> None:
    assert not dequantize(*quantize(torch.zeros(3, 8), dtype), torch.float32).any()


def test_every_float8_has_the_value_that_torch_gives_it() -> None:
    bits = torch.arange(256, dtype=torch.uint8)
    bits = bits[(bits & 0x7F) != 0x7F][None]  # without both NaN
    values = bits.view(torch.float8_e4m3fn)
    assert torch.equal(dequantize(values, torch.ones(1, 1), torch.float32), values.float())


@pytest.mark.parametrize("bits", EIGHT_BITS)
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_products_of_few_and_many_rows_equal_the_product_of_the_weight(
    bits: torch.dtype, groups: int, dtype: torch.dtype
) -> None:
    made = layer(64, CPU_OUTPUTS + 70, bits, groups, bias=True)
    made.bias.data = made.bias.data.to(dtype)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float64: 1e-12}[dtype]
    for rows in (1, 8, 9):
        x = torch.randn(rows, 1, 64, dtype=dtype)
        y = made(x)
        rounded = bits == torch.int8 and groups == 1 and dtype != torch.float64
        assert (y.dtype, y.shape) == (dtype, (rows, 1, len(made.weight)))
        assert error(y, x.double() @ exact(made).T + made.bias.double()) < (
            6e-3 if rounded else tolerance
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU's product, and torch sees a GPU")
@pytest.mark.parametrize("inputs", [64, 48, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_an_int8_product_does_not_depend_on_the_others(
    inputs: int, dtype: torch.dtype
) -> None:
    """Other streams, longer prompts and a cached prefix change the number of rows."""
    made = layer(inputs, 70, torch.int8)
    x = torch.randn(300, inputs, dtype=dtype)
    alone = torch.cat([made(row[None]) for row in x])
    exact = inputs % 16 == 0  # else torch's float product, whose sums depend on the rows
    for rows in (2, 7, 8, 9, 33, 300):
        if exact:
            assert torch.equal(made(x[:rows]), alone[:rows])
        else:
            assert error(made(x[:rows]), alone[:rows].double()) < 1e-2


def test_no_rows_give_no_rows() -> None:
    assert layer(64, 30, torch.int8)(torch.empty(0, 64)).shape == (0, 30)


def test_a_quantised_layer_says_its_scales_and_the_dtype_of_its_activations() -> None:
    made, plain = layer(64, 30, torch.int8), nn.Linear(8, 8, dtype=torch.bfloat16)
    assert scale_of(made) is made.weight_scale
    assert scale_of(plain) is None
    assert (activation_dtype(made), activation_dtype(plain)) == (torch.float32, torch.bfloat16)
    assert made.weight.nbytes + made.weight_scale.nbytes == 30 * 64 + 30 * 4


@pytest.mark.parametrize("bits", EIGHT_BITS)
@pytest.mark.parametrize("groups", [1, 4])
def test_adapters_stand_on_a_quantised_layer_whose_parts_can_be_asked_for(
    bits: torch.dtype, groups: int
) -> None:
    base, widths = layer(64, 24, bits, groups), (10, 7, 7)
    made = LoraLinear(base, widths, slots=2, rank=3, rows=LoraRows())
    assert made.lora_a.dtype == torch.float32
    for part, width in enumerate(widths):
        made.write(1, part, torch.randn(3, 64), torch.randn(width, 3))
    x = torch.randn(20, 64)
    plain = linear(x, base.weight, None, base.weight_scale)
    with made.rows.of(torch.tensor([0, 2])):
        y = made(x)
    assert torch.equal(y[0::2], plain[0::2])
    a, b = made.lora_a[:, 1], made.lora_b[1].split(widths, dim=1)
    low_rank = torch.cat([b_part.T @ a[i] for i, b_part in enumerate(b)])
    adapted = (x @ (exact(base).float() + low_rank).T)[1::2]
    rounded = bits == torch.int8 and groups == 1
    assert torch.allclose(
        y[1::2], adapted, atol=6e-3 * float(adapted.abs().max()) if rounded else 1e-4
    )
    assert torch.allclose(some_outputs(base, x, 10, 24), plain[:, 10:], atol=1e-6)
