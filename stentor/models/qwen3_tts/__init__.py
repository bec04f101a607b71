"""Qwen3-TTS (Alibaba Qwen team, 2026): CustomVoice, VoiceDesign and Base, 0.6B and 1.7B, with the 12 Hz codec."""

from __future__ import annotations

from pathlib import Path

import torch

from stentor.models.base import SpeechModel

ARCHITECTURES: tuple[str, ...] = ("qwen3_tts",)
DUMMIES: tuple[str, ...] = (
    "qwen3-tts-0.6b-customvoice",
    "qwen3-tts-0.6b-base",
    "qwen3-tts-1.7b-customvoice",
    "qwen3-tts-1.7b-voicedesign",
    "qwen3-tts-1.7b-base",
)


def load(
    path: Path, config: dict[str, object], device: torch.device, dtype: torch.dtype | None, options: dict[str, object]
) -> SpeechModel:
    """A released checkpoint directory. See `loading.load`."""
    from stentor.models.qwen3_tts.loader import load as load_checkpoint

    return load_checkpoint(path, config, device, dtype, options)


def load_dummy(name: str, device: torch.device, dtype: torch.dtype | None) -> SpeechModel:
    """Full released sizes with seeded random weights. See `dummies.make`."""
    from stentor.models.qwen3_tts.dummy import make

    return make(name, device, dtype)
