"""The family's `ModelSpec`: options with the checkpoint's defaults, columns and prompt rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.types import Column
from stentor.models.base import ModelSpec
from stentor.models.config_reader import ConfigReader
from stentor.models.frame_talker import talker_options, talker_spec
from stentor.models.info import Option
from stentor.models.qwen3_omni_talker.config import SAMPLE_RATE, Config

GENERATION = "generation_config.json"
VOICE = "ethan"
"""The reference's voice where a request names none, if the checkpoint has it."""

MAX_NEW_TOKENS = 4096
"""Draws at most of files that do not say, as in the reference."""


def _options(defaults: Mapping[str, Any], c: Config) -> dict[str, Option]:
    """Options, whose defaults are in generation_config.json for the first code and in the reference
    for the others."""
    g = ConfigReader(defaults, GENERATION)
    # The last token that the reference draws is never made into a frame.
    longest = max(1, g.integer("talker_max_new_tokens", MAX_NEW_TOKENS, low=0) - 1)
    usual = {
        "temperature": g.number("talker_temperature", 0.9),
        "top_k": g.integer("talker_top_k", 50, low=0),
        "top_p": g.number("talker_top_p", 1.0),
        "repetition_penalty": g.number("talker_repetition_penalty", 1.05),
        "subtalker_temperature": 1.0,
        "subtalker_top_k": 50,
        "subtalker_top_p": 0.8,
        "min_frames": 1,
        "max_frames": longest,
    }
    talker = {
        "empty_user_turn": Option(False, 0, 1, bool, "without instructions the user says nothing")
    }
    return talker_options(c, c.talker.positions, usual, talker)


def make_spec(
    c: Config,
    defaults: Mapping[str, Any],
    dtype: torch.dtype,
    adapters: Mapping[str, Column] | None = None,
) -> ModelSpec:
    """Facts of one checkpoint. `dtype` is that of the language models. adapters: columns of LoRA
    adapters."""
    return talker_spec(
        c,
        dtype,
        adapters,
        family="qwen3_omni_talker",
        sample_rate=SAMPLE_RATE,
        hop=c.decoder.hop,
        options=_options(defaults, c),
        reference_rate=SAMPLE_RATE,
        reference_seconds=(0.0, 0.0),
        default_voice=VOICE if VOICE in c.speakers else next(iter(c.speakers)),
        takes_reference=False,
        codec_skip=c.decoder.skip,
    )
