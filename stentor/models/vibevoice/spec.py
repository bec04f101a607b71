"""The `ModelSpec` of 1.5B and 7B: options, keys and values, columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from stentor.layers.types import Column
from stentor.models.base import FrameKVSpec, KVSpec, ModelSpec
from stentor.models.codec_timing import CodecTiming
from stentor.models.info import Option
from stentor.models.vibevoice.config import MAX_EVALUATIONS, NEGATIVE, SAMPLE_RATE, DialogueConfig

if TYPE_CHECKING:
    from stentor.text.marks import TextMarks

MAX_MODEL_LEN = 16_384
"""Positions of a request at most, of which the releases allow 65,536 and 32,768."""
GUIDANCE = 1.3
STEPS = 10
"""Defaults of transformers and of the authors' demo."""
CAPTURED_STEPS = (5, MAX_EVALUATIONS)
REFERENCE_SECONDS = (0.3, 60.0)
MAX_SPEAKERS = 4
CHUNK = 8
"""Latents of one call of the codec at most."""

OPTIONS = {
    "temperature": Option(1.0, 0, 2, float, "scale of the noise; the original knows only 1"),
    "cfg": Option(GUIDANCE, 0, 10, float, "classifier-free guidance"),
    "flow_steps": Option(STEPS, 1, MAX_EVALUATIONS, int, "solver steps per latent"),
    "min_frames": Option(0, 0, MAX_MODEL_LEN, int, "latents made before a stop counts"),
    "max_frames": Option(MAX_MODEL_LEN, 1, MAX_MODEL_LEN, int, "latents kept at most"),
    "ignore_eos": Option(False, 0, 1, bool, "never stop before the frame limit"),
}


def make_spec(
    c: DialogueConfig,
    dtype: torch.dtype,
    marks: TextMarks,
    more_columns: Mapping[str, Column],
) -> ModelSpec:
    """Facts about one checkpoint. more_columns: states of the codec in the loop, and what adapters
    need."""
    language = c.language
    hidden = Column((language.hidden,), dtype)
    negative = FrameKVSpec(
        layers=language.layers,
        heads=language.kv_heads,
        dim=language.head_dim,
        dtype=dtype,
        rows=1,
    )
    return ModelSpec(
        family="vibevoice",
        sample_rate=SAMPLE_RATE,
        hop=c.decoder.hop,
        frame=Column((c.head.latent + c.semantic.latent,)),
        given_frame=Column((1,)),
        kv=KVSpec(language.layers, language.kv_heads, language.head_dim, dtype),
        frame_kv={NEGATIVE: negative},
        hidden=(hidden, hidden),
        max_model_len=min(c.positions, MAX_MODEL_LEN),
        draws=c.head.latent,
        columns={
            "cfg": Column(fill=GUIDANCE),
            "flow_steps": Column(dtype=torch.int64, fill=1),
            "noise_scale": Column(fill=1.0),
            **more_columns,
        },
        prompt_rows={
            "token": Column(dtype=torch.int64),
            "latent": Column((c.head.latent,)),
        },
        options=OPTIONS,
        stop_keeps_frame=False,
        reference_rate=SAMPLE_RATE,
        reference_seconds=REFERENCE_SECONDS,
        max_references=MAX_SPEAKERS,
        languages=("english", "chinese"),
        takes_instructions=False,
        marks=marks,
        codec_timing=CodecTiming(chunk=CHUNK),
        num_evals=STEPS,
        captured_evals=CAPTURED_STEPS,
    )
