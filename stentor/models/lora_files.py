"""Files of LoRA weights: what all layouts share, the layout of the PEFT library, and merging into a
checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor.config import path_of
from stentor.errors import CheckpointError
from stentor.models.config_files import read_json
from stentor.models.config_reader import ConfigReader
from stentor.models.lora import LoraWeights
from stentor.models.weights import read_pickle, read_safetensors

PEFT_CONFIG = "adapter_config.json"
PEFT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
PEFT_NAMES = ("base_model.model.", ".weight")
"""Prefixes and suffixes that PEFT gives the names of a layer's `lora_A` and `lora_B`."""
READ = frozenset({"peft_type", "r", "lora_alpha", "use_rslora", "bias", "init_lora_weights"})
ONLY_TRAINING = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
    }
    | {
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
    }
    | {
        "megatron_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
    }
    | {"target_modules", "task_type"}
)
"""Fields of adapter_config.json that say nothing about what the weights mean. The tensors name
their layers."""
INITIAL = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` after which the base model's weights are those of its
checkpoint."""


def is_peft(path: Path) -> bool:
    """Whether a folder is one that PEFT wrote."""
    return os.path.isfile(path / PEFT_CONFIG)  # not an error where a name is too long


def read_peft(path: Path) -> LoraWeights:
    """The weights in a folder with adapter_config.json and adapter_model.safetensors (or .bin).

    Raises CheckpointError, naming a field that needs more than low-rank products, or a tensor that
    is none of theirs.
    """
    if not is_peft(path):
        raise CheckpointError(f"lora {path}: no folder with {PEFT_CONFIG} and {PEFT_FILES[0]}")
    c = ConfigReader(read_json(path / PEFT_CONFIG), str(path / PEFT_CONFIG))
    _check_fields(c)
    file = next((path / name for name in PEFT_FILES if (path / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"lora {path}: neither {' nor '.join(PEFT_FILES)} is there")
    if file.suffix == ".safetensors":
        tensors = read_safetensors(file)
    else:
        tensors = read_pickle(file)
    rank = c.integer("r", 8)
    alpha = c.number("lora_alpha", 8.0, above=0)
    pairs = read_pairs(tensors, str(file), *PEFT_NAMES)
    for name, (a, _) in pairs.items():
        if len(a) != rank:
            tensor = f"{PEFT_NAMES[0]}{name}.lora_A{PEFT_NAMES[1]}"
            raise CheckpointError(
                f"{file}: tensor {tensor} has rank {len(a)}, {PEFT_CONFIG} says {rank}"
            )
    return LoraWeights(str(file), pairs, alpha, c.flag("use_rslora", False), PEFT_NAMES)


def _check_fields(c: ConfigReader) -> None:
    if c.text("peft_type") != "LORA":
        raise c.error("peft_type", f"must be 'LORA', got {c.data['peft_type']!r}")
    if c.text("bias", "none") != "none":
        raise c.error("bias", f"must be 'none', got {c.data['bias']!r}")
    if c.data.get("init_lora_weights", True) not in INITIAL:
        raise c.error(
            "init_lora_weights",
            f"is {c.data['init_lora_weights']!r}, which changes the base model's weights",
        )
    for name, value in c.data.items():
        if name not in READ | ONLY_TRAINING and value:
            raise c.error(name, f"is {value!r}, which is not supported here")


def read_pairs(
    tensors: Mapping[str, Tensor], source: str, before: str = "", after: str = ""
) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B by the name of their layer. Their tensors are named before + layer + `.lora_A` +
    after, and `.lora_B`.

    CheckpointError names a tensor that is none of these, is missing, or is not of floating point
    and two dimensions.
    """
    ends = (f".lora_A{after}", f".lora_B{after}")
    other = [k for k in tensors if not (k.startswith(before) and k.endswith(ends))]
    if other or not tensors:
        raise CheckpointError(
            f"{source}: tensor {other[0]} is not a LoRA tensor" if other else f"{source} is empty"
        )
    layers = sorted({k.removeprefix(before)[: -len(ends[0])] for k in tensors})
    return {
        name: _pair(tensors, [f"{before}{name}{end}" for end in ends], source) for name in layers
    }


def _pair(tensors: Mapping[str, Tensor], names: list[str], source: str) -> tuple[Tensor, Tensor]:
    for name in names:
        if name not in tensors:
            raise CheckpointError(f"{source}: tensor {name} is missing")
        if tensors[name].ndim != 2 or not tensors[name].numel():
            raise CheckpointError(
                f"{source}: tensor {name} has shape {list(tensors[name].shape)}, not two dimensions"
            )
        if not tensors[name].is_floating_point():
            raise CheckpointError(
                f"{source}: tensor {name} has {tensors[name].dtype}, must be floating point"
            )
    return tensors[names[0]], tensors[names[1]]


def merge(tensors: Mapping[str, Tensor], weights: LoraWeights) -> dict[str, Any]:
    """W + scale * B A for every pair, in float32 at least: who loads it rounds it.

    CheckpointError names a pair that does not fit the checkpoint's tensors.
    """
    merged = dict(tensors)
    for name in weights.pairs:
        if f"{name}.weight" not in tensors:
            raise CheckpointError(
                f"{weights.source}: tensor {weights.tensor(name)} belongs to no weight of this model"
            )
        if f"{name}.weight_scale" in tensors:
            raise CheckpointError(
                f"{weights.source}: {name} is quantised: name the adapter in loras, not in lora"
            )
        weight = tensors[f"{name}.weight"]
        weights.check_shape(name, weight.shape)
        weights.check_finite(name, torch.float32)
        a, b = weights.scaled(name)
        merged[f"{name}.weight"] = (
            weight.to(torch.promote_types(weight.dtype, torch.float32)) + b @ a
        )
    return merged


def merge_option(
    tensors: dict[str, Tensor], options: Mapping[str, Any], read: Callable[[Path], LoraWeights]
) -> dict[str, Tensor]:
    """Merge the weights that the load option `lora` names, if it is set."""
    if "lora" in options:
        return merge(tensors, read(path_of("lora", options["lora"])))
    return tensors
