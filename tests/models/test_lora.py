"""Slots for adapters in a model's layers: what is allocated, which files fit, and what a wrong one is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor import TTS, registry
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.lora import LoraLinear
from stentor.layers.types import ADAPTER
from stentor.models.base import SpeechModel
from stentor.models.lora import NO_ADAPTERS
from tests.helpers import adapters
from tests.helpers.adapters import TINY

Edit = Callable[[dict[str, Tensor]], object]
Q = "base_lm.layers.0.self_attn.q_proj"


def load(**options: Any) -> SpeechModel:
    return registry.load(TINY, torch.device("cpu"), None, options)


@pytest.fixture(scope="module")
def model() -> SpeechModel:
    return load(max_loras=2, max_lora_rank=4)


def lora_layers(model: Any) -> list[str]:
    return [name for name, module in model.net.named_modules() if isinstance(module, LoraLinear)]


@pytest.mark.parametrize("options", [{}, {"loras": {}}, {"max_loras": 0}])
def test_without_adapters_nothing_is_allocated_and_every_layer_is_as_it_was(
    options: dict[str, Any],
) -> None:
    model = load(**options)
    assert model.adapters is NO_ADAPTERS
    assert model.adapters.bytes == 0
    assert ADAPTER not in model.spec.columns
    assert not lora_layers(model)


def test_the_usual_layers_get_slots_of_the_usual_rank(model: SpeechModel) -> None:
    assert ADAPTER in model.spec.columns
    found = lora_layers(model)
    assert {n.rpartition(".")[2] for n in found} == {"qkv_proj", "o_proj", *adapters.PROJECTIONS}
    assert not any(n.startswith("feat_encoder") for n in found)
    elements = sum(
        p.lora_a.numel() + p.lora_b.numel()
        for p in model.net.modules()
        if isinstance(p, LoraLinear)
    )
    assert model.adapters.bytes == 4 * elements
    assert load(max_loras=1).adapters.rank == 32


def test_sizes_come_from_the_adapters_that_are_given(tmp_path: Path) -> None:
    given = {
        "a": adapters.make(tmp_path / "a", 1, rank=3),
        "b": adapters.make(tmp_path / "b", 2, 5, ("up_proj",)),
    }
    model = load(loras=given)
    assert (model.adapters.count, model.adapters.rank) == (2, 5)
    assert {n.rpartition(".")[2] for n in lora_layers(model)} >= {"qkv_proj", "gate_up_proj"}
    only = load(loras=given, max_loras=7, max_lora_rank=8, lora_targets=("q_proj", "v_proj"))
    assert (only.adapters.count, only.adapters.rank) == (7, 8)
    assert {n.rpartition(".")[2] for n in lora_layers(only)} == {"qkv_proj"}
    assert load(max_loras=1, lora_targets="q_proj,v_proj").adapters.shapes == only.adapters.shapes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_loras": -1}, "max_loras: must be a whole number from 0 to 1024, got -1"),
        ({"max_loras": True}, "max_loras: must be a whole number"),
        ({"max_loras": 1, "lora_targets": 3}, "lora_targets: must be names of layers, got 3"),
        ({"loras": {"a": None}}, "loras: must be a path, got NoneType"),
        (
            {"max_loras": 1, "max_lora_rank": 0},
            "max_lora_rank: must be a whole number from 1 to 256",
        ),
        ({"max_loras": 1, "lora_targets": ("q_proj", "in_proj")}, "lora_targets: .* named in_proj"),
    ],
)
def test_wrong_sizes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        load(**options)


def test_more_adapters_than_slots_are_refused(tmp_path: Path) -> None:
    folder = adapters.make(tmp_path, 1)
    with pytest.raises(InvalidRequest, match="max_loras: is 1, and 2 loras are given"):
        load(loras={"a": folder, "b": folder}, max_loras=1)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (lambda: adapters.weights(1, 300), r"lora_A has rank 300, above max_lora_rank 256"),
        (
            lambda: {"x.z_proj.lora_A": torch.zeros(2, 4), "x.z_proj.lora_B": torch.zeros(4, 2)},
            "x.z_proj.lora_A belongs to no layer that takes adapters here; those are .*q_proj",
        ),
    ],
)
def test_an_adapter_that_no_slots_can_hold_is_named_at_the_start(
    adapter: Callable[[], dict[str, Tensor]], message: str, tmp_path: Path
) -> None:
    folder = adapters.store(tmp_path, adapter())
    with pytest.raises(CheckpointError, match=rf"lora_weights.safetensors: tensor .*{message}"):
        TTS(TINY, loras={"a": folder}, memory_gb=0.01, max_num_seqs=1, threads=1)


def test_more_adapters_than_a_model_ever_holds_are_refused(tmp_path: Path) -> None:
    folder = adapters.make(tmp_path, 1, 1, ("down_proj",))
    with pytest.raises(
        InvalidRequest, match="max_loras: must be a whole number from 0 to 1024, got 1025"
    ):
        load(loras={str(i): folder for i in range(1025)})


def test_families_without_slots_refuse_adapters_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"loras: .*no load option of this model"):
        registry.load("dummy:toy", torch.device("cpu"), None, {"loras": {"a": "b"}})


def replaced(name: str, value: Tensor) -> Edit:
    return lambda tensors: tensors.update({name: value})


def renamed(name: str) -> Edit:
    return lambda t: t.update(
        {f"{name}.lora_A": t.pop(f"{Q}.lora_A"), f"{name}.lora_B": t.pop(f"{Q}.lora_B")}
    )


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop(f"{Q}.lora_B"), rf"tensor {Q}.lora_B is missing"),
        (replaced(f"{Q}.lora_A", torch.zeros(3, 4, 5)), rf"tensor {Q}.lora_A has shape \[3, 4, 5\]"),
        (replaced(f"{Q}.lora_A", torch.zeros(4, 5)), rf"{Q} has lora_A \[4, 5\] and lora_B .* do not make its weight"),
        (replaced(f"{Q}.lora_B", torch.full((64, 4), torch.nan)), rf"{Q}.lora_B has values that are not finite"),
        (renamed("base_lm.layers.99.self_attn.q_proj"), r"base_lm.layers.99.self_attn.q_proj.lora_A belongs to no layer"),
        (renamed("feat_encoder.encoder.layers.0.self_attn.q_proj"), r"feat_encoder.*lora_A belongs to no layer"),
        (renamed("base_lm.layers.0.mlp.up_proj"), r"up_proj.lora_A belongs to no layer that takes adapters here; those"),
        (replaced("stop_head.scale", torch.zeros(1)), "stop_head.scale is not a LoRA tensor"),
    ],
)  # fmt: skip
def test_a_wrong_tensor_is_named(
    model: SpeechModel, tmp_path: Path, edit: Edit, message: str
) -> None:
    tensors = adapters.weights(1, 4)
    edit(tensors)
    folder = adapters.store(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=message):
        model.adapters.check(model.adapters.read(folder))


def test_a_rank_above_the_most_is_refused_and_a_smaller_one_fits(
    model: SpeechModel, tmp_path: Path
) -> None:
    slots = model.adapters
    slots.check(slots.read(adapters.make(tmp_path / "small", 1, rank=2)))
    with pytest.raises(CheckpointError, match=r"lora_A has rank 5, above max_lora_rank 4"):
        slots.check(slots.read(adapters.make(tmp_path / "large", 1, rank=5)))


def test_the_identity_of_weights_is_that_of_their_values_and_their_scale(
    model: SpeechModel, tmp_path: Path
) -> None:
    read, tensors = model.adapters.read, adapters.weights(1, 4)
    same = [read(adapters.store(tmp_path / name, tensors, 8.0)).identity() for name in "ab"]
    scaled = read(adapters.store(tmp_path / "c", tensors, 4.0)).identity()
    tensors[f"{Q}.lora_B"][0, 0] += 1e-3
    changed = read(adapters.store(tmp_path / "d", tensors, 8.0)).identity()
    assert same[0] == same[1]
    assert len({same[0], scaled, changed}) == 3
