"""The family's `ModelSpec`: options with the checkpoint's defaults, columns and prompt rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.config_reader import ConfigReader
from stentor.models.frame_talker import PROMPT_ROWS, talker_columns
from stentor.models.info import Option
from stentor.models.qwen3_omni_talker.config import SAMPLE_RATE, Config

GENERATION = "generation_config.json"
VOICE = "ethan"
"""The reference's voice where a request names none, if the checkpoint has it."""

MAX_NEW_TOKENS = 4096
"""Draws at most of files that do not say, as in the reference."""


def _options(defaults: Mapping[str, Any], c: Config) -> dict[str, Option]:
    """Options, whose defaults are in generation_config.json for the first code and in the reference for the others."""
    g = ConfigReader(defaults, GENERATION)
    # The last token that the reference draws is never made into a frame.
    longest = max(1, g.integer("talker_max_new_tokens", MAX_NEW_TOKENS, low=0) - 1)
    temperature, top_p = g.number("talker_temperature", 0.9), g.number("talker_top_p", 1.0)
    top_k, penalty = g.integer("talker_top_k", 50, low=0), g.number("talker_repetition_penalty", 1.05)
    top, vocab = c.talker.positions, c.talker.vocab
    return {
        "temperature": Option(temperature, 0.0, 10.0, float, "randomness of the first codebook; 0: argmax everywhere"),
        "top_k": Option(top_k, 0, vocab, int, "draw from the k likeliest; 0: from all"),
        "top_p": Option(top_p, 0.0, 1.0, float, "draw from the smallest set with this probability"),
        "repetition_penalty": Option(penalty, 0.1, 10.0, float, "divides the logits of first codes already made"),
        "subtalker_temperature": Option(1.0, 0.0, 10.0, float, "temperature of codebooks 1 to 15"),
        "subtalker_top_k": Option(50, 0, c.predictor.vocab, int, "their top_k"),
        "subtalker_top_p": Option(0.8, 0.0, 1.0, float, "their top_p"),
        "min_frames": Option(1, 0, top, int, "frames made before a stop counts"),
        "max_frames": Option(longest, 1, top, int, "frames kept at most; 12.5 frames are one second"),
        "empty_user_turn": Option(False, 0, 1, bool, "without instructions the user says nothing"),
        "trim_leading_silence": Option(False, 0, 1, bool, "leave out the first frame if it is silent (-60 dBFS)"),
        "ignore_eos": Option(False, 0, 1, bool, "go on to max_frames whatever the model says"),
    }


def make_spec(
    c: Config, defaults: Mapping[str, Any], dtype: torch.dtype, adapters: Mapping[str, Column] | None = None
) -> ModelSpec:
    """Facts of one checkpoint. `dtype` is that of the language models. adapters: columns of LoRA adapters."""
    stack = c.talker.stack
    return ModelSpec(
        family="qwen3_omni_talker",
        sample_rate=SAMPLE_RATE,
        hop=c.decoder.hop,
        frame=Column((c.codebooks,), torch.int32),
        kv=KVSpec(stack.layers, stack.kv_heads, stack.head_dim, dtype),
        hidden=(Column((stack.hidden,), dtype),),
        max_model_len=c.talker.positions,
        draws=c.codebooks,
        columns={**talker_columns(c.talker.vocab, c.ids.tts_pad), **(adapters or {})},
        prompt_rows=PROMPT_ROWS,
        options=_options(defaults, c),
        stop_keeps_frame=False,
        reference_rate=SAMPLE_RATE,
        reference_seconds=(0.0, 0.0),
        voices=tuple(c.speakers),
        default_voice=VOICE if VOICE in c.speakers else next(iter(c.speakers)),
        takes_reference=False,
        codec_skip=c.decoder.skip,
        live_text=True,
        batch_invariant=True,
    )
