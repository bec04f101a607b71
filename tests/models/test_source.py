"""A family is built from a directory or from random weights, and released configurations are data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from stentor import registry
from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.quantization import EightBits
from stentor.models.source import Checkpoint, RandomWeights, random_weights
from stentor.models.weights import on_meta

CPU = torch.device("cpu")
RELEASES = {
    "large": {
        "random": {"seed": 3, "constants": {"alpha": 0.5}},
        "tokens": {"words": 100, "special": {"<a>": 101}},
        "files": {"config.json": {"sizes": {"hidden": 8, "layers": 2}, "rates": [4, 2]}},
    },
    "small": {"like": "large", "files": {"config.json": {"sizes": {"hidden": 4}, "rates": [2]}}},
    "other": {"like": "small", "random": {"seed": 4}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "released.json").write_text(json.dumps(RELEASES), encoding="utf-8")
    return tmp_path


def test_a_release_is_the_one_that_it_is_like_with_its_own_values(folder: Path):
    small, other = random_weights(folder, "small"), random_weights(folder, "other")
    assert small.config == {"sizes": {"hidden": 4, "layers": 2}, "rates": [2]}
    assert (small.name, small.seed, small.constants, small.words) == (
        "dummy:small",
        3,
        {"alpha": 0.5},
        100,
    )
    assert (other.config, other.seed, other.special) == (small.config, 4, {"<a>": 101})


def test_what_a_release_lacks_is_named(folder: Path):
    with pytest.raises(CheckpointError, match=r"released\.json: none is missing"):
        random_weights(folder, "none")
    source = random_weights(folder, "large")
    with pytest.raises(CheckpointError, match=r"dummy:large: released\.json has no more\.json"):
        source.json("more.json")
    assert source.json("more.json", {}) == {}


def test_options_of_files_are_refused_without_files(tmp_path: Path):
    Checkpoint(tmp_path).check_options({"lora": "x"}, (), ("lora",))
    with pytest.raises(InvalidRequest, match="lora"):
        RandomWeights("dummy:x", {}).check_options({"lora": "x"}, (), ("lora",))


def drawn(seed: int, number: int) -> torch.Tensor:
    module = on_meta(lambda: nn.Linear(4, 4), torch.float32)
    RandomWeights("dummy:x", {}, seed).fill(module, {}, "x", CPU, number)
    return module.weight


def test_weights_are_drawn_from_the_seed_and_the_number_of_the_module():
    assert torch.equal(drawn(5, 1), drawn(5, 1))
    assert torch.equal(drawn(5, 1), drawn(6, 0))
    assert not torch.equal(drawn(5, 1), drawn(5, 0))


def test_a_module_is_filled_with_the_tensors_of_a_directory(tmp_path: Path):
    module = on_meta(lambda: nn.Linear(2, 3), torch.float32)
    source = Checkpoint(tmp_path)
    tensors = source.tensors(lambda path: {"weight": torch.ones(3, 2), "bias": torch.zeros(3)})
    source.fill(module, tensors, "x", CPU, eight_bits=EightBits(None, ()))
    assert module(torch.ones(2)).tolist() == [2.0, 2.0, 2.0]


def test_models_without_files_have_the_weights_that_they_always_had():
    """Figures of 2026-11-28. Parameters of both, in float32 on a CPU."""
    toy, pocket = (
        registry.load(f"dummy:{name}", CPU, torch.float32, {}) for name in ("toy", "pocket-tts-2m")
    )
    values = {
        toy.text.weight: (-0.19902224838733673, -0.2037104368209839, -0.04429645463824272),
        pocket.net.input_linear.weight: (
            0.08535200357437134,
            -0.1410299688577652,
            0.1751421093940735,
        ),
        pocket.codec.output_proj: (-0.0013234952930361032, 0.094830721616745, -0.1454951912164688),
    }
    for parameter, first in values.items():
        assert parameter.flatten()[:3].tolist() == pytest.approx(first, abs=0)
