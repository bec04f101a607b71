"""Linear layers: what is fused into products, and that a stack whose products are fused equals one whose are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stentor.kernels.linear import fuses
from stentor.layers.attention import causal
from stentor.layers.configs import StackConfig
from stentor.layers.linear import linear
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.dummy import random_init
from stentor.models.quantization import quantize_layers
from tests.helpers.fused_products import fuse_products

CONFIG = StackConfig(
    hidden=64, ffn=96, layers=3, heads=4, kv_heads=2, head_dim=16, eps=1e-6, qkv_bias=True
)


@pytest.fixture
def products(monkeypatch):
    return fuse_products(monkeypatch, rows=8)


def test_a_stack_with_fused_products_equals_one_without(products):
    torch.manual_seed(0)
    stack, head = Stack(CONFIG), torch.randn(10, 64) / 8
    rope = Rope(angles(16, 16, 1e4), torch.float32, interleaved=False, in_float32=False)
    x, pos = torch.randn(4, 2, 64), torch.arange(2)
    with torch.inference_mode():
        fused, fused_head = stack(x, causal, rope, pos), stack.head(x, causal, rope, pos, head)
        assert products == {"product": 25, "norm": 13, "gate": 6, "residual": 12, "bias": 6}
        plain, plain_head = (
            torch.cat([each(part) for part in x.repeat(2, 1, 1).split(8)])
            for each in (
                lambda t: stack(t, causal, rope, pos),
                lambda t: stack.head(t, causal, rope, pos, head),
            )
        )
    assert products["product"] == 25
    torch.testing.assert_close(fused, plain[:4], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fused_head, plain_head[:4], rtol=1e-5, atol=1e-5)


def test_a_linear_layer_of_few_rows_is_such_a_product(products):
    x, weight, bias = torch.randn(4, 2, 64), torch.randn(10, 64), torch.randn(10)
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))
    linear(torch.cat([x, x]), weight)
    assert products == {"product": 1, "bias": 1}


def test_a_product_that_no_kernel_fuses_has_norm_gate_and_addition_around_it():
    x, weight, residual, norm = (
        torch.randn(5, 64),
        torch.randn(20, 64),
        torch.randn(5, 10),
        torch.rand(64),
    )
    gate, up = F.linear(F.rms_norm(x, (64,), norm, 1e-6), weight).chunk(2, -1)
    got = linear(x, weight, residual=residual, norm=(norm, 1e-6, True), gate=True, must_fuse=True)
    torch.testing.assert_close(got, residual + F.silu(gate) * up)


def test_a_stack_of_more_rows_is_fused_by_clusters(monkeypatch):
    products = fuse_products(monkeypatch, rows=2, cluster_rows=8)
    torch.manual_seed(0)
    stack, x = Stack(CONFIG), torch.randn(4, 2, 64)
    rope = Rope(angles(16, 16, 1e4), torch.float32, interleaved=False, in_float32=False)
    with torch.inference_mode():
        fused = stack(x, causal, rope, torch.arange(2))
        assert products == {
            "product": 12,
            "cluster": 12,
            "norm": 6,
            "gate": 3,
            "residual": 6,
            "bias": 3,
        }
        few = stack(x[:1], causal, rope, torch.arange(2))
        assert products["product"] == 24
        assert products["cluster"] == 12
        stack(x.repeat(2, 1, 1), causal, rope, torch.arange(2))
    assert products["product"] == 24
    torch.testing.assert_close(fused[:1], few, rtol=1e-5, atol=1e-5)


def test_weights_of_another_dtype_are_left_to_others(products):
    x = torch.randn(4, 64)
    assert fuses(x, [(torch.randn(10, 64), None)])
    assert not fuses(x, [(torch.randn(10, 64), None), (torch.ones(10, 64, dtype=torch.int8), None)])


def test_a_stack_with_weights_in_int8_is_fused_alike(products):
    torch.manual_seed(0)
    stack, x = Stack(CONFIG), torch.randn(4, 2, 64)
    quantize_layers(torch.nn.ModuleDict({"stack": stack}), ["stack"], torch.int8)
    random_init(stack, seed=1)
    with torch.inference_mode():
        fused = stack(x, causal)
        assert products == {
            "product": 12,
            "norm": 6,
            "gate": 3,
            "residual": 6,
            "bias": 3,
            "scale": 12,
        }
        plain = torch.cat([stack(part, causal) for part in x.repeat(2, 1, 1).split(8)])
        quantized = stack.layers[0].self_attn.o_proj
        linear(x, quantized.weight, None, quantized.weight_scale)
    assert products["product"] == 13
    # The product of a CPU rounds its inputs to bfloat16, the emulated kernel does not.
    torch.testing.assert_close(fused, plain[:4], rtol=2**-6, atol=2**-6)
