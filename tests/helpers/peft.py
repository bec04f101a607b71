"""Tiny LoRA adapters in PEFT's layout, for the layers of any checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": None,
    "base_model_name_or_path": "somewhere",
    "inference_mode": True,
    "lora_dropout": 0.05,
    "bias": "none",
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "use_rslora": False,
    "use_dora": False,
}
"""Write an adapter like PEFT, without `r`, `lora_alpha` and `target_modules`."""


def weights(
    checkpoint: Path, targets: Iterable[str], before: str, rank: int, seed: int
) -> dict[str, Tensor]:
    """A and B, large enough to be heard, of the layers in a directory whose names begin with `before` and end with a
    target."""
    random, tensors = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    found = {n: w for file in checkpoint.glob("*.safetensors") for n, w in load_file(file).items()}
    for name, weight in sorted(found.items()):
        layer = name.removesuffix(".weight")
        if layer.startswith(before) and layer.rpartition(".")[2] in set(targets):
            out, inputs = weight.shape
            a = torch.randn(rank, inputs, generator=random) / inputs**0.5
            b = 0.3 * torch.randn(out, rank, generator=random) / rank**0.5
            tensors |= {
                f"base_model.model.{layer}.lora_A.weight": a,
                f"base_model.model.{layer}.lora_B.weight": b,
            }
    return tensors


def store(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    """A folder with these weights. config: fields of adapter_config.json that differ from CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder
