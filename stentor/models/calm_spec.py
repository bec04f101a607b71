"""The `ModelSpec` of a checkpoint: options with its defaults, the frame, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.calm_config import HOP, LSD, MAX_STEPS, RATE, CalmConfig
from stentor.models.codec_timing import CodecTiming
from stentor.models.info import Option

MAX_MODEL_LEN = 2048
MAX_CHUNK_TOKENS = 50
CAPTURED_STEPS = (2, 4, 8, MAX_STEPS)
CHUNK = 8
"""Frames of one call of the codec at most. More are no faster."""
CALLS = 2
"""A large call takes 1.9 ms on an H200, and the host as long to hand out the audio of the one
before."""
NEVER = 1 << 40
"""A frame that is never made."""


def _options(c: CalmConfig) -> dict[str, Option]:
    options = {
        "temperature": Option(c.temperature, 0, 2, float, "variance of the noise; 0 is none"),
        "noise_clamp": Option(None, 0.01, 100, float, "largest noise; no limit by default"),
        "eos_threshold": Option(c.end_threshold, -1e9, 1e9, float, "logit above which speech ends"),
        "frames_after_eos": Option(None, 1, 500, int, "frames from the one that ends speech on"),
        "max_tokens": Option(MAX_CHUNK_TOKENS, 1, 1000, int, "text tokens spoken at a time"),
        "min_frames": Option(0, 0, MAX_MODEL_LEN, int, "frames made before a stop counts"),
        "max_frames": Option(
            MAX_MODEL_LEN, 1, MAX_MODEL_LEN, int, "frames of a chunk of text kept at most"
        ),
        "ignore_eos": Option(False, 0, 1, bool, "never stop before the frame limit"),
    }
    if c.head.flow == LSD:
        options["flow_steps"] = Option(
            c.flow_steps, 1, MAX_STEPS, int, "evaluations of the head per frame"
        )
    return options


def make_spec(
    family: str,
    c: CalmConfig,
    dtype: torch.dtype,
    options: Mapping[str, Option] = MappingProxyType({}),
    columns: Mapping[str, Column] = MappingProxyType({}),
    prompt_rows: Mapping[str, Column] = MappingProxyType({}),
    **facts: Any,
) -> ModelSpec:
    """Facts about one checkpoint. options, columns, prompt_rows: those that only this family has.
    facts: those of `ModelSpec` that differ between families."""
    backbone = c.backbone
    return ModelSpec(
        family=family,
        sample_rate=RATE,
        hop=HOP,
        frame=Column((c.latent,)),
        given_frame=Column((c.voice,)),
        kv=KVSpec(backbone.layers, backbone.kv_heads, backbone.head_dim, dtype),
        hidden=(Column((c.head.condition,), dtype),),
        max_model_len=MAX_MODEL_LEN,
        draws=c.latent,
        columns={
            "noise_scale": Column(),
            "noise_below": Column(),
            "end_threshold": Column(),
            "tail": Column(dtype=torch.int64, fill=1),
            "ends_at": Column(dtype=torch.int64, fill=NEVER),
            "flow_steps": Column(dtype=torch.int64, fill=1),
            **columns,
        },
        prompt_rows={"token": Column(dtype=torch.int64), **prompt_rows},
        options={**_options(c), **options},
        stop_keeps_frame=True,
        reference_rate=RATE,
        takes_instructions=False,
        num_evals=c.flow_steps,
        codec_timing=CodecTiming(chunk=CHUNK, calls=CALLS),
        captured_evals=CAPTURED_STEPS if c.head.flow == LSD else (),
        **facts,
    )
