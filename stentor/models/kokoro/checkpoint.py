"""Tensors of the released checkpoint by the names of the modules here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stentor.errors import CheckpointError
from stentor.models.weights import errors_name, fold_weight_norm, is_plain, read_pickled_dict

WEIGHTS = "kokoro-v1_0.pth"
PARTS = ("bert", "bert_encoder", "predictor", "text_encoder", "decoder")
WRAPPED = "module."
"""Prefix of names that were trained on several GPUs."""
IGNORED = ("bert.pooler.",)
_AFFINE = re.compile(r"(.*\.(?:norm[12]|adain[12]\.\d+))\.norm\.(?:weight|bias)")
_NAMES = (
    (re.compile(r"^bert\.encoder\.embedding_hidden_mapping_in\."), "bert.mapping_in."),
    (re.compile(r"^bert\.encoder\.albert_layer_groups\.0\.albert_layers\.0\."), "bert.layer."),
    (re.compile(r"^text_encoder\.cnn\.(\d+)\.0\."), r"text_encoder.cnn.\1.conv."),
    (re.compile(r"^text_encoder\.cnn\.(\d+)\.1\."), r"text_encoder.cnn.\1.norm."),
    (re.compile(r"^predictor\.(shared|F0|N|F0_proj|N_proj)\."), r"curves.\1."),
    (re.compile(r"^predictor\.duration_proj\.linear_layer\."), "durations.duration_proj."),
    (re.compile(r"^predictor\."), "durations."),
    (re.compile(r"^decoder\.asr_res\.0\."), "decoder.asr_res."),
)
_PAIRS = re.compile(r"^durations\.text_encoder\.lstms\.(\d+)\.")


def read(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint's directory. CheckpointError for what is none."""
    file = folder / WEIGHTS
    tensors = {}
    for part, state in read_pickled_dict(file).items():
        if part not in PARTS or not isinstance(state, Mapping):
            raise CheckpointError(f"{file}: {part!r} is none of {', '.join(PARTS)}")
        for name, value in state.items():
            if not isinstance(value, Tensor) or not is_plain(value):
                raise CheckpointError(f"{file}: {part}.{name} is no plain tensor")
            tensors[f"{part}.{str(name).removeprefix(WRAPPED)}"] = value
    with errors_name(file):
        return by_module(fold_weight_norm(tensors))


def by_module(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename, and fold gains and shifts of instance norms into those by the style."""
    tensors = dict(tensors)
    affine = {m[1] for name in tensors if (m := _AFFINE.fullmatch(name))}
    for block in affine:
        weight = tensors.pop(f"{block}.norm.weight", None)
        bias = tensors.pop(f"{block}.norm.bias", None)
        if weight is None or bias is None:
            raise CheckpointError(f"tensors {block}.norm.weight and .bias go together")
        fold_affine(tensors, f"{block}.fc", weight, bias)
    return {module_name(name): value for name, value in tensors.items()}


def fold_affine(tensors: dict[str, Tensor], fc: str, weight: Tensor, bias: Tensor) -> None:
    """(1 + gain) * (w * x + b) + shift as a norm without w and b."""
    matrix = tensors[f"{fc}.weight"]
    gain, shift = matrix.chunk(2)
    tensors[f"{fc}.weight"] = torch.cat((gain * weight[:, None], shift + gain * bias[:, None]))
    gain, shift = tensors[f"{fc}.bias"].chunk(2)
    tensors[f"{fc}.bias"] = torch.cat(((1 + gain) * weight - 1, shift + (1 + gain) * bias))


def module_name(name: str) -> str:
    """The name here of a tensor of the release."""
    for pattern, new in _NAMES:
        if pattern.match(name):
            name = pattern.sub(new, name)
            break
    return _PAIRS.sub(_layer, name)


def _layer(m: re.Match[str]) -> str:
    """Name the first of two neighbours in a list as an LSTM, and the second as its norm."""
    layer, second = divmod(int(m[1]), 2)
    part = "norm" if second else "lstm"
    return f"durations.text_encoder.{layer}.{part}."


def read_table(file: Path) -> Tensor:
    """Read the styles of one voice, as `torch.save` writes them. CheckpointError if the file holds
    something else."""
    try:
        table = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as e:  # torch.load raises many types for a corrupt file
        raise CheckpointError(f"{file} is truncated, corrupt or no plain tensor: {e}") from e
    if not isinstance(table, Tensor) or not is_plain(table):
        raise CheckpointError(f"{file} is no plain tensor")
    return table
