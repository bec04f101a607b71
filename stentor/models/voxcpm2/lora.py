"""LoRA weights (Hu et al., 2022), merged into the checkpoint's tensors before they are loaded."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from stentor.errors import CheckpointError
from stentor.models.config_reader import ConfigReader
from stentor.models.weights import read_json, read_pickle, read_safetensors

DEFAULT_ALPHA = 16.0  # of the reference, for files without a lora_config.json


def merge_lora(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """W + alpha / r * B A for every pair in `path` (a file, or a directory with lora_weights.safetensors or .ckpt).

    alpha comes from lora_config.json beside the weights, r from the tensors (and must agree with the file).
    CheckpointError names a pair that is incomplete, misshapen or for no tensor of this model.
    """
    file = _weights_file(path)
    pairs = read_safetensors(file) if file.suffix == ".safetensors" else read_pickle(file)
    settings = _settings(file.parent / "lora_config.json")
    alpha = settings.number("alpha", DEFAULT_ALPHA, above=0)
    merged = dict(tensors)
    other = [k for k in pairs if not k.endswith((".lora_A", ".lora_B"))]
    if other or not pairs:
        raise CheckpointError(f"{file}: tensor {other[0]} is not a LoRA tensor" if other else f"{file} is empty")
    names = sorted({k.rpartition(".")[0] for k in pairs})
    for name in names:
        a, b = _pair(pairs, name, tensors, file)
        rank = settings.number("r", float(a.shape[0]), above=0)
        if rank != a.shape[0]:
            raise CheckpointError(f"{file}: tensor {name}.lora_A has rank {a.shape[0]}, lora_config.json says {rank:g}")
        weight = tensors[f"{name}.weight"]
        merged[f"{name}.weight"] = (weight.float() + alpha / rank * (b.float() @ a.float())).to(weight.dtype)
    return merged


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    for name in ("lora_weights.safetensors", "lora_weights.ckpt"):
        if (path / name).is_file():
            return path / name
    raise CheckpointError(f"lora {path}: no such file, and no directory with lora_weights.safetensors or .ckpt")


def _settings(file: Path) -> ConfigReader:
    """lora_config.json: the settings stand at its top or in `lora_config`."""
    data = read_json(file) if file.is_file() else {}
    return ConfigReader(data, str(file)).section("lora_config", data)


def _pair(pairs: dict[str, Tensor], name: str, tensors: dict[str, Tensor], file: Path) -> tuple[Tensor, Tensor]:
    for part in ("lora_A", "lora_B"):
        if f"{name}.{part}" not in pairs:
            raise CheckpointError(f"{file}: tensor {name}.{part} is missing")
    if f"{name}.weight" not in tensors:
        raise CheckpointError(f"{file}: tensor {name}.lora_A belongs to no weight of this model")
    a, b = pairs[f"{name}.lora_A"], pairs[f"{name}.lora_B"]
    want = tensors[f"{name}.weight"].shape
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1] or (b.shape[0], a.shape[1]) != tuple(want):
        got = f"lora_A {list(a.shape)} and lora_B {list(b.shape)}"
        raise CheckpointError(f"{file}: {name} has {got}, which do not make its weight {list(want)}")
    return a, b
