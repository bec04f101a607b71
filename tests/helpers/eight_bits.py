"""Tiny checkpoints as torchao and compressed-tensors write them, with weights in 8 bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stentor.layers.quantized import LARGEST

Layer = dict[str, Tensor]
"""The tensors of a layer's weight, by what follows the layer's name."""


def grouped(weight: Tensor, dtype: torch.dtype, groups: int) -> tuple[Tensor, Tensor]:
    """A weight in 8 bits and its scales [outputs, groups]."""
    parts = weight.float().unflatten(1, (groups, -1))
    scale = parts.abs().amax(2) / LARGEST[dtype]
    scaled = parts / scale[:, :, None]
    return (scaled.round() if dtype == torch.int8 else scaled).to(dtype).flatten(1), scale


def packed(bits: Tensor, scale: Tensor) -> Layer:
    """compressed-tensors' pack-quantized: four bytes to an int32, the first in the lowest bits."""
    stored = (bits.to(torch.int16) + 128).to(torch.uint8).contiguous().view(torch.int32)
    return {
        "weight_packed": stored,
        "weight_scale": scale,
        "weight_shape": torch.tensor(bits.shape),
    }


def plain(bits: Tensor, scale: Tensor) -> Layer:
    """Its other formats."""
    return {"weight": bits, "weight_scale": scale}


def torchao(bits: Tensor, scale: Tensor) -> Layer:
    """torchao's subclasses of tensors, flattened."""
    zeros = torch.zeros(len(bits), 1, dtype=torch.int8)
    return {"_weight_qdata": bits, "_weight_scale": scale, "_weight_zero_point": zeros}


def compressed_config(**weights: Any) -> dict[str, Any]:
    scheme = {
        "num_bits": 8,
        "type": "int",
        "strategy": "channel",
        "symmetric": True,
        "dynamic": False,
        "actorder": None,
    }
    group = {"targets": ["Linear"], "weights": {**scheme, **weights}, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
    }


def torchao_config(kind: str = "Int8WeightOnlyConfig", **data: Any) -> dict[str, Any]:
    return {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": kind, "_version": 2, "_data": data}},
    }


def write(
    source: Path,
    folder: Path,
    config: dict[str, Any],
    wanted: Callable[[str], bool],
    form: Callable[[Tensor, Tensor], Layer],
    dtype: torch.dtype = torch.int8,
    groups: int = 1,
) -> Path:
    """A copy of the checkpoint `source` in `folder`, with the layers that `wanted` names in 8 bits."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    raw = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    for file in folder.glob("model*.safetensors"):
        tensors: dict[str, Tensor] = {}
        for name, value in load_file(file).items():
            layer = name.removesuffix(".weight")
            if layer == name or not wanted(layer):
                tensors[name] = value
                continue
            made = form(*grouped(value, dtype, groups))
            tensors |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in made.items()}
        save_file(tensors, file)
    return folder
