"""The family's `ModelSpec`."""

from __future__ import annotations

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.codec_timing import PieceTiming
from stentor.models.info import BY_DURATIONS
from stentor.models.kokoro.tokenizer import MAX_SIGNS
from stentor.models.kokoro.voices import DEFAULT, LANGUAGES, STYLE, descriptions

RATE = 24_000
HOP = 600  # samples of the shortest duration
MAX_TEXT = 300
"""Characters of a piece: more than 510 signs cannot be read, and those of longer texts are spoken
hastily."""
OWN_SPEED = (0.5, 2.0)


def make_spec(names: tuple[str, ...], timing: PieceTiming) -> ModelSpec:
    """Facts about one checkpoint. names: of its voices, the default one first."""
    return ModelSpec(
        family="kokoro",
        sample_rate=RATE,
        hop=HOP,
        frame=Column(dtype="int32"),  # the place in the text that a frame speaks
        kv=KVSpec(0, 0, 0),
        hidden=(),
        max_model_len=MAX_SIGNS + 2,
        draws=0,
        columns={"style": Column((STYLE,)), "speed": Column(fill=1.0)},
        prompt_rows={"token": Column(dtype="int64")},
        options={},
        stop_keeps_frame=True,
        reference_rate=RATE,
        reference_seconds=(0.0, 0.0),
        voices=names,
        voice_descriptions=descriptions(names),
        voice_mixes=True,
        default_voice=DEFAULT if DEFAULT in names else names[0],
        languages=tuple(LANGUAGES.values()),
        takes_instructions=False,
        takes_reference=False,
        max_text=MAX_TEXT,
        phonemes=True,
        alignment=BY_DURATIONS,
        codec_timing=timing,
        own_speed=OWN_SPEED,
        short_start=True,
    )
