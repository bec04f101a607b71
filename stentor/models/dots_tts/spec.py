"""The family's `ModelSpec`: options, keys and values by position and by patch, columns,
references."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stentor.layers.types import Column
from stentor.models.base import FrameKVSpec, KVSpec, ModelSpec
from stentor.models.codec_timing import CodecTiming
from stentor.models.dots_tts.config import LOOKAHEAD, DotsConfig
from stentor.models.dots_tts.flow import FLOW, PARTS
from stentor.models.dots_tts.live_text import COLUMNS
from stentor.models.dots_tts.network import ENCODER, TOKENS
from stentor.models.dots_tts.prompt import LANGUAGES, MARKS, MAX_PATCHES
from stentor.models.info import Option

MAX_MODEL_LEN = 2048
REFERENCE_SECONDS = (0.3, 60.0)
SPEAKER_SCALE = 1.5
EOS_THRESHOLD = 0.8
MAX_SILENT = 10
CHUNK = 16
"""Patches of one call of the codec at most."""


def _options(c: DotsConfig) -> dict[str, Option]:
    options = {
        "temperature": Option(1.0, 0, 2, float, "scale of the noise; the package knows only 1"),
        "speaker_scale": Option(SPEAKER_SCALE, 0, 10, float, "scale of the speaker vector"),
        "eos_threshold": Option(
            EOS_THRESHOLD, 0, 1, float, "probability above which the next patch is the last"
        ),
        "min_frames": Option(0, 0, MAX_PATCHES, int, "patches made before a stop counts"),
        "max_frames": Option(MAX_PATCHES, 1, MAX_PATCHES, int, "patches kept at most"),
        "ignore_eos": Option(False, 0, 1, bool, "never stop before the frame limit"),
    }
    if c.quotas is not None:
        options["silent_frames"] = Option(
            1, 0, MAX_SILENT, int, "patches of silence before text that arrives is heard"
        )
    if c.solver.branches == 2:
        options["cfg"] = Option(c.solver.guidance, 0, 10, float, "classifier-free guidance")
    return options


def page_sets(c: DotsConfig, dtype: torch.dtype) -> dict[str, FrameKVSpec]:
    """Keys and values by patch: of the semantic encoder, and of each evaluation and branch of the
    flow head."""
    e = c.encoder
    f = c.flow
    flows = f.layers * c.solver.evaluations * c.solver.branches
    return {
        ENCODER: FrameKVSpec(
            layers=e.layers, heads=e.heads, dim=e.head_dim, dtype=dtype, rows=TOKENS
        ),
        FLOW: FrameKVSpec(
            layers=flows, heads=f.heads, dim=f.head_dim, dtype=dtype, rows=c.patch + 1
        ),
    }


def make_spec(c: DotsConfig, dtype: torch.dtype, more_columns: Mapping[str, Column]) -> ModelSpec:
    """Facts about one checkpoint. more_columns: what its adapters need."""
    i64 = torch.int64
    llm = c.language
    hidden = Column((c.language.hidden,), dtype)
    table = (c.solver.evaluations, c.flow.layers * PARTS + 2, c.flow.hidden)
    return ModelSpec(
        family="dots_tts",
        sample_rate=c.vocoder.sample_rate,
        hop=c.hop,
        frame=Column((c.patch, c.latent)),
        given_frame=Column((2 * c.patch, c.latent)),
        kv=KVSpec(llm.layers, llm.kv_heads, llm.head_dim, dtype),
        frame_kv=page_sets(c, dtype),
        hidden=(hidden,),
        max_model_len=min(MAX_MODEL_LEN, c.positions),
        draws=c.solver.noises * c.patch * c.latent,
        columns={
            "modulation": Column(table, dtype),
            "speaker": Column((c.speaker,)),
            "tail": Column((c.latent,)),
            "last_hidden": hidden,
            "first_hidden": hidden,
            "given": Column(dtype=torch.int64),
            "cfg": Column(),
            "noise_scale": Column(fill=1.0),
            "eos_threshold": Column(fill=1.0),
            **(
                {**COLUMNS, "silent": Column(dtype=i64), "most": Column(dtype=i64)}
                if c.quotas is not None
                else {}
            ),
            **more_columns,
        },
        prompt_rows={
            "token": Column(dtype=torch.int64),
            "patch": Column(dtype=torch.int64),
        },
        options=_options(c),
        stop_keeps_frame=True,
        hides_frames=True,
        reference_rate=c.vocoder.sample_rate,
        reference_seconds=REFERENCE_SECONDS,
        languages=tuple(LANGUAGES),
        takes_instructions=True,
        marks=MARKS,
        live_text=c.quotas is not None,
        codec_timing=CodecTiming(late=LOOKAHEAD * c.vocoder.hop, chunk=CHUNK),
        num_evals=c.solver.evaluations,
    )
