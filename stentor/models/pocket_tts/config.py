"""A model's description: the YAML file of a checkpoint, checked once and turned into plain
dataclasses.

Released repositories hold no YAML. `released.json` has theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stentor.models.calm_config import (
    FLOWS,
    LSD,
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

END_THRESHOLD = -4.0
TEMPERATURE = 0.3
TAIL = "model_recommended_frames_after_eos"
WITHOUT_CLONING = "weights_path_without_voice_cloning"


@dataclass(frozen=True)
class PocketConfig(CalmConfig):
    """Sizes and habits of one checkpoint, and the names of its files."""

    tokenizer: str
    encoder: LayerConfig
    encoder_seanet: SeanetConfig
    weights: str
    weights_without_cloning: str | None


def parse(data: object, file: str) -> PocketConfig:
    """The whole description. CheckpointError names a field that is missing, malformed or not
    supported."""
    top = ConfigReader(data, file)
    lm = top.section("flow_lm")
    mimi = top.section("mimi")
    flow = lm.section("flow")
    table = lm.section("lookup_table")
    for name, expected in (("sample_rate", RATE), ("channels", 1)):
        if mimi.integer(name) != expected:
            raise mimi.error(name, f"must be {expected}, got {mimi.data[name]!r}")
    quantizer = mimi.section("quantizer")
    backbone = _backbone(lm.section("transformer"))
    latent = quantizer.integer("dimension")
    head = HeadConfig(
        flow=flow.choice("type", FLOWS, LSD),
        width=flow.integer("dim"),
        depth=flow.integer("depth"),
        condition=lm.integer("z_dim", backbone.hidden),
        latent=latent,
    )
    return PocketConfig(
        backbone=backbone,
        vocab=table.integer("n_bins"),
        text_rank=table.integer("rank", 0, low=0),
        tokenizer=table.text("tokenizer_path"),
        head=head,
        projects_condition=lm.data.get("z_dim") is not None,
        voice=mimi.integer("inner_dim", latent),
        voice_bos=lm.flag("insert_bos_before_voice", False),
        encoder=_codec_layers(mimi.section("transformer")),
        encoder_seanet=_seanet(mimi.section("seanet")),
        decoder=_codec_layers(_of_decoder(mimi, "transformer")),
        decoder_seanet=_seanet(_of_decoder(mimi, "seanet")),
        weights=top.text("weights_path", "model.safetensors"),
        weights_without_cloning=None
        if top.data.get(WITHOUT_CLONING) is None
        else top.text(WITHOUT_CLONING),
        text=TextConfig(
            replace=_characters(top),
            remove_semicolons=top.flag("remove_semicolons", False),
            capitalize=top.flag("capitalize_first_letter", True),
            end_mark=top.flag("append_terminal_punctuation", True),
            pad_short=top.flag("pad_with_spaces_for_short_inputs", False),
        ),
        tail=None if top.data.get(TAIL) is None else top.integer(TAIL),
        temperature=top.number("default_temperature", TEMPERATURE),
        end_threshold=top.number("default_eos_threshold", END_THRESHOLD),
        flow_steps=1,
    )


def _of_decoder(mimi: ConfigReader, name: str) -> ConfigReader:
    """The decoder's own section, or the one that it shares with the encoder."""
    decoder_name = f"decoder_{name}"
    return mimi.section(decoder_name if mimi.data.get(decoder_name) is not None else name)


def _backbone(s: ConfigReader) -> LayerConfig:
    hidden = s.integer("d_model")
    heads = s.integer("num_heads")
    width = s.integer("attn_dim", hidden)
    if width % heads:
        raise s.error("num_heads", f"must divide {width}, got {heads}")
    kv_heads = s.integer("num_kv_heads", heads)
    if heads % kv_heads:
        raise s.error("num_kv_heads", f"must divide num_heads ({heads}), got {kv_heads}")
    _check_theta(s)
    ffn = s.integer("dim_feedforward", hidden * s.integer("hidden_scale", 4))
    return LayerConfig(hidden, heads, kv_heads, width // heads, ffn, s.integer("num_layers"))


def _codec_layers(s: ConfigReader) -> LayerConfig:
    hidden = s.integer("d_model")
    heads = s.integer("num_heads")
    if hidden % heads:
        raise s.error("num_heads", f"must divide d_model ({hidden}), got {heads}")
    if s.integer("input_dimension", hidden) != hidden or s.integers(
        "output_dimensions", (hidden,)
    ) != (hidden,):
        raise s.error(
            "input_dimension",
            "and output_dimensions must be d_model: projections are not supported",
        )
    _check_theta(s)
    ffn = s.integer("dim_feedforward")
    layers = s.integer("num_layers")
    window = s.integer("context", low=2)
    return LayerConfig(hidden, heads, heads, hidden // heads, ffn, layers, window)


def _check_theta(s: ConfigReader) -> None:
    if s.number("max_period", THETA) != THETA:
        raise s.error("max_period", f"must be {THETA:g}, got {s.data['max_period']!r}")


def _seanet(s: ConfigReader) -> SeanetConfig:
    supported: dict[str, Any] = {"channels": 1, "n_residual_layers": 1, "pad_mode": "constant"}
    for name, expected in supported.items():
        if s.data.get(name, expected) != expected:
            raise s.error(name, f"must be {expected}, got {s.data[name]!r}")
    if s.integers("ratios") != RATIOS:
        raise s.error("ratios", f"must be {list(RATIOS)}, got {s.data['ratios']!r}")
    first, residual, last = (
        s.integer(name) for name in ("kernel_size", "residual_kernel_size", "last_kernel_size")
    )
    return SeanetConfig(s.integer("n_filters"), first, residual, last, s.integer("compress"))


def _characters(top: ConfigReader) -> dict[str, str]:
    table = top.table("replace_characters", {})
    if not all(isinstance(k, str) and len(k) == 1 and isinstance(v, str) for k, v in table.items()):
        raise top.error(
            "replace_characters", f"must map single characters to strings, got {table!r}"
        )
    return table
