"""A model's description: config.json as transformers writes it, or as Gradium's runtime reads it.

Released files serve both. The runtime's sections are used where they are there, as only they
describe the codec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.models.calm_config import (
    FRAMES_PER_SECOND,
    LSD,
    MAX_STEPS,
    RATE,
    RATIOS,
    THETA,
    CalmConfig,
    HeadConfig,
    LayerConfig,
    SeanetConfig,
    TextConfig,
)
from stentor.models.config_reader import ConfigReader

TEMPERATURE = 0.3
END_THRESHOLD = -4.0
VOICE = 512
FOLDED = {
    '"': "\u201c\u201d\u201e\u00ab\u00bb",
    "'": "\u2019\u2018`",
    "-": "\u2010\u2011\u2012\u2015",
    " ": "\u2013\u2014*[]{}\u2022\u00b7\u2192",
    ".": "\u2026",
}
"""Characters that the runtime folds before it reads a text, since training had none of them."""
TEXT = TextConfig(
    replace={character: plain for plain, characters in FOLDED.items() for character in characters},
    remove_semicolons=True,
    capitalize=True,
    end_mark=True,
    pad_short=False,
)
LANGUAGES = {
    "en": "english",
    "fr": "french",
    "de": "german",
    "es": "spanish",
    "pt": "portuguese",
}


@dataclass(frozen=True)
class DurationConfig:
    """How a pace becomes `dim` sines and cosines."""

    dim: int
    scale: float
    period: float


@dataclass(frozen=True)
class PhononConfig(CalmConfig):
    """Sizes and habits of one checkpoint. speakers: the row of the table of `speaker_rows` by
    `speaker_width` that is added to audio."""

    speakers: int
    speaker_rows: int
    speaker_width: int
    duration: DurationConfig
    languages: tuple[str, ...]


def parse(config: Mapping[str, Any], generation: Mapping[str, Any], file: str) -> PhononConfig:
    """The whole description. generation: generation_config.json. CheckpointError names a field that
    is missing, malformed or not supported."""
    top = ConfigReader(config, file)
    defaults = ConfigReader(generation, "generation_config.json")
    if "flow_lm" in config:
        lm = top.section("flow_lm")
        backbone = _runtime_layers(lm)
        head = _runtime_head(lm, backbone.hidden)
        vocab = lm.integer("n_bins")
        rank = lm.integer("lut_dim", backbone.hidden)
    else:
        backbone = _layers(top)
        head = _head(top, backbone.hidden)
        vocab = top.integer("vocab_size", low=2) - 1
        rank = backbone.hidden
    codec = top.section("mimi", {})
    count = _conditioner(top, "num_speakers", "lut")
    speakers = top.integer("num_speakers", 1, low=0)
    rows = top.integer("num_speakers_vocab_size", count.integer("n_bins", 31) + 1)
    if speakers >= rows:
        raise top.error("num_speakers", f"must be below {rows}, got {speakers}")
    _check_codec(codec)
    return PhononConfig(
        backbone=backbone,
        head=head,
        vocab=vocab,
        text_rank=0 if rank == backbone.hidden else rank,
        projects_condition=False,
        voice=_voice(top),
        voice_bos=False,
        decoder=_decoder(codec),
        decoder_seanet=_seanet(codec),
        text=TEXT,
        tail=None,
        temperature=top.number("temp", defaults.number("temperature", TEMPERATURE)),
        end_threshold=top.number(
            "eos_threshold",
            defaults.number("eos_threshold", END_THRESHOLD),
        ),
        flow_steps=top.integer(
            "lsd_decode_steps",
            defaults.integer("num_flow_steps", 1, high=MAX_STEPS),
            high=MAX_STEPS,
        ),
        speakers=speakers,
        speaker_rows=rows,
        speaker_width=top.integer("num_speakers_embedding_dim", count.integer("dim", 16)),
        duration=_duration(top),
        languages=_languages(top),
    )


def _layers(s: ConfigReader) -> LayerConfig:
    hidden = s.integer("hidden_size")
    heads = s.integer("num_attention_heads")
    kv_heads = s.integer("num_key_value_heads", heads)
    head_dim = s.integer("head_dim", hidden // heads)
    if heads % kv_heads:
        raise s.error("num_key_value_heads", f"must divide {heads}, got {kv_heads}")
    rope = s.section("rope_parameters", {})
    if rope.text("rope_type", "default") != "default":
        raise rope.error("rope_type", f"must be default, got {rope.data['rope_type']!r}")
    _expect(rope, "rope_theta", THETA)
    _expect(s, "hidden_act", "gelu")
    _expect(s, "attention_bias", False)
    _expect(s, "layer_norm_eps", 1e-5)
    ffn = s.integer("intermediate_size")
    layers = s.count("num_hidden_layers")
    return LayerConfig(hidden, heads, kv_heads, head_dim, ffn, layers, exact_gelu=True)


def _runtime_layers(s: ConfigReader) -> LayerConfig:
    hidden = s.integer("d_model")
    heads = s.integer("num_heads")
    if hidden % heads:
        raise s.error("num_heads", f"must divide d_model ({hidden}), got {heads}")
    _expect(s, "max_period", THETA)
    ffn = s.integer("dim_feedforward")
    layers = s.count("num_layers")
    head_dim = hidden // heads
    return LayerConfig(hidden, heads, heads, head_dim, ffn, layers, exact_gelu=True)


def _head(s: ConfigReader, hidden: int) -> HeadConfig:
    head = s.section("flow_head_config")
    _expect(head, "frequency_embedding_size", 256)
    _expect(head, "condition_dim", hidden)
    flow = head.choice("flow_type", (LSD, "drifting"), LSD)
    return HeadConfig(
        flow=flow,
        width=head.integer("hidden_size"),
        depth=head.count("num_hidden_layers"),
        condition=hidden,
        latent=s.integer("latent_dim"),
        rms_times=True,
    )


def _runtime_head(s: ConfigReader, hidden: int) -> HeadConfig:
    return HeadConfig(
        flow=LSD,
        width=s.integer("flow_dim"),
        depth=s.count("flow_depth"),
        condition=hidden,
        latent=s.integer("ldim"),
        rms_times=s.choice("time_rms_norm", ("rms", "rms_var"), "rms_var") == "rms",
    )


def _voice(top: ConfigReader) -> int:
    """Numbers of a latent of the codec that encodes voices, which is not the one that speaks."""
    speaker = top.section("speaker_mimi", {}).section("mimi", {})
    return top.integer("audio_prompt_dim", speaker.integer("dimension", VOICE))


def _duration(top: ConfigReader) -> DurationConfig:
    s = _conditioner(top, "duration_delta", "continuous")
    return DurationConfig(
        dim=top.integer("duration_delta_embedding_dim", s.integer("dim", 128), low=4),
        scale=top.number("duration_delta_scale", s.number("scale_factor", 1000.0)),
        period=top.number(
            "duration_delta_max_period",
            s.number("max_period", 10_000.0),
            above=0,
        ),
    )


def _conditioner(top: ConfigReader, name: str, kind: str) -> ConfigReader:
    """The runtime's description of a conditioner, empty where there is none."""
    conditioners = top.data.get("conditioners") or []
    if not isinstance(conditioners, list):
        raise top.error("conditioners", f"must be a list, got {conditioners!r}")
    for data in conditioners:
        s = ConfigReader(data, top.file, "conditioners")
        if s.text("name") == name:
            return s.section(kind)
    return ConfigReader({}, top.file, name)


def _languages(top: ConfigReader) -> tuple[str, ...]:
    codes = top.texts("languages", ("en",))
    for code in codes:
        if code not in LANGUAGES:
            raise top.error("languages", f"must be of {', '.join(LANGUAGES)}, got {code!r}")
    return tuple(LANGUAGES[code] for code in codes)


def _check_codec(s: ConfigReader) -> None:
    _expect(s, "sample_rate", RATE)
    _expect(s, "channels", 1)
    _expect(s, "n_residual_layers", 1)
    _expect(s, "transformer_max_period", THETA)
    if s.integers("ratios", RATIOS) != RATIOS:
        raise s.error("ratios", f"must be {list(RATIOS)}, got {s.data['ratios']!r}")
    _expect(s, "frame_rate", FRAMES_PER_SECOND)


def _decoder(s: ConfigReader) -> LayerConfig:
    hidden = s.integer("transformer_d_model", 512)
    heads = s.integer("transformer_num_heads", 8)
    if hidden % heads:
        raise s.error("transformer_num_heads", f"must divide {hidden}, got {heads}")
    ffn = s.integer("transformer_dim_feedforward", 2048)
    layers = s.count("transformer_num_layers", 2)
    window = s.integer("transformer_context", 250, low=2)
    return LayerConfig(hidden, heads, heads, hidden // heads, ffn, layers, window)


def _seanet(s: ConfigReader) -> SeanetConfig:
    return SeanetConfig(
        filters=s.integer("n_filters", 64),
        kernel=s.integer("kernel_size", 7),
        residual_kernel=s.integer("residual_kernel_size", 3),
        last_kernel=s.integer("last_kernel_size", 3),
        compress=s.integer("compress", 2),
    )


def _expect(s: ConfigReader, key: str, value: float | str | bool) -> None:
    """CheckpointError for a field that is there and is not `value`."""
    if s.data.get(key, value) != value:
        raise s.error(key, f"must be {value}, got {s.data[key]!r}")
