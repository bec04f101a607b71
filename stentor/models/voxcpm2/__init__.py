"""VoxCPM2 (openbmb): flow-matching patches of continuous latents over a causal backbone. See specs/voxcpm2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stentor.models.base import SpeechModel

ARCHITECTURES = ("voxcpm2",)
DUMMIES = ("voxcpm2",)


def load(
    path: Path, config: dict[str, Any], device: torch.device, dtype: torch.dtype | None, options: dict[str, Any]
) -> SpeechModel:
    """A checkpoint in the released layout. `options`: `lora`, a file or directory of LoRA weights to merge."""
    from stentor.models.voxcpm2.loader import load_checkpoint

    return load_checkpoint(path, config, device, dtype, options)


def load_dummy(name: str, device: torch.device, dtype: torch.dtype | None) -> SpeechModel:
    """`dummy:voxcpm2`: the release's sizes with seeded random weights and no files."""
    from stentor.models.voxcpm2.loader import make_dummy

    return make_dummy(device, dtype)
