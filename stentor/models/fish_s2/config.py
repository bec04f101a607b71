"""config.json of a released directory as typed sizes (specs/fish_s2 1.1, 1.2 and 2.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.errors import CheckpointError
from stentor.layers.transformer import StackConfig

RELEASED: Mapping[str, Any] = {
    "semantic_start_token_id": 151678,
    "semantic_end_token_id": 155773,
    "eos_token_id": 151645,
    "text_config": {
        "dim": 2560,
        "n_head": 32,
        "n_local_heads": 8,
        "head_dim": 128,
        "n_layer": 36,
        "intermediate_size": 9728,
        "rope_base": 1_000_000,
        "norm_eps": 1e-6,
        "vocab_size": 155_776,
        "max_seq_len": 32_768,
        "attention_qk_norm": True,
    },
    "audio_decoder_config": {
        "dim": 2560,
        "n_head": 32,
        "n_local_heads": 8,
        "head_dim": 128,
        "n_layer": 4,
        "intermediate_size": 9728,
        "vocab_size": 4096,
        "num_codebooks": 10,
        "attention_qk_norm": False,
    },
}
"""What matters of fishaudio/s2-pro's config.json."""


@dataclass(frozen=True)
class LanguageConfig:
    """Sizes of the slow transformer, one position per frame, and of the fast one, one position per code."""

    slow: StackConfig
    fast: StackConfig
    rope_base: float
    vocab: int
    codes: int  # rows per codebook table, of which residual books use fewer
    books: int
    max_model_len: int


def parse(config: Mapping[str, Any]) -> LanguageConfig:
    """CheckpointError names the key that is missing or says something this family is not."""
    text, audio = _section(config, "text_config"), _section(config, "audio_decoder_config")
    for name, part in (("text_config", text), ("audio_decoder_config", audio)):
        for flag in ("attention_qkv_bias", "attention_o_bias", "use_moe"):
            if part.get(flag, False):
                raise CheckpointError(f"config.json: {name}.{flag} is set; this family has none")
    slow = _stack(text, "text_config", float(_number(text, "text_config", "norm_eps")))
    fast = _stack(audio, "audio_decoder_config", slow.eps)  # the reference takes eps and base from text_config
    if slow.hidden != fast.hidden:
        raise CheckpointError(f"config.json: audio_decoder_config.dim {fast.hidden} differs from text_config.dim")
    return LanguageConfig(
        slow=slow,
        fast=fast,
        rope_base=float(_number(text, "text_config", "rope_base")),
        vocab=int(_number(text, "text_config", "vocab_size")),
        codes=int(_number(audio, "audio_decoder_config", "vocab_size")),
        books=int(_number(audio, "audio_decoder_config", "num_codebooks")),
        max_model_len=int(_number(text, "text_config", "max_seq_len")),
    )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    if not isinstance(part, Mapping):
        raise CheckpointError(f"config.json: {name} is missing or not an object")
    return part


def _number(part: Mapping[str, Any], section: str, key: str) -> float | int:
    value = part.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise CheckpointError(f"config.json: {section}.{key} must be a positive number, got {value!r}")
    return value


def _stack(part: Mapping[str, Any], section: str, eps: float) -> StackConfig:
    def size(key: str) -> int:
        return int(_number(part, section, key))

    return StackConfig(
        hidden=size("dim"),
        ffn=size("intermediate_size"),
        layers=size("n_layer"),
        heads=size("n_head"),
        kv_heads=size("n_local_heads"),
        head_dim=size("head_dim"),
        eps=eps,
        qk_norm=bool(part.get("attention_qk_norm", False)),
        qk_late_weight=False,
    )
