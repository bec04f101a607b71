"""Folders of LoRA weights as PEFT writes them: what is read, and what is refused by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.errors import CheckpointError
from stentor.models.lora import LoraWeights
from stentor.models.lora_files import merge, read_peft
from stentor.models.voxcpm2.lora import read_lora
from tests.helpers import peft

LAYER = "base_model.model.x.q_proj"
TENSORS = {f"{LAYER}.lora_A.weight": torch.ones(4, 6), f"{LAYER}.lora_B.weight": torch.ones(5, 4)}


def stored(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    return peft.store(
        folder, TENSORS if tensors is None else tensors, **{"r": 4, "lora_alpha": 8, **config}
    )


@pytest.mark.parametrize(("config", "scale"), [({}, 2.0), ({"use_rslora": True}, 8 / math.sqrt(4))])
@pytest.mark.parametrize("read", [read_peft, read_lora])
def test_weights_and_their_scale_are_read_and_merged(read, config, scale, tmp_path):
    weights = read(stored(tmp_path, **config))
    assert list(weights.pairs) == ["x.q_proj"]
    merged = merge({"x.q_proj.weight": torch.zeros(5, 6), "other": torch.zeros(1)}, weights)
    torch.testing.assert_close(merged["x.q_proj.weight"], torch.full((5, 6), 4 * scale))


def test_the_scale_by_the_root_of_the_rank_is_another_adapter(tmp_path):
    plain, by_root = (read_peft(stored(tmp_path / str(x), use_rslora=x)) for x in (False, True))
    assert plain.identity() != by_root.identity()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "ADALORA"}, "peft_type must be 'LORA', got 'ADALORA'"),
        ({"bias": "all"}, "bias must be 'none', got 'all'"),
        ({"use_dora": True}, "use_dora is True, which is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is True, which is not supported"),
        ({"modules_to_save": ["embed"]}, r"modules_to_save is \['embed'\], which is not supported"),
        ({"alpha_pattern": {"q_proj": 3}}, "alpha_pattern is .* which is not supported"),
        ({"something_new": 1}, "something_new is 1, which is not supported"),
        (
            {"init_lora_weights": "pissa"},
            "init_lora_weights is 'pissa', which changes the base model's weights",
        ),
        ({"r": 3}, rf"tensor {LAYER}.lora_A.weight has rank 4, adapter_config.json says 3"),
        ({"r": "four"}, "r must be a positive integer, got 'four'"),
        ({"lora_alpha": 0}, "lora_alpha must be a number above 0, got 0"),
        ({"lora_alpha": math.nan}, "lora_alpha must be a number above 0, got nan"),
        (
            {"lora_alpha": 10**399},
            "lora_alpha must be a number above 0, got an integer of 1326 bits",
        ),
        ({"use_rslora": "yes"}, "use_rslora must be true or false, got 'yes'"),
    ],
)
def test_a_field_that_asks_for_more_is_refused_by_its_name(config, message, tmp_path):
    with pytest.raises(
        CheckpointError, match=rf"adapter_(config.json|model.safetensors): {message}"
    ):
        read_peft(stored(tmp_path, **config))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (f"{LAYER}.lora_B.weight", None, f"tensor {LAYER}.lora_B.weight is missing"),
        (
            f"{LAYER}.lora_magnitude_vector",
            torch.ones(5),
            f"tensor {LAYER}.lora_magnitude_vector is not a LoRA tensor",
        ),
        ("x.k_proj.lora_A", torch.ones(4, 6), "tensor x.k_proj.lora_A is not a LoRA tensor"),
        (
            f"{LAYER}.lora_A.weight",
            torch.ones(4),
            rf"tensor {LAYER}.lora_A.weight has shape \[4\], not two dimensions",
        ),
        (
            f"{LAYER}.lora_B.weight",
            torch.ones(5, 4, dtype=torch.int8),
            rf"tensor {LAYER}.lora_B.weight has torch.int8, must be floating point",
        ),
    ],
)
def test_a_tensor_that_is_none_of_a_pair_is_refused_by_its_name(name, value, message, tmp_path):
    tensors = {**TENSORS, name: value}
    with pytest.raises(CheckpointError, match=message):
        read_peft(stored(tmp_path, {k: v for k, v in tensors.items() if v is not None}))


def test_a_folder_without_either_file_is_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"no folder with adapter_config.json and adapter_model.safetensors"
    ):
        read_peft(tmp_path)
    stored(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"neither adapter_model.safetensors nor adapter_model.bin is there"
    ):
        read_peft(tmp_path)


def test_a_pair_that_fits_no_weight_is_named_as_in_the_file(tmp_path):
    weights = read_peft(stored(tmp_path))
    with pytest.raises(
        CheckpointError, match=rf"tensor {LAYER}.lora_A.weight belongs to no weight of this model"
    ):
        merge({}, weights)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_merge_of_values_that_are_not_finite_is_refused(value: float, tmp_path: Path) -> None:
    weights = read_peft(
        stored(tmp_path, {**TENSORS, f"{LAYER}.lora_B.weight": torch.full((5, 4), value)})
    )
    with pytest.raises(
        CheckpointError, match=rf"tensor {LAYER}.lora_B.weight has values that are not finite"
    ):
        merge({"x.q_proj.weight": torch.zeros(5, 6)}, weights)


@pytest.mark.parametrize("read", [read_peft, read_lora])
def test_a_path_too_long_for_a_file_is_no_folder(read: Callable[[Path], LoraWeights]) -> None:
    with pytest.raises(CheckpointError, match=r"lora /x*: no "):
        read(Path("/" + "x" * 300))
