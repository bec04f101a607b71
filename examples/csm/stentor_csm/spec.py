"""The family's `ModelSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec
from stentor.models.config_reader import ConfigReader
from stentor.models.info import Option
from stentor_csm.config import Config

SPEAKERS = tuple(str(n) for n in range(10))
REFERENCE_SECONDS = (0.5, 60.0)
MAX_FRAMES = 125  # the released files' own limit, 10 s
SAMPLING = ("temperature", "top_k", "top_p")
DEPTH_SAMPLING = ("depth_temperature", "depth_top_k", "depth_top_p")


def _sampling(g: ConfigReader, file: str, name: str, vocab: int, what: str) -> dict[str, Option]:
    """Options of one sampler. file, name: prefixes in generation_config.json and here."""
    drawn = g.flag(f"{file}do_sample", True)
    heat = g.number(f"{file}temperature", 0.9, above=0) if drawn else 0.0
    return {
        f"{name}temperature": Option(heat, 0, 2, float, f"randomness of {what}; 0 is greedy"),
        f"{name}top_k": Option(
            g.integer(f"{file}top_k", 50, low=0), 0, vocab, int, f"{what}: codes kept; 0 keeps all"
        ),
        f"{name}top_p": Option(
            g.number(f"{file}top_p", 1.0), 0, 1, float, f"{what}: probability mass kept"
        ),
    }


def make_spec(c: Config, defaults: Mapping[str, Any], dtype: torch.dtype) -> ModelSpec:
    """Facts of one checkpoint. defaults: generation_config.json. dtype: of the language models."""
    g = ConfigReader(defaults, "generation_config.json")
    longest = min(g.integer("max_new_tokens", MAX_FRAMES), c.positions)
    columns = {name: Column() for name in ("depth_temperature", "depth_top_p")}
    return ModelSpec(
        family="csm",
        sample_rate=c.codec.sample_rate,
        hop=c.codec.hop,
        frame=Column((c.codebooks,), torch.int32),
        kv=KVSpec(c.backbone.layers, c.backbone.kv_heads, c.backbone.head_dim, dtype),
        hidden=(Column((c.backbone.hidden,), dtype),),
        max_model_len=c.positions,
        draws=c.codebooks,
        columns={**columns, "depth_top_k": Column(dtype=torch.int64)},
        prompt_rows={"token": Column(dtype=torch.int32, fill=-1)},
        options={
            **_sampling(g, "", "", c.vocab, "the first code"),
            **_sampling(g, "depth_decoder_", "depth_", c.vocab, "the other codes"),
            "min_frames": Option(0, 0, c.positions, int, "frames before a stop counts"),
            "max_frames": Option(longest, 1, c.positions, int, "frames kept at most"),
        },
        stop_keeps_frame=False,
        reference_rate=c.codec.sample_rate,
        reference_seconds=REFERENCE_SECONDS,
        voices=SPEAKERS,
        takes_instructions=False,
        batch_invariant=True,
    )
