"""config.json as frozen values: of Realtime, and of the models for dialogues in both layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from stentor.layers.configs import StackConfig
from stentor.models.config_reader import ConfigReader
from stentor.models.stack_config import even_heads, read_stack

SAMPLE_RATE = 24_000
NEGATIVE = "negative"
"""The page set of the sequence that holds no text."""
TRAINING_STEPS = 1000
"""Timesteps of the diffusion that the head was trained with."""
MAX_EVALUATIONS = 20
"""Evaluations of the head per latent at most."""


@dataclass(frozen=True)
class HeadConfig:
    """Sizes of the diffusion head."""

    hidden: int
    ffn: int
    layers: int
    latent: int
    eps: float


@dataclass(frozen=True)
class HalfConfig:
    """Sizes of a half of the codec. ratios, depths: in the order in which it computes."""

    latent: int
    filters: int
    ratios: tuple[int, ...]
    depths: tuple[int, ...]
    eps: float

    @property
    def hop(self) -> int:
        """Samples of one latent."""
        return prod(self.ratios)

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage, the fewest at the samples."""
        return tuple(self.filters * 2**stage for stage in range(len(self.depths)))


@dataclass(frozen=True)
class EncoderConfig(HalfConfig):
    """Sizes of an encoder, from samples to latents."""


@dataclass(frozen=True)
class DecoderConfig(HalfConfig):
    """Sizes of the decoder, from latents to samples."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage, the fewest at the samples."""
        return super().widths[::-1]


@dataclass(frozen=True)
class DialogueConfig:
    """Sizes of one checkpoint of 1.5B or 7B. acoustic: encodes recordings. semantic: encodes what
    has been spoken. tied: the output layer is the table of embeddings."""

    language: StackConfig
    vocab: int
    tied: bool
    theta: float
    positions: int
    head: HeadConfig
    decoder: DecoderConfig
    acoustic: EncoderConfig
    semantic: EncoderConfig


@dataclass(frozen=True)
class RealtimeConfig:
    """Sizes of one checkpoint. lower: the stack that text alone goes through. upper: the one that
    text and latents go through."""

    lower: StackConfig
    upper: StackConfig
    vocab: int
    theta: float
    positions: int
    head: HeadConfig
    decoder: DecoderConfig


def parse_realtime(raw: Mapping[str, Any]) -> RealtimeConfig:
    """Read config.json of Realtime. CheckpointError names what is missing, wrong or of another
    kind."""
    top = ConfigReader(raw)
    language = top.section("decoder_config")
    _check_language(language)
    layers = language.count("num_hidden_layers")
    upper_layers = top.count("tts_backbone_num_hidden_layers")
    if upper_layers >= layers:
        raise top.error(
            "tts_backbone_num_hidden_layers", f"must be below {layers}, got {upper_layers}"
        )
    head = _head(top.section("diffusion_head_config"))
    decoder = _decoder(top.section("acoustic_tokenizer_config"))
    _check_sizes(top, language, head, decoder)
    return RealtimeConfig(
        lower=_stack(language, layers - upper_layers),
        upper=_stack(language, upper_layers),
        vocab=language.integer("vocab_size"),
        theta=_theta(language),
        positions=language.integer("max_position_embeddings"),
        head=head,
        decoder=decoder,
    )


def parse_dialogue(raw: Mapping[str, Any]) -> DialogueConfig:
    """Read config.json of 1.5B or 7B, in the layout of the release or in that of transformers.
    CheckpointError names what is missing, wrong or of another kind."""
    top = ConfigReader(raw)
    newer = "text_config" in raw
    language = top.section("text_config" if newer else "decoder_config")
    _check_language(language)
    audio = top.section("audio_config" if newer else "acoustic_tokenizer_config")
    semantic = top.section("semantic_model_config" if newer else "semantic_tokenizer_config")
    read_encoder = _newer_encoder if newer else _encoder
    acoustic = read_encoder(audio)
    head = _head(top.section("diffusion_head_config"))
    decoder = _mirrored(acoustic) if newer else _decoder(audio)
    _check_sizes(top, language, head, decoder)
    return DialogueConfig(
        language=_stack(language, language.count("num_hidden_layers")),
        vocab=language.integer("vocab_size"),
        tied=language.flag("tie_word_embeddings", False),
        theta=_theta(language),
        positions=language.integer("max_position_embeddings"),
        head=head,
        decoder=decoder,
        acoustic=acoustic,
        semantic=read_encoder(semantic),
    )


def _check_language(language: ConfigReader) -> None:
    expected = {"rope_scaling": None, "use_sliding_window": False, "hidden_act": "silu"}
    _require(language, expected)


def _check_sizes(
    top: ConfigReader, language: ConfigReader, head: HeadConfig, decoder: DecoderConfig
) -> None:
    if head.hidden != language.integer("hidden_size"):
        raise language.error("hidden_size", f"must be {head.hidden}, as that of the head")
    if decoder.latent != head.latent:
        raise top.error("diffusion_head_config.latent_size", f"must be {decoder.latent}")


def _theta(language: ConfigReader) -> float:
    """The base of RoPE, which newer files keep in a section of its own."""
    parameters = language.section("rope_parameters", {})
    if parameters.data.get("rope_type", "default") != "default":
        raise parameters.error("rope_type", "must be default")
    if "rope_theta" in parameters.data:
        return parameters.number("rope_theta", above=0)
    return language.number("rope_theta", above=0)


def _require(reader: ConfigReader, expected: Mapping[str, object]) -> None:
    """Check keys whose other values mean another network. One that is left out has the value."""
    for key, value in expected.items():
        if reader.data.get(key, value) != value:
            raise reader.error(key, f"must be {value!r}, got {reader.data[key]!r}")


def _stack(language: ConfigReader, layers: int) -> StackConfig:
    sizes = ConfigReader(
        {**language.data, "num_hidden_layers": layers}, language.file, "decoder_config"
    )
    return read_stack(
        sizes, language.number("rms_norm_eps", above=0), even_heads(language), qkv_bias=True
    )


def _head(section: ConfigReader) -> HeadConfig:
    _require(
        section,
        {
            "prediction_type": "v_prediction",
            "ddpm_beta_schedule": "cosine",
            "ddpm_num_steps": TRAINING_STEPS,
            "diffusion_type": "ddpm",
        },
    )
    hidden = section.integer("hidden_size")
    latent = section.integer("latent_size")
    ffn = section.integer(
        "intermediate_size", int(hidden * section.number("head_ffn_ratio", 3.0, above=0))
    )
    if latent % 2:
        raise section.error("latent_size", f"must be even, got {latent}")
    return HeadConfig(
        hidden=hidden,
        ffn=ffn,
        layers=section.count(
            "num_hidden_layers" if "num_hidden_layers" in section.data else "head_layers"
        ),
        latent=latent,
        eps=section.number("rms_norm_eps", above=0),
    )


def _check_codec(section: ConfigReader) -> None:
    _require(
        section,
        {
            "causal": True,
            "channels": 1,
            "conv_bias": True,
            "conv_norm": "none",
            "disable_last_norm": True,
            "layernorm": "RMSNorm",
            "mixer_layer": "depthwise_conv",
            "pad_mode": "constant",
        },
    )


def _encoder(section: ConfigReader) -> EncoderConfig:
    """An encoder in the layout of the release, whose ratios are written in the decoder's order."""
    _check_codec(section)
    ratios = section.integers("encoder_ratios")[::-1]
    depths = _numbers(section, "encoder_depths")
    _check_depths(section, "encoder_depths", depths, ratios)
    return EncoderConfig(
        latent=section.integer("vae_dim"),
        filters=section.integer("encoder_n_filters"),
        ratios=ratios,
        depths=depths,
        eps=section.number("layernorm_eps", above=0),
    )


def _newer_encoder(section: ConfigReader) -> EncoderConfig:
    """An encoder in the layout of transformers."""
    _require(section, {"channels": 1, "kernel_size": 7, "ffn_expansion": 4, "hidden_act": "gelu"})
    ratios = section.integers("downsampling_ratios")
    depths = section.integers("depths")
    _check_depths(section, "depths", depths, ratios)
    return EncoderConfig(
        latent=section.integer("hidden_size"),
        filters=section.integer("num_filters"),
        ratios=ratios,
        depths=depths,
        eps=section.number("rms_norm_eps", above=0),
    )


def _mirrored(c: EncoderConfig) -> DecoderConfig:
    return DecoderConfig(c.latent, c.filters, c.ratios[::-1], c.depths[::-1], c.eps)


def _decoder(section: ConfigReader) -> DecoderConfig:
    _check_codec(section)
    ratios = section.integers("decoder_ratios", section.integers("encoder_ratios"))
    if section.data.get("decoder_depths") is None:
        key = "encoder_depths"
        depths = _numbers(section, key)[::-1]
    else:
        key = "decoder_depths"
        depths = _numbers(section, key)
    _check_depths(section, key, depths, ratios)
    return DecoderConfig(
        latent=section.integer("vae_dim"),
        filters=section.integer("decoder_n_filters", section.integer("encoder_n_filters")),
        ratios=ratios,
        depths=depths,
        eps=section.number("layernorm_eps", above=0),
    )


def _numbers(section: ConfigReader, key: str) -> tuple[int, ...]:
    """Blocks of each stage, joined by hyphens."""
    parts = section.text(key).split("-")
    if not all(part.isdecimal() and 0 < int(part) <= 64 for part in parts):
        raise section.error(key, f"must be numbers joined by hyphens, got {section.data[key]!r}")
    return tuple(int(part) for part in parts)


def _check_depths(
    section: ConfigReader, key: str, depths: tuple[int, ...], ratios: tuple[int, ...]
) -> None:
    if len(depths) != len(ratios) + 1:
        raise section.error(key, f"must have {len(ratios) + 1} numbers, got {len(depths)}")
