"""config.json of a checkpoint and of its speech tokenizer, as frozen values.

Every value is read, because the reference's class defaults are not the released values. The Mimi
encoder is the exception. Its config class ships with the released values, so those keys may be left
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.layers.configs import FrameDecoderConfig, StackConfig
from stentor.models.config_reader import ConfigReader
from stentor.models.source import Source
from stentor.models.stack_config import read_stack
from stentor.models.talker_config import (
    TalkerConfig,
    TransformerConfig,
    read_frame_decoder,
    read_ids,
    read_numbers,
)

KINDS = ("base", "custom_voice", "voice_design")
TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"
CODEC_FOLDER = "speech_tokenizer"


@dataclass(frozen=True)
class SpeakerConfig:
    """ECAPA-TDNN. Only `dim` and the rate are in released files. The rest are the reference's class
    values."""

    dim: int
    mels: int
    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    scale: int
    squeeze: int
    sample_rate: int


@dataclass(frozen=True)
class Config(TalkerConfig):
    """config.json of the model."""

    kind: str  # one of KINDS
    size: str  # "0b6" or "1b7"
    think: int  # the codec id before a language
    languages: Mapping[str, int]  # with dialects
    dialects: Mapping[str, str]  # speaker -> the dialect it speaks
    speaker: SpeakerConfig | None  # Base only


def _transformer(r: ConfigReader) -> TransformerConfig:
    if r.text("hidden_act", "silu") != "silu":
        raise r.error("hidden_act", "must be silu")
    stack = read_stack(r, r.number("rms_norm_eps", 1e-6), r.count("head_dim"), qk_norm=True)
    theta = r.number("rope_theta", 1e6)
    positions = r.integer("max_position_embeddings", 32768)
    return TransformerConfig(stack, r.integer("vocab_size"), theta, positions)


def _speaker(r: ConfigReader) -> SpeakerConfig:
    config = SpeakerConfig(
        dim=r.integer("enc_dim"),
        mels=r.integer("mel_dim", 128),
        channels=r.integers("enc_channels", (512, 512, 512, 512, 1536)),
        kernels=r.integers("enc_kernel_sizes", (5, 3, 3, 3, 1)),
        dilations=r.integers("enc_dilations", (1, 2, 3, 4, 1)),
        attention=r.integer("enc_attention_channels", 128),
        scale=r.count("enc_res2net_scale", 8),
        squeeze=r.integer("enc_se_channels", 128),
        sample_rate=r.integer("sample_rate", 24000),
    )
    if not len(config.channels) == len(config.kernels) == len(config.dilations):
        raise r.error("enc_channels", "differs in length from enc_kernel_sizes or enc_dilations")
    return config


def parse(data: Mapping[str, Any], where: str) -> Config:
    """The model's config.json. CheckpointError names a key that is missing or wrong."""
    top = ConfigReader(data, where)
    kind = top.choice("tts_model_type", KINDS)
    tokenizer = top.text("tokenizer_type")
    if tokenizer != TOKENIZER_TYPE:
        raise top.error("tokenizer_type", f"must be {TOKENIZER_TYPE}, got {tokenizer!r}")
    t = top.section("talker_config")
    languages = read_numbers(t.section("codec_language_id", {}))
    dialects = {name.lower(): str(d) for name, d in t.table("spk_is_dialect", {}).items() if d}
    for name, dialect in dialects.items():
        if dialect not in languages:
            raise t.error("spk_is_dialect", f"of {name} is {dialect!r}, not in codec_language_id")
    return Config(
        kind=kind,
        size=top.text("tts_model_size"),
        talker=_transformer(t),
        predictor=_transformer(t.section("code_predictor_config")),
        text_vocab=t.integer("text_vocab_size"),
        text_hidden=t.integer("text_hidden_size"),
        codebooks=t.count("num_code_groups"),
        ids=read_ids(top, t),
        think=t.integer("codec_think_id", low=0),
        languages=languages,
        speakers=read_numbers(t.section("spk_id", {})),
        dialects=dialects,
        speaker=_speaker(top.section("speaker_encoder_config")) if kind == "base" else None,
    )


@dataclass(frozen=True)
class EncoderConfig:
    """The codec's encoder half (Mimi)."""

    stack: StackConfig
    theta: float
    filters: int
    kernel: int
    residual_kernel: int
    last_kernel: int
    residual_layers: int
    growth: int
    compress: int
    ratios: tuple[int, ...]
    codebook_size: int
    codebook_dim: int
    quantizer_dim: int
    quantizers: int  # stored
    semantic: int
    num_codebooks: int  # quantizers whose codes are kept
    hop: int


@dataclass(frozen=True)
class CodecConfig:
    """speech_tokenizer/config.json."""

    sample_rate: int
    decoder: FrameDecoderConfig
    encoder: EncoderConfig


def _decoder(r: ConfigReader) -> FrameDecoderConfig:
    stack = read_stack(r, r.number("rms_norm_eps"), r.count("head_dim"))
    latent = r.integer("latent_dim")
    width = r.integer("codebook_dim")
    return read_frame_decoder(r, stack, r.number("rope_theta"), latent, codebook_dim=width)


def _encoder(r: ConfigReader, num_codebooks: int, hop: int) -> EncoderConfig:
    hidden = r.integer("hidden_size", 512)
    heads = r.count("num_attention_heads", 8)
    stack = StackConfig(
        hidden=hidden,
        ffn=r.integer("intermediate_size", 2048),
        layers=r.count("num_hidden_layers", 8),
        heads=heads,
        kv_heads=r.count("num_key_value_heads", 8),
        head_dim=r.count("head_dim", hidden // heads),
        eps=r.number("norm_eps", 1e-5),
    )
    return EncoderConfig(
        stack=stack,
        theta=r.number("rope_theta", 10000.0),
        filters=r.integer("num_filters", 64),
        kernel=r.integer("kernel_size", 7),
        residual_kernel=r.integer("residual_kernel_size", 3),
        last_kernel=r.integer("last_kernel_size", 3),
        residual_layers=r.count("num_residual_layers", 1),
        growth=r.integer("dilation_growth_rate", 2),
        compress=r.integer("compress", 2),
        ratios=r.integers("upsampling_ratios", (8, 6, 5, 4)),
        codebook_size=r.integer("codebook_size", 2048),
        codebook_dim=r.integer("codebook_dim", 256),
        quantizer_dim=r.integer("vector_quantization_hidden_dimension", 256),
        quantizers=r.count("num_quantizers", 32),
        semantic=r.count("num_semantic_quantizers", 1),
        num_codebooks=num_codebooks,
        hop=hop,
    )


def parse_codec(data: Mapping[str, Any], where: str) -> CodecConfig:
    """speech_tokenizer/config.json. CheckpointError names a key that is missing or wrong."""
    top = ConfigReader(data, where)
    decoder = _decoder(top.section("decoder_config"))
    up = top.integer("decode_upsample_rate")
    down = top.integer("encode_downsample_rate")
    if up != decoder.hop:
        raise top.error(
            "decode_upsample_rate", f"is {up}, but the up-sampling rates make {decoder.hop}"
        )
    encoder = _encoder(
        top.section("encoder_config"), top.count("encoder_valid_num_quantizers"), down
    )
    return CodecConfig(top.integer("output_sample_rate"), decoder, encoder)


def read_codec(source: Source) -> CodecConfig:
    """The config in speech_tokenizer."""
    name = f"{CODEC_FOLDER}/config.json"
    return parse_codec(source.json(name), f"{source.name}/{name}")
