"""The family's `ModelSpec`, which the engine and `request.py` read: options, the frame, keys and
values, references."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.fish_s2.config import LanguageConfig
from stentor.models.fish_s2.prompt import PHONEMES, SPEAKER, TAG, UNFINISHED
from stentor.models.info import Option
from stentor.text.marks import TextMarks

SAMPLE_RATE = 44_100
REFERENCE_SECONDS = (0.5, 60.0)
MAX_REFERENCES = 8


def _options(c: LanguageConfig) -> dict[str, Option]:
    """Request parameters, with the defaults of the reference's server."""
    return {
        "temperature": Option(
            0.8, 0.0, 2.0, float, "randomness of every code; 0 takes the likeliest"
        ),
        "top_p": Option(0.8, 0.0, 1.0, float, "probability mass that codes are drawn from"),
        "top_k": Option(30, 0, c.codes, int, "likeliest codes that are drawn from; 0 means all"),
        "min_frames": Option(0, 0, c.max_model_len, int, "frames made before the model may end"),
        "max_frames": Option(
            None, 1, c.max_model_len, int, "frames at most; by default from the text's length"
        ),
        "ignore_eos": Option(False, 0, 1, bool, "speak until max_frames"),
    }


def make_spec(
    c: LanguageConfig, hop: int, dtype: torch.dtype, adapters: Mapping[str, Column]
) -> ModelSpec:
    """Facts of one checkpoint. `dtype` is that of the language model. adapters: columns of LoRA
    adapters."""
    return ModelSpec(
        family="fish_s2",
        sample_rate=SAMPLE_RATE,
        hop=hop,
        frame=Column((c.books,), torch.int64),
        kv=KVSpec(c.slow.layers, c.slow.kv_heads, c.slow.head_dim, dtype),
        hidden=(Column((c.slow.hidden,), dtype),),
        max_model_len=c.max_model_len,
        draws=c.books + 1,
        columns=dict(adapters),
        prompt_rows={"token": Column(dtype=torch.int64)},
        options=_options(c),
        stop_keeps_frame=False,
        reference_rate=SAMPLE_RATE,
        reference_seconds=REFERENCE_SECONDS,
        max_references=MAX_REFERENCES,
        takes_instructions=False,
        marks=TextMarks(SPEAKER.pattern, f"{TAG.pattern}|{PHONEMES.pattern}", UNFINISHED),
        batch_invariant=True,
    )
