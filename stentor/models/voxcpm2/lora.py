"""LoRA weights of VoxCPM2, as its training or PEFT writes them, and which layers take them."""

from __future__ import annotations

import os
from pathlib import Path

from stentor.errors import CheckpointError
from stentor.models.config_files import read_json
from stentor.models.config_reader import ConfigReader
from stentor.models.lora import USUAL_TARGETS, LoraWeights
from stentor.models.lora_files import is_peft, read_pairs, read_peft
from stentor.models.weights import read_pickle, read_safetensors

DEFAULT_ALPHA = 16.0  # of the reference, for files without a lora_config.json
STACKS = ("base_lm.layers.", "residual_lm.layers.", "feat_decoder.estimator.decoder.layers.")
PROJECTIONS = ("enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj", "fusion_concat_proj")
TARGETS = (*USUAL_TARGETS, *PROJECTIONS)  # of the reference's training


def serves_adapters(name: str) -> bool:
    """Whether a request's adapter may change this layer: those of the language models, of the
    flow's transformer, and the projections between them. All rows of a step run through these."""
    return name in PROJECTIONS or name.startswith(STACKS)


def read_lora(path: Path) -> LoraWeights:
    """The weights in `path`: a file or a directory with lora_weights.safetensors or .ckpt, or a
    folder of PEFT.

    alpha comes from lora_config.json beside the weights, r from the tensors (and must agree with
    the file). CheckpointError names a pair that is incomplete, or a tensor that is none of a LoRA.
    """
    if is_peft(path):
        return read_peft(path)
    file = _weights_file(path)
    if file.suffix == ".safetensors":
        tensors = read_safetensors(file)
    else:
        tensors = read_pickle(file)
    settings = _settings(file.parent / "lora_config.json")
    alpha = settings.number("alpha", DEFAULT_ALPHA, above=0)
    pairs = read_pairs(tensors, str(file))
    for name, (a, _) in pairs.items():
        rank = settings.number("r", float(a.shape[0]), above=0)
        if rank != a.shape[0]:
            raise CheckpointError(
                f"{file}: tensor {name}.lora_A has rank {a.shape[0]}, lora_config.json says {rank:g}"
            )
    return LoraWeights(str(file), pairs, alpha)


def _weights_file(path: Path) -> Path:
    if os.path.isfile(path):  # not an error where a name is too long
        return path
    for name in ("lora_weights.safetensors", "lora_weights.ckpt"):
        if os.path.isfile(path / name):
            return path / name
    raise CheckpointError(
        f"lora {path}: no such file, and no directory with lora_weights.safetensors or .ckpt"
    )


def _settings(file: Path) -> ConfigReader:
    """lora_config.json: the settings stand at its top or in `lora_config`."""
    if file.is_file():
        data = read_json(file)
    else:
        data = {}
    return ConfigReader(data, str(file)).section("lora_config", data)
