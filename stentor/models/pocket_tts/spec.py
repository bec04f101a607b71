"""The family's `ModelSpec`: options with the checkpoint's defaults, the frame, keys and values,
references."""

from __future__ import annotations

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.codec_timing import CodecTiming
from stentor.models.info import Option
from stentor.models.pocket_tts.config import HOP, RATE, PocketConfig
from stentor.models.pocket_tts.flow import MAX_STEPS
from stentor.models.pocket_tts.released import DEFAULT_VOICES

MAX_MODEL_LEN = 2048
MAX_CHUNK_TOKENS = 50
CAPTURED_STEPS = (2, 4, 8, MAX_STEPS)
REFERENCE_SECONDS = (0.3, 60.0)
CHUNK = 8
"""Frames of one call of the codec at most. More are no faster."""
NEVER = 1 << 40
"""A frame that is never made."""


def _options(c: PocketConfig) -> dict[str, Option]:
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
    if c.flow == "lsd":
        options["flow_steps"] = Option(1, 1, MAX_STEPS, int, "evaluations of the head per frame")
    return options


def make_spec(
    c: PocketConfig, dtype: torch.dtype, voices: tuple[str, ...], language: str, clones: bool
) -> ModelSpec:
    """Facts about one checkpoint. voices: those that it is shipped with. clones: whether it takes
    recordings."""
    backbone = c.backbone
    usual = DEFAULT_VOICES[language]
    return ModelSpec(
        family="pocket_tts",
        sample_rate=RATE,
        hop=HOP,
        frame=Column((c.latent,)),
        given_frame=Column((c.voice,)),
        kv=KVSpec(backbone.layers, backbone.kv_heads, backbone.head_dim, dtype),
        hidden=(Column((c.condition,), dtype),),
        max_model_len=MAX_MODEL_LEN,
        draws=c.latent,
        columns={
            "noise_scale": Column(),
            "noise_below": Column(),
            "end_threshold": Column(),
            "tail": Column(dtype=torch.int64, fill=1),
            "ends_at": Column(dtype=torch.int64, fill=NEVER),
            "flow_steps": Column(dtype=torch.int64, fill=1),
        },
        prompt_rows={"token": Column(dtype=torch.int64)},
        options=_options(c),
        stop_keeps_frame=True,
        reference_rate=RATE,
        reference_seconds=REFERENCE_SECONDS,
        voices=voices,
        default_voice=usual if usual in voices else next(iter(voices), None),
        languages=(language,),
        takes_instructions=False,
        takes_reference=clones,
        num_evals=1,
        codec_timing=CodecTiming(chunk=CHUNK),
        captured_evals=CAPTURED_STEPS if c.flow == "lsd" else (),
    )
