"""Kernels of a mixture of experts, against the reference implementation of the layer."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import experts as kernels
from stentor.kernels import switches
from stentor.layers.configs import ExpertsConfig
from stentor.layers.experts import Experts, route
from stentor.layers.linear import QuantizedLinear
from stentor.layers.norm import rms_norm
from stentor.layers.quantized import LARGEST, quantize
from stentor.layers.transformer import SwiGLU
from stentor.models.dummy import random_init
from tests.helpers.kernel_tests import DEVICE, DOTS, DTYPES, close, random

pytestmark = pytest.mark.usefixtures("kernel_test")

CONFIG = ExpertsConfig(count=11, chosen=3, ffn=20, shared=24, normalised=True)
HIDDEN = 40


def layer(dtype: torch.dtype, c: ExpertsConfig = CONFIG) -> Experts:
    made = Experts(HIDDEN, c, SwiGLU(HIDDEN, c.shared)).to(DEVICE, dtype)
    random_init(made, 0, gain=1.7)
    return made.requires_grad_(False)


@pytest.fixture
def by_layer(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The layer calls its kernels also where they are interpreted, and no others."""
    if DEVICE == "cpu":
        monkeypatch.setattr(switches, "INTERPRETED", True)
    others = {k for k in switches.Kernel if k not in (switches.Kernel.EXPERTS, switches.Kernel.PDL)}
    monkeypatch.setattr(switches, "OFF", switches.OFF | others)
    return monkeypatch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_rows_choose_the_experts_of_the_formula(dtype, normalised, normed):
    x, gate, shared = (random(n, HIDDEN, dtype=dtype) for n in (9, CONFIG.count, 1))
    norm = (random(HIDDEN, dtype=dtype), 1e-6) if normed else None
    found = kernels.route(x, norm, gate, shared, CONFIG.chosen, normalised)
    rows = rms_norm(x, *norm, True) if norm else x
    close(found.x, rows)
    ids, weights = route(found.x @ gate.T, CONFIG.chosen, normalised)
    same = (found.ids == ids).all(1)  # a tie of rounded logits may fall either way
    assert same.all() or dtype == torch.bfloat16
    assert same.float().mean() > 0.7
    close(found.weights[same], weights[same])
    close(found.shared, torch.sigmoid(found.x @ shared.T)[:, 0])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_row_that_is_not_finite_chooses_experts_in_range():
    x = torch.full((2, HIDDEN), float("nan"), device=DEVICE)
    found = kernels.route(
        x, None, random(CONFIG.count, HIDDEN), random(1, HIDDEN), CONFIG.chosen, True
    )
    assert found.ids.tolist() == [[0, 1, 2]] * 2
    assert found.weights.isnan().all()


@pytest.mark.parametrize("rows", [1, 2, 5, 50])
def test_pairs_stand_in_order_of_their_experts(rows):
    ids = torch.stack(
        [torch.randperm(CONFIG.count)[: CONFIG.chosen].sort().values for _ in range(rows)]
    )
    if rows == 5:
        ids[:] = ids[0]  # all rows choose the same
    order, groups = kernels.group(ids.int().to(DEVICE), CONFIG.count)
    flat = ids.flatten()
    assert order.tolist() == flat.argsort(stable=True).tolist()
    counts = flat.bincount(minlength=CONFIG.count)
    begins = counts.cumsum(0) - counts
    chosen = [[e, int(begins[e]), int(counts[e])] for e in range(CONFIG.count) if counts[e]]
    assert groups[: len(chosen)].tolist() == chosen
    assert len(groups) == min(CONFIG.count, len(flat))
    assert not groups[len(chosen) :, 2].any()


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("fused", [True, False])
@torch.inference_mode()
def test_a_layer_by_kernels_is_the_layer_without(dtype, rows, fused, by_layer):
    made, x, residual = (
        layer(dtype),
        random(rows, HIDDEN, dtype=dtype),
        random(rows, HIDDEN, dtype=dtype),
    )
    norm = (random(HIDDEN, dtype=dtype), 1e-6, True)

    def run() -> torch.Tensor:
        return made.fused(x, residual, norm) if fused else made(x)

    got = run()
    by_layer.setattr(switches, "AVAILABLE", False)
    close(got, run())


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("groups", [1, 2])
@torch.inference_mode()
def test_weights_in_8_bits_are_multiplied_as_what_they_stand_for(dtype, groups, by_layer):
    made, x = layer(torch.float32), random(7, HIDDEN)
    for name in ("gate_up_proj", "down_proj"):
        base = made.experts.get_submodule(name)
        eight = QuantizedLinear(base, dtype, groups)  # type: ignore[arg-type]
        parts = [quantize(part, dtype) for part in base.weight.chunk(groups, 1)]  # type: ignore[union-attr, operator]
        eight.weight.data = torch.cat([p[0].view(torch.int8) for p in parts], 1).view(dtype)
        eight.weight_scale.data = torch.cat([p[1] for p in parts], 1)
        setattr(made.experts, name, eight)
    got = made(x)
    by_layer.setattr(switches, "AVAILABLE", False)
    close(got, made(x))


@torch.inference_mode()
def test_a_row_is_the_same_whoever_is_beside_it(by_layer):
    made, x = layer(torch.float32), random(40, HIDDEN)
    with switches.batch_invariant(True):
        routed = kernels.route(
            x, None, made.gate.weight, made.shared_expert_gate.weight, CONFIG.chosen, True
        )
        weights = [
            kernels.ExpertWeight(made.experts.get_submodule(n).weight)
            for n in ("gate_up_proj", "down_proj")
        ]  # type: ignore[arg-type]
        every = kernels.grouped_swiglu(routed, *weights, CONFIG.count).view(
            40, CONFIG.chosen, HIDDEN
        )
        one = kernels.Routing(*(part[17:18] for part in routed))
        alone = kernels.grouped_swiglu(one, *weights, CONFIG.count)
    torch.testing.assert_close(every[17], alone, rtol=0, atol=0 if DEVICE == "cuda" else 1e-6)
