"""The family's `ModelSpec`, which the engine and `request.py` read.

It has options with the checkpoint's defaults, columns and prompt rows.
Defaults come from generation_config.json where it has them, else from the reference's hard defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.config_reader import ConfigReader
from stentor.models.frame_talker import PROMPT_ROWS, talker_columns
from stentor.models.info import Option
from stentor.models.qwen3_tts.config import CodecConfig, Config

GENERATION = "generation_config.json"
REFERENCE_SECONDS = (0.5, 60.0)
MIN_FRAMES = 2
MAX_NEW_TOKENS = 2048
"""The reference's own limit, of files without one. Released files have 8192."""


def _options(defaults: Mapping[str, Any], c: Config) -> dict[str, Option]:
    g = ConfigReader(defaults, GENERATION)
    sampled = g.flag("do_sample", True)
    sub_sampled = g.flag("subtalker_dosample", True)
    # The last token that the reference draws is never made into a frame.
    longest = max(1, g.integer("max_new_tokens", MAX_NEW_TOKENS, low=0) - 1)
    temperature = g.number("temperature", 0.9) if sampled else 0.0
    sub_temperature = g.number("subtalker_temperature", 0.9) if sub_sampled else 0.0
    top_k, sub_top_k = g.integer("top_k", 50, low=0), g.integer("subtalker_top_k", 50, low=0)
    top = float(c.talker.positions)
    return {
        "temperature": Option(temperature, 0.0, 10.0, float, "randomness of the first codebook; 0: argmax everywhere"),
        "top_k": Option(top_k, 0, c.talker.vocab, int, "draw from the k likeliest; 0: from all"),
        "top_p": Option(g.number("top_p", 1.0), 0.0, 1.0, float, "draw from the smallest set with this probability"),
        "repetition_penalty": Option(
            g.number("repetition_penalty", 1.05), 0.1, 10.0, float, "divides the logits of first codes already made"
        ),
        "subtalker_temperature": Option(sub_temperature, 0.0, 10.0, float, "temperature of codebooks 1 to 15"),
        "subtalker_top_k": Option(sub_top_k, 0, c.predictor.vocab, int, "their top_k"),
        "subtalker_top_p": Option(g.number("subtalker_top_p", 1.0), 0.0, 1.0, float, "their top_p"),
        "min_frames": Option(MIN_FRAMES, 0, top, int, "frames made before a stop counts"),
        "max_frames": Option(longest, 1, top, int, "frames kept at most; 12.5 frames are one second"),
        "non_streaming_mode": Option(
            None, 0, 1, bool, "whole text in the prompt; default: yes, but no for cloned voices"
        ),
        "x_vector_only": Option(False, 0, 1, bool, "clone by the speaker vector alone, without the reference's codes"),
        "trim_leading_silence": Option(False, 0, 1, bool, "leave out the first frame if it is silent (-60 dBFS)"),
        "ignore_eos": Option(False, 0, 1, bool, "go on to max_frames whatever the model says"),
    }


def make_spec(
    c: Config,
    codec: CodecConfig,
    defaults: Mapping[str, Any],
    dtype: torch.dtype,
    adapters: Mapping[str, Column] | None = None,
) -> ModelSpec:
    """Facts of one checkpoint. `dtype` is that of the language models. adapters: columns of LoRA adapters."""
    stack = c.talker.stack
    dialects, size = set(c.dialects.values()), c.speaker.dim if c.speaker is not None else 0
    return ModelSpec(
        family="qwen3_tts",
        sample_rate=codec.sample_rate,
        hop=codec.decoder.hop,
        frame=Column((c.codebooks,), torch.int32),
        kv=KVSpec(stack.layers, stack.kv_heads, stack.head_dim, dtype),
        hidden=(Column((stack.hidden,), dtype),),
        max_model_len=c.talker.positions,
        draws=c.codebooks,
        columns={**talker_columns(c.talker.vocab, c.ids.tts_pad, size), **(adapters or {})},
        prompt_rows=PROMPT_ROWS,
        options=_options(defaults, c),
        stop_keeps_frame=False,
        reference_rate=codec.sample_rate,
        reference_seconds=REFERENCE_SECONDS,
        voices=tuple(c.speakers),
        languages=tuple(n for n in c.languages if n not in dialects and not n.endswith("_dialect")),
        takes_instructions=c.kind != "base" and c.size != "0b6",
        takes_reference=c.kind == "base",
        codec_silent=256,
        codec_prefix=math.ceil(REFERENCE_SECONDS[1] * codec.sample_rate / codec.decoder.hop) if c.kind == "base" else 0,
        live_text=True,
        speaker_size=size,
        batch_invariant=True,
    )
