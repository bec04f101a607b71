"""config.json of a Qwen3-Omni checkpoint, as far as its speech needs it, as frozen values.

Every value is read, because the reference's class defaults are not the released values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.layers.configs import ExpertsConfig, FrameDecoderConfig
from stentor.models.config_reader import ConfigReader
from stentor.models.stack_config import even_heads, read_stack
from stentor.models.talker_config import (
    TalkerConfig,
    TransformerConfig,
    read_frame_decoder,
    read_ids,
    read_numbers,
)

SAMPLE_RATE = 24000
"""Hz of the codec. config.json does not say it."""


@dataclass(frozen=True)
class Config(TalkerConfig):
    """config.json."""

    decoder: FrameDecoderConfig
    text_inner: int  # of the projection of text rows


def parse(data: Mapping[str, Any], where: str) -> Config:
    """Read config.json. CheckpointError names a key that is missing or selects what is not
    served."""
    top = ConfigReader(data, where)
    if not top.flag("enable_audio_output"):
        raise top.error(
            "enable_audio_output", "is false: this checkpoint has no talker, so it cannot speak"
        )
    t = top.section("talker_config")
    text = t.section("text_config")
    p = t.section("code_predictor_config")
    thinker = top.section("thinker_config").section("text_config")
    talker = _transformer(text, _experts(text))
    predictor = _transformer(p)
    decoder = _decoder(top.section("code2wav_config"))
    codebooks = t.count("num_code_groups")
    if predictor.stack.hidden != talker.stack.hidden:
        raise p.error(
            "hidden_size",
            f"must be the talker's {talker.stack.hidden}, got {predictor.stack.hidden}",
        )
    if not codebooks == p.count("num_code_groups") == decoder.codebooks:
        raise t.error(
            "num_code_groups",
            "must be that of code_predictor_config, and num_quantizers of code2wav_config",
        )
    if t.integer("thinker_hidden_size") != thinker.integer("hidden_size"):
        raise t.error("thinker_hidden_size", "must be hidden_size of the thinker")
    speakers = t.section("speaker_id")
    if not speakers.data:
        raise t.error("speaker_id", "must name a voice")
    return Config(
        talker=talker,
        predictor=predictor,
        decoder=decoder,
        text_vocab=thinker.integer("vocab_size"),
        text_hidden=thinker.integer("hidden_size"),
        text_inner=text.integer("intermediate_size"),
        codebooks=codebooks,
        ids=read_ids(top, t),
        speakers=read_numbers(speakers),
    )


def _transformer(r: ConfigReader, experts: ExpertsConfig | None = None) -> TransformerConfig:
    if r.text("hidden_act") != "silu":
        raise r.error("hidden_act", "must be silu")
    if r.flag("attention_bias"):
        raise r.error("attention_bias", "must be false")
    stack = read_stack(
        r, r.number("rms_norm_eps"), r.count("head_dim"), qk_norm=True, experts=experts
    )
    return TransformerConfig(
        stack, r.integer("vocab_size"), _theta(r), r.integer("max_position_embeddings")
    )


def _theta(r: ConfigReader) -> float:
    """RoPE's base, which files of transformers 5 have in `rope_parameters`.

    mRoPE is plain RoPE where all tokens are text: the three rows of positions are equal.
    """
    scaling = r.section(
        "rope_parameters" if r.data.get("rope_parameters") is not None else "rope_scaling", {}
    )
    kind = scaling.text("rope_type", "default")
    if kind != "default":
        raise scaling.error("rope_type", f"must be default, got {kind!r}")
    if "rope_theta" in scaling.data:
        return scaling.number("rope_theta")
    return r.number("rope_theta")


def _experts(r: ConfigReader) -> ExpertsConfig:
    if r.data.get("mlp_only_layers") != [] or r.integer("decoder_sparse_step") != 1:
        raise r.error(
            "mlp_only_layers", "must be empty, and decoder_sparse_step 1: all layers have experts"
        )
    return ExpertsConfig(
        count=r.count("num_experts"),
        chosen=r.count("num_experts_per_tok"),
        ffn=r.integer("moe_intermediate_size"),
        shared=r.integer("shared_expert_intermediate_size"),
        normalised=r.flag("norm_topk_prob"),
    )


def _decoder(r: ConfigReader) -> FrameDecoderConfig:
    stack = read_stack(r, r.number("rms_norm_eps"), r.count("head_dim", even_heads(r)))
    return read_frame_decoder(r, stack, _theta(r), stack.hidden, trims_both=True)
