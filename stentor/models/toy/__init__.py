"""The family every engine test runs on: random weights, all the traits of real ones, nothing to download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stentor.models.base import SpeechModel

ARCHITECTURES = ("toy",)
DUMMIES = ("toy",)


def load(
    path: Path, config: dict[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, object]
) -> SpeechModel:
    """A toy with the seed and variant that config.json names; it has no weight files."""
    from stentor.errors import InvalidRequest
    from stentor.models.toy.model import Toy

    for option in options:
        raise InvalidRequest(option, "the toy takes no load options")
    return Toy(seed=int(config.get("seed", 0)), dtype=dtype or torch.float32, device=device)


def load_dummy(name: str, device: torch.device, dtype: torch.dtype | None) -> SpeechModel:
    """`dummy:toy`."""
    from stentor.models.toy.model import Toy

    return Toy(seed=0, dtype=dtype or torch.float32, device=device)
