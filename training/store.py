"""Latents on disk: int8, and an index of utterances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

STEP = 1 / 28


class Latents:
    """Output of `training.latents`: `flat` int8 [frames, D] on `device`, `index` rows {id, voice, start, frames, ends:
    milliseconds at which the utterance's phonemes end}."""

    def __init__(self, folder: Path, name: str, device: torch.device) -> None:
        self.flat = torch.from_numpy(np.load(folder / f"{name}.npy")).to(device)
        self.index: list[dict[str, Any]] = json.loads((folder / f"{name}.json").read_text())


def packed(latents: Tensor) -> Tensor:
    """Latents as int8 in steps of the store, on the CPU."""
    return (latents / STEP).round().clamp(-127, 127).to(torch.int8).cpu()


def write(folder: Path, name: str, flat: Tensor, index: list[dict[str, Any]]) -> None:
    np.save(folder / f"{name}.npy", flat.numpy())
    (folder / f"{name}.json").write_text(json.dumps(index))
