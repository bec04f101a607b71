"""Products of int8 weights and int8 activations, against the same sums in float64 and against layers in 16 bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import switches, w8a8_gemm
from stentor.kernels.configs import w8a8_config
from stentor.layers.configs import StackConfig
from stentor.layers.linear import Linear, QuantizedLinear
from stentor.layers.norm import RMSNorm
from stentor.layers.quantized import quantize
from stentor.layers.transformer import Block
from tests.helpers.kernel_tests import DEVICE, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")
SHAPES = [(17, 48, 30), (65, 257, 71), (300, 50, 15)]
"""(rows, inputs, outputs), no multiples of blocks."""


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory holds what no result may have."""
    empty = torch.empty

    def poison(*shape: Any, dtype: torch.dtype, device: Any) -> Tensor:
        made = empty(*shape, dtype=dtype, device=device)
        return made.fill_(torch.nan if dtype.is_floating_point else -128)

    monkeypatch.setattr(torch, "empty", poison)


def inside(rows: int, size: int, dtype: torch.dtype) -> Tensor:
    """Rows that are parts of longer ones, with NaN around them."""
    whole = torch.full((rows + 1, size + 9), torch.nan, dtype=dtype, device=DEVICE)
    whole[:rows, 3 : size + 3] = random(rows, size, dtype=dtype)
    return whole[:rows, 3 : size + 3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(17, 50), (70, 192)])
def test_rows_are_quantised_as_weights_are_with_a_norm_before_or_none(poisoned, dtype, rows, size):
    x, norm = inside(rows, size, dtype), RMSNorm(size, 1e-6).to(DEVICE, dtype)
    norm.weight.data = random(size, dtype=dtype)
    x[3] = 0
    for args, wanted in ((None, x), (norm.kernel_args, norm(x))):
        bits, scale = w8a8_gemm.quantize_rows(x, torch.int8, args)
        other, other_scale = quantize(wanted, torch.int8)
        step = 1 if dtype == torch.float32 else 2  # where the interpreter truncates to bfloat16
        assert (bits.int() - other.int()).abs().max() <= step
        assert bits.int().abs().amax(1).tolist() == [127 if row != 3 else 0 for row in range(rows)]
        near = torch.isclose(scale, other_scale, rtol=2e-2)
        assert near.logical_or(other_scale < 1e-12).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size", "width"), SHAPES)
def test_products_equal_the_sums_of_their_integers(poisoned, dtype, rows, size, width):
    x, residual, bias = (
        inside(rows, size, dtype),
        inside(rows, width, dtype),
        random(2 * width, dtype=dtype),
    )
    norm = RMSNorm(size, 1e-6).to(DEVICE, dtype)
    weight, scale = quantize(random(2 * width, size) / size**0.5, torch.int8)

    def sums(args: tuple[Tensor, float, bool] | None, outputs: int) -> Tensor:
        bits, row = w8a8_gemm.quantize_rows(x, torch.int8, args)
        exact = bits.double() @ weight[:outputs].double().T
        return exact * row.double() * scale[:outputs, 0].double()

    one = w8a8_gemm.fused_linear(
        x, weight[:width], scale[:width], None, residual, False, bias[:width]
    )
    close(one, residual + (sums(None, width) + bias[:width]).to(dtype))
    gate, up = (sums(norm.kernel_args, 2 * width) + bias).to(dtype).chunk(2, -1)
    got = w8a8_gemm.fused_linear(x, weight, scale, norm.kernel_args, residual, True, bias)
    close(got, residual + F.silu(gate) * up)


def test_products_of_a_module_keep_the_shape_of_its_input_and_add_nothing():
    x, (weight, scale) = random(3, 6, 48), quantize(random(30, 48), torch.int8)
    bits, row = w8a8_gemm.quantize_rows(x, torch.int8)
    wanted = bits.double() @ weight.double().T * row.double() * scale[:, 0].double()
    close(w8a8_gemm.fused_linear(x, weight, scale), wanted.float().view(3, 6, 30))


def test_a_row_is_the_same_in_any_company_of_its_kind():
    x, (weight, scale) = random(300, 64), quantize(random(20, 64), torch.int8)
    whole = w8a8_gemm.fused_linear(x, weight, scale)
    for part in (slice(3, 20), slice(100, 200), slice(299, 300)):
        assert torch.equal(w8a8_gemm.fused_linear(x[part], weight, scale), whole[part])


def test_tiles_fit_small_gpus_and_follow_the_rows():
    for rows in (17, 64, 65, 256, 257, 5000):
        for n in (64, 4096, 8192, 20000):
            c = w8a8_config(rows, n)
            assert (c.block_m + c.block_n) * c.block_k * c.num_stages <= 96 * 1024
            assert c.block_m >= min(rows, 128) or rows in (65, 256)


def quantised(block: Block) -> Block:
    """The block with weights in int8, of the same values."""
    made = Block(CONFIG).to(DEVICE, torch.bfloat16)
    made.load_state_dict(block.state_dict())
    for name, layer in [(n, m) for n, m in made.named_modules() if isinstance(m, Linear)]:
        parent, leaf = made.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        small = QuantizedLinear(layer, torch.int8)
        small.weight.data, small.weight_scale.data = quantize(layer.weight, torch.int8)
        setattr(parent, leaf, small)
    return made


CONFIG = StackConfig(128, 256, 1, 2, 1, 64, 1e-6)


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, _: Any) -> Tensor:
    return q * v.tanh()


def test_a_block_in_int8_has_a_cosine_of_0_999_to_the_block_in_16_bits(monkeypatch):
    block = Block(CONFIG).to(DEVICE, torch.bfloat16)
    for parameter in block.parameters():
        parameter.data = random(*parameter.shape, dtype=torch.bfloat16)
        if parameter.dim() > 1:
            parameter.data /= parameter.shape[1] ** 0.5
    x = random(40, 128, dtype=torch.bfloat16)
    wanted, small = block(x, None, 0, attend, None), quantised(block)
    called: list[int] = []
    real = w8a8_gemm.fused_linear

    def counted(*args: Any) -> Tensor:
        called.append(1)
        return real(*args)

    monkeypatch.setattr(w8a8_gemm, "fused_linear", counted)
    monkeypatch.setattr(switches, "INTERPRETED", DEVICE == "cpu")  # kernels serve tensors of a CPU
    got, delta = small(x, None, 0, attend, None)
    assert delta is None
    assert len(called) == 4
    added = [(y - x).double().flatten() for y in (got, wanted[0] + wanted[1])]
    assert F.cosine_similarity(*added, dim=0) >= 0.999
