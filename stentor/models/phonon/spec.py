"""The family's `ModelSpec`: its voices, its languages and the pace."""

from __future__ import annotations

import torch

from stentor.layers.types import Column
from stentor.models import calm_spec
from stentor.models.base import ModelSpec
from stentor.models.info import Option
from stentor.models.phonon.config import PhononConfig

PACE = "duration_delta"
"""The option, and the column and the row of a prompt that hold it."""
DEFAULT_VOICE = "default"


def make_spec(c: PhononConfig, dtype: torch.dtype, voices: tuple[str, ...]) -> ModelSpec:
    """Facts about one checkpoint. voices: those in its folder."""
    usual = next(iter(voices), None)
    if DEFAULT_VOICE in voices:
        usual = DEFAULT_VOICE
    return calm_spec.make_spec(
        "phonon",
        c,
        dtype,
        options={PACE: Option(0.0, -1, 1, float, "pace: below 0 is faster, above 0 slower")},
        columns={PACE: Column()},
        prompt_rows={PACE: Column()},
        reference_seconds=(1.0, 1.0),
        voices=voices,
        default_voice=usual,
        voice_frames=True,
        languages=c.languages,
        takes_reference=False,
    )
