"""`dummy:toy`, which is the toy of seed 0."""

from __future__ import annotations

import torch

from stentor.models.toy.model import Toy


def make(name: str, device: torch.device, dtype: torch.dtype | None) -> Toy:
    """The dummy `name`. `dtype` None: float32."""
    return Toy(seed=0, dtype=dtype or torch.float32, device=device)
