"""config.json of a released directory as typed sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.layers.configs import StackConfig
from stentor.models.config_reader import ConfigReader


@dataclass(frozen=True)
class LanguageConfig:
    """Sizes of the slow transformer, one position per frame, and of the fast one, one position per
    code."""

    slow: StackConfig
    fast: StackConfig
    rope_base: float
    vocab: int
    codes: int  # rows per codebook table, of which residual books use fewer
    books: int
    max_model_len: int


def parse(config: Mapping[str, Any]) -> LanguageConfig:
    """CheckpointError names a key that is missing or does not fit this family."""
    top = ConfigReader(config)
    text = top.section("text_config")
    audio = top.section("audio_decoder_config")
    for part in (text, audio):
        for flag in ("attention_qkv_bias", "attention_o_bias", "use_moe"):
            if part.flag(flag, False):
                raise part.error(flag, "is set; this family has none")
    slow = _stack(text, text.number("norm_eps", above=0))
    fast = _stack(audio, slow.eps)  # the reference takes eps and base from text_config
    if slow.hidden != fast.hidden:
        raise audio.error("dim", f"{fast.hidden} differs from text_config.dim {slow.hidden}")
    return LanguageConfig(
        slow=slow,
        fast=fast,
        rope_base=text.number("rope_base", above=0),
        vocab=text.integer("vocab_size"),
        codes=audio.integer("vocab_size"),
        books=audio.count("num_codebooks"),
        max_model_len=text.integer("max_seq_len"),
    )


def _stack(part: ConfigReader, eps: float) -> StackConfig:
    return StackConfig(
        hidden=part.integer("dim"),
        ffn=part.integer("intermediate_size"),
        layers=part.count("n_layer"),
        heads=part.count("n_head"),
        kv_heads=part.count("n_local_heads"),
        head_dim=part.count("head_dim"),
        eps=eps,
        qk_norm=part.flag("attention_qk_norm", False),
        qk_weight_after_cast=False,
    )
