"""Tools of every trainer: the config file, a stopwatch that survives restarts, checkpoints, weight averages."""

from __future__ import annotations

import copy
import json
import math
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from stentor.models.weights import fold_weight_norm

CONFIG = Path(__file__).with_name("config.toml")


def load_config(path: Path = CONFIG) -> dict[str, Any]:
    """The training config as nested dictionaries."""
    with path.open("rb") as f:
        return tomllib.load(f)


class Stopwatch:
    """Training time over all restarts. `left` of this call's own limit decides when to stop."""

    def __init__(self, limit: float) -> None:
        self.limit, self.before, self.start = limit, 0.0, time.monotonic()

    @property
    def elapsed(self) -> float:
        return self.before + time.monotonic() - self.start

    @property
    def left(self) -> float:
        return self.limit - (time.monotonic() - self.start)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("save `elapsed`, not the stopwatch")


class Log:
    """Lines of JSON on stdout and in a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a", buffering=1)

    def __call__(self, **fields: Any) -> None:
        line = json.dumps(
            {k: round(v, 5) if isinstance(v, float) else v for k, v in fields.items()}
        )
        print(line, flush=True)
        self.file.write(line + "\n")


class Average:
    """Exponential moving average of a module's parameters; the early average forgets faster."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.decay, self.count = decay, 0

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        torch._foreach_lerp_(list(self.module.parameters()), list(module.parameters()), 1 - decay)


def cosine(progress: float, floor: float = 0.02) -> float:
    """Learning-rate factor after the share `progress` of the training time."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """A rate that is a tensor is filled: a captured step reads it there."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a kill in between leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def restore(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The last checkpoint, or None."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def pick_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parameter_count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def as_floats(losses: dict[str, Tensor]) -> dict[str, float]:
    """Losses as numbers for the log. It waits for the device."""
    return {k: float(v) for k, v in losses.items()}


def averaged(path: Path, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The averaged weights of a trainer's checkpoint, in float32.

    A `.safetensors` as in the package has only these: an autoencoder's come with plain convolution weights.
    """
    if path.suffix == ".safetensors":
        found = fold_weight_norm(load_file(path, str(device)))
    else:
        found = torch.load(path, map_location=device, weights_only=True)["average"]
    return {k: v.float() for k, v in found.items()}
