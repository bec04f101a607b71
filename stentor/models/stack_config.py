"""Sizes of a Llama-like stack, as its config.json names them."""

from __future__ import annotations

from typing import Any

from stentor.layers.configs import StackConfig
from stentor.models.config_reader import ConfigReader


def even_heads(r: ConfigReader) -> int:
    """The size of a head where heads share the width."""
    return r.integer("hidden_size") // r.count("num_attention_heads")


def read_stack(r: ConfigReader, eps: float, head_dim: int, **own: Any) -> StackConfig:
    """Sizes under Hugging Face's names. own: further fields of StackConfig."""
    return StackConfig(
        hidden=r.integer("hidden_size"),
        ffn=r.integer("intermediate_size"),
        layers=r.count("num_hidden_layers"),
        heads=r.count("num_attention_heads"),
        kv_heads=r.count("num_key_value_heads"),
        head_dim=head_dim,
        eps=eps,
        **own,
    )
