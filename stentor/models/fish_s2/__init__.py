"""Fish Speech S2 Pro (fishaudio/s2-pro): a slow and a fast transformer over ten codebooks at 21.5 Hz."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stentor.models.base import SpeechModel

ARCHITECTURES = ("fish_qwen3_omni",)
DUMMIES = ("fish-s2-pro",)


def load(
    path: Path, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> SpeechModel:
    """A released directory: config.json, tokenizer.json, the shards and codec.pth."""
    from stentor.models.fish_s2.loader import load_model

    return load_model(path, config, device, dtype, options)


def load_dummy(name: str, device: torch.device, dtype: torch.dtype | None) -> SpeechModel:
    """`dummy:fish-s2-pro`: the released sizes, random weights, a token per word."""
    from stentor.models.fish_s2.loader import dummy_model

    return dummy_model(device, dtype)
