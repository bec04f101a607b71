"""A mixture of experts is the sum that its formula says, at fixed shapes, with weights of 8 bits or not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.layers.configs import ExpertsConfig, StackConfig
from stentor.layers.experts import ROWS, Experts, route
from stentor.layers.quantized import dequantize
from stentor.layers.transformer import Stack
from stentor.models.dummy import random_init
from stentor.models.quantization import quantize_layers
from tests.helpers.meta_step import Operations

CONFIG = ExpertsConfig(count=7, chosen=3, ffn=6, shared=10, normalised=True)
STACK = StackConfig(8, 6, 2, heads=2, kv_heads=1, head_dim=4, eps=1e-6, experts=CONFIG)


def experts(dtype: torch.dtype = torch.float64) -> Experts:
    stack = Stack(STACK).to(dtype)
    random_init(stack, 1, gain=2.0)
    made = stack.layers[0].get_submodule("mlp")
    assert isinstance(made, Experts)
    return made.requires_grad_(False)


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return down @ (F.silu(gate @ x) * (up @ x))


def of_one_row(x: Tensor, made: Experts, gates: Tensor, downs: Tensor) -> Tensor:
    """gates [2, E, I, H]: gates and up-projections. downs [E, H, I]."""
    likely = (made.gate.weight @ x).softmax(0)
    chosen = likely.argsort(descending=True)[: CONFIG.chosen]
    out = torch.zeros_like(x)
    for e in sorted(chosen.tolist()):
        out += likely[e] / likely[chosen].sum() * swiglu(x, gates[0, e], gates[1, e], downs[e])
    shared = made.shared_expert.linear_layers
    gate, up = shared[0].weight.chunk(2)
    return out + torch.sigmoid(made.shared_expert_gate.weight @ x) * swiglu(
        x, gate, up, shared[1].weight
    )


@pytest.mark.parametrize("rows", [1, 5, ROWS + 3])
def test_a_row_is_the_weighted_sum_of_its_experts_and_the_shared_one(rows: int) -> None:
    made = experts()
    x = torch.randn(rows, 8, dtype=torch.float64)
    gates = made.experts.gate_up_proj.weight.view(2, CONFIG.count, CONFIG.ffn, 8)
    downs = made.experts.down_proj.weight.view(CONFIG.count, 8, CONFIG.ffn)
    want = torch.stack([of_one_row(row, made, gates, downs) for row in x])
    torch.testing.assert_close(made(x), want)
    residual, norm = torch.randn_like(x), torch.nn.functional.normalize(x, dim=1) * 8**0.5
    ones = torch.ones(8, dtype=torch.float64)
    got = made.fused(x, residual, (ones, 0.0, True))  # norms are float32
    torch.testing.assert_close(got, residual + made(norm), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(made(x.view(1, rows, 8)), want[None])


def test_weights_are_of_all_experts_in_float32_and_add_up_to_one_only_if_normalised() -> None:
    logits = torch.randn(4, 9).bfloat16()
    ids, weights = route(logits, 3, normalised=False)
    likely = logits.float().softmax(-1)
    assert ids.tolist() == likely.topk(3).indices.sort().values.tolist()
    assert torch.equal(weights, likely.gather(1, ids).bfloat16())
    assert weights.sum(1).max() < 1
    _, weights = route(logits, 3, normalised=True)
    torch.testing.assert_close(weights.float().sum(1), torch.ones(4), atol=0.01, rtol=0)


@torch.inference_mode()
def test_nothing_is_read_on_the_host_and_shapes_do_not_depend_on_the_choice() -> None:
    made, counts = experts(torch.float32), set()
    for x in (torch.randn(5, 8), torch.ones(5, 8)):  # whose rows choose others, and all the same
        with Operations() as operations:
            made(x)
        counts.add(operations.count)
    assert len(counts) == 1
    made.to("meta")(torch.randn(5, 8, device="meta"))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_experts_have_8_bits_as_other_layers_and_gates_do_not(dtype: torch.dtype) -> None:
    net = torch.nn.ModuleDict({"stack": Stack(STACK)}).double()
    quantize_layers(net, ["stack"], dtype)
    random_init(net, 1, gain=2.0)
    made = net.get_submodule("stack.layers.1.mlp")
    assert isinstance(made, Experts)
    eight = {n for n, p in made.named_parameters() if p.dtype == dtype}
    layers = (
        "experts.gate_up_proj",
        "experts.down_proj",
        "shared_expert.gate_up_proj",
        "shared_expert.down_proj",
    )
    assert eight == {f"{layer}.weight" for layer in layers}
    x = torch.randn(3, 8, dtype=torch.float64)
    got = made(x)
    wide = experts()
    for name, value in dict(made.named_parameters()).items():
        if name.endswith("_scale"):
            continue
        scale = dict(made.named_parameters()).get(f"{name}_scale")
        wide.get_parameter(name).data = (
            value.data if scale is None else dequantize(value, scale, torch.float64)
        )
    torch.testing.assert_close(got, wide(x), atol=1e-6, rtol=1e-5)
