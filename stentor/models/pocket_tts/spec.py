"""The family's `ModelSpec`: its voices, its language and references."""

from __future__ import annotations

import torch

from stentor.models import calm_spec
from stentor.models.base import ModelSpec
from stentor.models.pocket_tts.config import PocketConfig
from stentor.models.pocket_tts.released import DEFAULT_VOICES

REFERENCE_SECONDS = (0.3, 60.0)


def make_spec(
    c: PocketConfig, dtype: torch.dtype, voices: tuple[str, ...], language: str, clones: bool
) -> ModelSpec:
    """Facts about one checkpoint. voices: those that it is shipped with. clones: whether it takes
    recordings."""
    usual = DEFAULT_VOICES[language]
    return calm_spec.make_spec(
        "pocket_tts",
        c,
        dtype,
        reference_seconds=REFERENCE_SECONDS,
        voices=voices,
        default_voice=usual if usual in voices else next(iter(voices), None),
        languages=(language,),
        takes_reference=clones,
    )
