"""The family's `ModelSpec`, which the engine and `request.py` read.

It has options with the checkpoint's defaults, columns and prompt rows.
Defaults come from generation_config.json where it has them, else from the reference's hard
defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.types import Column
from stentor.models.base import ModelSpec
from stentor.models.config_reader import ConfigReader
from stentor.models.frame_talker import talker_options, talker_spec
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
    usual = {
        "temperature": g.number("temperature", 0.9) if sampled else 0.0,
        "top_k": g.integer("top_k", 50, low=0),
        "top_p": g.number("top_p", 1.0),
        "repetition_penalty": g.number("repetition_penalty", 1.05),
        "subtalker_temperature": g.number("subtalker_temperature", 0.9) if sub_sampled else 0.0,
        "subtalker_top_k": g.integer("subtalker_top_k", 50, low=0),
        "subtalker_top_p": g.number("subtalker_top_p", 1.0),
        "min_frames": MIN_FRAMES,
        "max_frames": longest,
    }
    talker = {
        "non_streaming_mode": Option(
            None, 0, 1, bool, "whole text in the prompt; default: yes, but no for cloned voices"
        ),
        "x_vector_only": Option(
            False, 0, 1, bool, "clone by the speaker vector alone, without the reference's codes"
        ),
    }
    return talker_options(c, float(c.talker.positions), usual, talker)


def make_spec(
    c: Config,
    codec: CodecConfig,
    defaults: Mapping[str, Any],
    dtype: torch.dtype,
    adapters: Mapping[str, Column] | None = None,
) -> ModelSpec:
    """Facts of one checkpoint. `dtype` is that of the language models. adapters: columns of LoRA
    adapters."""
    dialects = set(c.dialects.values())
    if c.speaker is not None:
        size = c.speaker.dim
    else:
        size = 0
    return talker_spec(
        c,
        dtype,
        adapters,
        size,
        family="qwen3_tts",
        sample_rate=codec.sample_rate,
        hop=codec.decoder.hop,
        options=_options(defaults, c),
        reference_rate=codec.sample_rate,
        reference_seconds=REFERENCE_SECONDS,
        languages=tuple(n for n in c.languages if n not in dialects and not n.endswith("_dialect")),
        default_voice=next(iter(c.speakers), None),
        takes_instructions=c.kind != "base" and c.size != "0b6",
        takes_reference=c.kind == "base",
        codec_silent=256,
        codec_prefix=math.ceil(REFERENCE_SECONDS[1] * codec.sample_rate / codec.decoder.hop)
        if c.kind == "base"
        else 0,
    )
