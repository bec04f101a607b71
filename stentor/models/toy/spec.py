"""The toy's `ModelSpec`, which the engine and `request.py` read."""

from __future__ import annotations

from dataclasses import replace

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.codec_timing import CAUSAL, CodecTiming, UtteranceTiming
from stentor.models.info import AlignmentHeads, Option
from stentor.models.toy.config import (
    BOOK,
    CODEC_PREFIX,
    CODES,
    HIDDEN,
    HOP,
    LATENT,
    LONG_PREFIX,
    MAX_TEXT,
    STACK,
)


def make_spec(
    dtype: torch.dtype,
    timing: CodecTiming = CAUSAL,
    words: bool = False,
    window: tuple[int, int] | None = None,
) -> ModelSpec:
    """Facts of a toy whose weights and cache are `dtype`. timing: of its codec. If that decodes
    from an utterance's beginning, frames may be hidden. words:
    three of its heads in each layer, of two key heads, align words with frames. window: see
    AlignmentHeads."""
    spec = _plain(dtype)
    if words:
        group = STACK.heads // STACK.kv_heads
        heads = AlignmentHeads((0, 1), 3, group, STACK.head_dim**-0.5, window=window)
        queries = Column((len(heads.layers), heads.heads, STACK.head_dim), dtype)
        spec = replace(spec, alignment=heads, hidden=(*spec.hidden, queries))
    if not isinstance(timing, UtteranceTiming):
        return spec
    hide = Option(0, 0, BOOK, int, "frames whose second code is below this are not heard")
    return replace(
        spec,
        codec_timing=timing,
        codec_prefix=LONG_PREFIX,
        hides_frames=True,
        columns={**spec.columns, "hide": Column(dtype=torch.int64)},
        options={**spec.options, "hide": hide},
    )


def _plain(dtype: torch.dtype) -> ModelSpec:
    return ModelSpec(
        family="toy",
        sample_rate=600,
        hop=HOP,
        frame=Column((LATENT + CODES,), dtype),
        kv=KVSpec(STACK.layers, STACK.kv_heads, STACK.head_dim, dtype),
        hidden=(Column((HIDDEN,), dtype),),
        max_model_len=1024,
        draws=LATENT + CODES + 1,
        columns={
            "cfg": Column(dtype=dtype),
            "steps": Column(dtype=torch.int64),
            "trail": Column((MAX_TEXT,), torch.int64),
            "trail_len": Column(dtype=torch.int64),
            "mood": Column((HIDDEN,), dtype),
        },
        prompt_rows={"token": Column(dtype=torch.int64), "given": Column(dtype=torch.bool)},
        options={
            "temperature": Option(0.9, 0, 2, float, "randomness; 0 is greedy"),
            "top_k": Option(0, 0, BOOK, int, "most likely codes kept; 0 keeps all"),
            "top_p": Option(1.0, 0, 1, float, "probability mass kept"),
            "cfg": Option(2.0, 0, 10, float, "guidance"),
            "flow_steps": Option(3, 1, 8, int, "flow steps"),
            "min_frames": Option(2, 0, 4096, int, "frames before a stop counts"),
            "max_frames": Option(64, 1, 4096, int, "frames kept at most"),
        },
        stop_keeps_frame=True,
        reference_rate=600,
        reference_seconds=(0.05, 5.0),
        voices=("low", "high"),
        languages=("english",),
        takes_prompt=False,
        codec_prefix=CODEC_PREFIX,
        max_text=MAX_TEXT,
        num_evals=3,
        captured_evals=(8,),
    )
