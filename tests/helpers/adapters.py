"""Tiny LoRA adapters by seed, for the tiny VoxCPM2 checkpoint, as files in the layout of its training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TINY = Path(__file__).parents[1] / "fixtures" / "voxcpm2"
STACKS = ("base_lm.", "residual_lm.", "feat_decoder.estimator.decoder.")
PROJECTIONS = ("enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj", "fusion_concat_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj", *PROJECTIONS)


def layers(targets: Iterable[str] = (*ATTENTION, *PROJECTIONS)) -> dict[str, torch.Size]:
    """The weights of the tiny checkpoint's layers that training gives low-rank weights, by name."""
    weights = {
        n.removesuffix(".weight"): t.shape for n, t in load_file(TINY / "model.safetensors").items()
    }
    wanted = [n for n in weights if n in PROJECTIONS or n.startswith(STACKS)]
    return {n: weights[n] for n in wanted if n.rpartition(".")[2] in set(targets)}


def weights(
    seed: int, rank: int, targets: Iterable[str] = (*ATTENTION, *PROJECTIONS)
) -> dict[str, Tensor]:
    """A and B of every layer, large enough to be heard."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (out, inputs) in layers(targets).items():
        tensors[f"{name}.lora_A"] = torch.randn(rank, inputs, generator=random) / inputs**0.5
        tensors[f"{name}.lora_B"] = 0.3 * torch.randn(out, rank, generator=random) / rank**0.5
    return tensors


def store(
    folder: Path, tensors: dict[str, Tensor], alpha: float | None = None, rank: int | None = None
) -> Path:
    """A folder as training writes it: lora_weights.safetensors, and lora_config.json if `alpha` is given."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "lora_weights.safetensors")
    if alpha is not None:
        settings = {"alpha": alpha} | ({} if rank is None else {"r": rank})
        (folder / "lora_config.json").write_text(json.dumps({"lora_config": settings}))
    return folder


def make(
    folder: Path, seed: int, rank: int = 4, targets: Iterable[str] = (*ATTENTION, *PROJECTIONS)
) -> Path:
    """An adapter of alpha 2 * rank."""
    return store(folder, weights(seed, rank, targets), 2.0 * rank, rank)
