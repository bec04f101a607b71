"""config.json of a Qwen3-Omni checkpoint, as far as its speech needs it, as frozen values.

Every value is read, because the reference's class defaults are not the released values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.layers.experts import ExpertsConfig
from stentor.layers.frame_decoder import FrameDecoderConfig
from stentor.layers.transformer import StackConfig
from stentor.models.config_reader import ConfigReader
from stentor.models.frame_talker import TransformerConfig

SAMPLE_RATE = 24000
"""Hz of the codec. config.json does not say it."""


@dataclass(frozen=True)
class Ids:
    """Special ids: text side (`tts_*`), codec side (the rest)."""

    tts_pad: int
    tts_bos: int
    tts_eos: int
    pad: int
    bos: int
    eos: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class Config:
    """config.json."""

    talker: TransformerConfig
    predictor: TransformerConfig
    decoder: FrameDecoderConfig
    text_vocab: int
    text_hidden: int
    text_inner: int  # of the projection of text rows
    codebooks: int
    ids: Ids
    speakers: Mapping[str, int]  # in lower case


def parse(data: Mapping[str, Any], where: str) -> Config:
    """Read config.json. CheckpointError names a key that is missing, or that asks for what is not served."""
    top = ConfigReader(data, where)
    if not top.flag("enable_audio_output"):
        raise top.error("enable_audio_output", "is false: this checkpoint has no talker, so it cannot speak")
    t = top.section("talker_config")
    text, p = t.section("text_config"), t.section("code_predictor_config")
    thinker = top.section("thinker_config").section("text_config")
    talker = _transformer(text, qk_norm=True, experts=_experts(text))
    predictor = _transformer(p, qk_norm=True)
    decoder = _decoder(top.section("code2wav_config"))
    codebooks = t.count("num_code_groups")
    if predictor.stack.hidden != talker.stack.hidden:
        raise p.error("hidden_size", f"must be the talker's {talker.stack.hidden}, got {predictor.stack.hidden}")
    if not codebooks == p.count("num_code_groups") == decoder.codebooks:
        raise t.error("num_code_groups", "must be that of code_predictor_config, and num_quantizers of code2wav_config")
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
        ids=_ids(top, t),
        speakers={name.lower(): speakers.integer(name, low=0) for name in speakers.data},
    )


def _transformer(r: ConfigReader, qk_norm: bool, experts: ExpertsConfig | None = None) -> TransformerConfig:
    if r.text("hidden_act") != "silu":
        raise r.error("hidden_act", "must be silu")
    if r.flag("attention_bias"):
        raise r.error("attention_bias", "must be false")
    stack = StackConfig(
        hidden=r.integer("hidden_size"),
        ffn=r.integer("intermediate_size"),
        layers=r.count("num_hidden_layers"),
        heads=r.count("num_attention_heads"),
        kv_heads=r.count("num_key_value_heads"),
        head_dim=r.count("head_dim"),
        eps=r.number("rms_norm_eps"),
        qk_norm=qk_norm,
        experts=experts,
    )
    return TransformerConfig(stack, r.integer("vocab_size"), _theta(r), r.integer("max_position_embeddings"))


def _theta(r: ConfigReader) -> float:
    """RoPE's base, which files of transformers 5 have in `rope_parameters`.

    mRoPE is plain RoPE where all tokens are text: the three rows of positions are equal.
    """
    scaling = r.section("rope_parameters" if r.data.get("rope_parameters") is not None else "rope_scaling", {})
    kind = scaling.text("rope_type", "default")
    if kind != "default":
        raise scaling.error("rope_type", f"must be default, got {kind!r}")
    return scaling.number("rope_theta") if "rope_theta" in scaling.data else r.number("rope_theta")


def _experts(r: ConfigReader) -> ExpertsConfig:
    if r.data.get("mlp_only_layers") != [] or r.integer("decoder_sparse_step") != 1:
        raise r.error("mlp_only_layers", "must be empty, and decoder_sparse_step 1: all layers have experts")
    return ExpertsConfig(
        count=r.count("num_experts"),
        chosen=r.count("num_experts_per_tok"),
        ffn=r.integer("moe_intermediate_size"),
        shared=r.integer("shared_expert_intermediate_size"),
        normalised=r.flag("norm_topk_prob"),
    )


def _decoder(r: ConfigReader) -> FrameDecoderConfig:
    hidden, heads = r.integer("hidden_size"), r.count("num_attention_heads")
    stack = StackConfig(
        hidden=hidden,
        ffn=r.integer("intermediate_size"),
        layers=r.count("num_hidden_layers"),
        heads=heads,
        kv_heads=r.count("num_key_value_heads"),
        head_dim=r.count("head_dim", hidden // heads),
        eps=r.number("rms_norm_eps"),
    )
    return FrameDecoderConfig(
        stack=stack,
        theta=_theta(r),
        window=r.integer("sliding_window"),
        latent=hidden,
        codebook_size=r.integer("codebook_size"),
        codebooks=r.count("num_quantizers"),
        width=r.integer("decoder_dim"),
        rates=r.integers("upsample_rates"),
        ratios=r.integers("upsampling_ratios"),
        trims_both=True,
    )


def _ids(top: ConfigReader, t: ConfigReader) -> Ids:
    return Ids(
        tts_pad=top.integer("tts_pad_token_id", low=0),
        tts_bos=top.integer("tts_bos_token_id", low=0),
        tts_eos=top.integer("tts_eos_token_id", low=0),
        pad=t.integer("codec_pad_id", low=0),
        bos=t.integer("codec_bos_id", low=0),
        eos=t.integer("codec_eos_token_id", low=0),
        nothink=t.integer("codec_nothink_id", low=0),
        think_bos=t.integer("codec_think_bos_id", low=0),
        think_eos=t.integer("codec_think_eos_id", low=0),
    )
