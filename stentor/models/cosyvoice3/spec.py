"""The family's `ModelSpec`: options, the frame, keys and values, references."""

from __future__ import annotations

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.codec_timing import CodecTiming
from stentor.models.cosyvoice3.codec import HOP
from stentor.models.cosyvoice3.codec_noise import FLOW_FRAMES
from stentor.models.cosyvoice3.config import (
    MAX_MODEL_LEN,
    MAX_PROMPT,
    REFERENCE_SECONDS,
    SAMPLE_RATE,
    SPEAKER,
    Config,
)
from stentor.models.cosyvoice3.live_text import COLUMNS
from stentor.models.cosyvoice3.tokenizer import MARKS
from stentor.models.info import Option

MAX_CHUNK_FRAMES = FLOW_FRAMES // 2 - MAX_PROMPT  # the flow's noise ends there: 270 seconds


def _options(c: Config) -> dict[str, Option]:
    """Request parameters, with the defaults of the checkpoint."""
    ras = c.language.ras
    codes = c.language.codes
    return {
        "temperature": Option(1.0, 0.0, 2.0, float, "randomness of codes; 0 takes the likeliest"),
        "top_p": Option(
            ras.top_p,
            0.0,
            1.0,
            float,
            "codes are drawn as long as likelier ones have less probability",
        ),
        "top_k": Option(
            ras.top_k, 0, codes, int, "likeliest codes that are drawn from; 0 means all"
        ),
        "min_frames": Option(0, 0, MAX_MODEL_LEN, int, "codes made before the model may end"),
        "max_frames": Option(
            None, 1, MAX_MODEL_LEN, int, "codes at most; by default 20 per token of text"
        ),
        "ignore_eos": Option(False, 0, 1, bool, "speak until max_frames"),
    }


def make_spec(
    c: Config,
    voices: tuple[str, ...],
    dtype: torch.dtype,
    takes_reference: bool,
    timing: CodecTiming,
) -> ModelSpec:
    """Facts of one checkpoint. `dtype` is that of the language model, `timing` the codec's."""
    stack = c.language.stack
    columns = {"start_from": Column(dtype=torch.int64), "silent": Column(dtype=torch.int64)}
    recent = {"made": Column((c.language.ras.window,), torch.int64, fill=-1)}
    return ModelSpec(
        family="cosyvoice3",
        sample_rate=SAMPLE_RATE,
        hop=HOP,
        frame=Column((1,), torch.int64),
        kv=KVSpec(stack.layers, stack.kv_heads, stack.head_dim, dtype),
        hidden=(Column((stack.hidden,), dtype),),
        max_model_len=MAX_MODEL_LEN,
        draws=2,
        columns={**columns, **COLUMNS, **recent},
        prompt_rows={"token": Column(dtype=torch.int64)},
        options=_options(c),
        stop_keeps_frame=False,
        reference_rate=SAMPLE_RATE,
        reference_seconds=REFERENCE_SECONDS,
        takes_reference=takes_reference,
        voices=voices,
        live_text=True,
        speaker_size=SPEAKER,
        marks=MARKS,
        codec_prefix=MAX_PROMPT,
        codec_timing=timing,
        hides_frames=True,
        batch_invariant=True,
    )
