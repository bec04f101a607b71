"""The family's `ModelSpec`: options, keys and values by position and by frame, columns."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stentor.layers.configs import StackConfig
from stentor.layers.types import Column
from stentor.models.base import FrameKVSpec, KVSpec, ModelSpec
from stentor.models.codec_timing import CodecTiming
from stentor.models.info import Option
from stentor.models.vibevoice.config import MAX_EVALUATIONS, NEGATIVE, SAMPLE_RATE, RealtimeConfig
from stentor.models.vibevoice.realtime_windows import COLUMNS, FEED

TEXT = "text"
"""The page set of the layers that read text alone."""
GUIDANCE = 1.5
STEPS = 5
"""Defaults of the authors' demo. config.json says 20 steps, which nobody hears."""
CAPTURED_STEPS = (10, MAX_EVALUATIONS)
EOS_THRESHOLD = 0.5
CHUNK = 8
"""Latents of one call of the codec at most."""
LANGUAGES = {
    "de": "German",
    "en": "English",
    "fr": "French",
    "in": "Indian English",
    "it": "Italian",
    "jp": "Japanese",
    "kr": "Korean",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "sp": "Spanish",
}
"""Languages by the beginning of the names of released voices."""

OPTIONS = {
    "temperature": Option(1.0, 0, 2, float, "scale of the noise; the original knows only 1"),
    "cfg": Option(GUIDANCE, 0, 10, float, "classifier-free guidance"),
    "flow_steps": Option(STEPS, 1, MAX_EVALUATIONS, int, "solver steps per latent"),
    "eos_threshold": Option(
        EOS_THRESHOLD, 0, 1, float, "probability above which a latent is the last"
    ),
    "min_frames": Option(0, 0, FEED, int, "latents made before a stop counts"),
    "max_frames": Option(FEED, 1, FEED, int, "latents kept at most"),
    "ignore_eos": Option(False, 0, 1, bool, "never stop before the frame limit"),
}


def describe_voice(name: str) -> str:
    """Describe a released voice by its name, such as en-carter_man."""
    language, _, rest = name.partition("-")
    kind = rest.rpartition("_")[2]
    if language not in LANGUAGES or kind not in ("man", "woman"):
        return ""
    return f"{LANGUAGES[language]} {kind}"


def usual_voice(voices: tuple[str, ...]) -> str | None:
    """The voice that speaks where none is named: the first English one."""
    english = [name for name in voices if name.startswith("en-")]
    return next(iter((*english, *voices)), None)


def make_spec(
    c: RealtimeConfig,
    dtype: torch.dtype,
    voices: tuple[str, ...],
    more_columns: Mapping[str, Column],
) -> ModelSpec:
    """Facts about one checkpoint. more_columns: what its adapters need."""
    hidden = Column((c.upper.hidden,), dtype)
    descriptions = {name: text for name in voices if (text := describe_voice(name))}
    return ModelSpec(
        family="vibevoice",
        sample_rate=SAMPLE_RATE,
        hop=c.decoder.hop,
        frame=Column((c.head.latent,)),
        given_frame=Column((1,)),
        kv=KVSpec(c.upper.layers, c.upper.kv_heads, c.upper.head_dim, dtype),
        frame_kv={TEXT: _by_frame(c.lower, dtype), NEGATIVE: _by_frame(c.upper, dtype)},
        hidden=(hidden, hidden),
        max_model_len=c.positions,
        draws=0,  # of a step: `normals` draws for a latent
        columns={
            **COLUMNS,
            "most": Column(dtype=torch.int64, fill=FEED),
            "text_places": Column(dtype=torch.int64),
            "without_text": hidden,
            "cfg": Column(fill=GUIDANCE),
            "flow_steps": Column(dtype=torch.int64, fill=1),
            "noise_scale": Column(fill=1.0),
            "eos_threshold": Column(fill=EOS_THRESHOLD),
            **more_columns,
        },
        prompt_rows={
            "token": Column(dtype=torch.int64),
            "place": Column(dtype=torch.int64),
        },
        options=OPTIONS,
        stop_keeps_frame=False,
        hides_frames=True,
        reference_rate=SAMPLE_RATE,
        reference_seconds=(1.0, 1.0),
        voices=voices,
        voice_descriptions=descriptions,
        default_voice=usual_voice(voices),
        voice_frames=True,
        takes_instructions=False,
        takes_reference=False,
        live_text=True,
        codec_timing=CodecTiming(chunk=CHUNK),
        num_evals=STEPS,
        captured_evals=CAPTURED_STEPS,
    )


def _by_frame(c: StackConfig, dtype: torch.dtype) -> FrameKVSpec:
    return FrameKVSpec(layers=c.layers, heads=c.kv_heads, dim=c.head_dim, dtype=dtype, rows=1)
