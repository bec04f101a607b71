"""config.json and generation_config.json as frozen dataclasses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stentor.layers.configs import StackConfig
from stentor.layers.rope import Rope, angles
from stentor.models.config_reader import ConfigReader

THETA, CODEC_THETA = 500000.0, 10000.0


@dataclass(frozen=True)
class RopeConfig:
    """Frequencies of a rotary embedding. factor 1: those of theta. Otherwise they are scaled as in Llama 3.1."""

    theta: float
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def rope(self, dim: int, positions: int, dtype: torch.dtype) -> Rope:
        """Tables for heads of `dim` numbers."""
        table = angles(dim, positions, self.theta)
        if self.factor != 1.0:
            table = torch.outer(torch.arange(positions, dtype=torch.float32), self._scaled(dim))
        return Rope(table, dtype, interleaved=False, in_float32=False)

    def _scaled(self, dim: int) -> Tensor:
        """Frequencies [dim / 2]: long waves are stretched by `factor`, short ones are kept, those between are mixed."""
        plain = 1.0 / (self.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
        turns = self.original * plain / (2 * math.pi)
        mix = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - mix) * plain / self.factor + mix * plain


@dataclass(frozen=True)
class MimiConfig:
    """The codec."""

    stack: StackConfig
    rope: RopeConfig
    sample_rate: int
    window: int
    filters: int
    kernel: int
    last_kernel: int
    residual_kernel: int
    growth: int
    compress: int
    ratios: tuple[int, ...]
    codebook_size: int
    codebook_dim: int
    quantizer_dim: int
    quantizers: int
    stride: int  # frames of the transformers for one of the codes

    @property
    def hop(self) -> int:
        return math.prod(self.ratios) * self.stride


@dataclass(frozen=True)
class Config:
    """A checkpoint."""

    backbone: StackConfig
    rope: RopeConfig
    depth: StackConfig
    depth_rope: RopeConfig
    codebooks: int
    vocab: int  # ids of one codebook, special ones among them
    text_vocab: int
    eos: int  # code of the frame that ends audio
    positions: int
    codec: MimiConfig


def _rope(r: ConfigReader, theta: float) -> RopeConfig:
    """`rope_parameters`, or `rope_theta` and `rope_scaling` of older files."""
    own = r.data.get("rope_parameters") or {
        "rope_theta": r.number("rope_theta", theta),
        **(r.data.get("rope_scaling") or {}),
    }
    s = ConfigReader(own, r.file, "rope_parameters")
    kind = s.text("rope_type", "default")
    if kind == "default":
        return RopeConfig(s.number("rope_theta", theta))
    if kind != "llama3":
        raise s.error("rope_type", f"must be default or llama3, got {kind!r}")
    return RopeConfig(
        s.number("rope_theta", theta),
        s.number("factor", above=0),
        s.number("low_freq_factor", above=0),
        s.number("high_freq_factor", above=0),
        s.integer("original_max_position_embeddings"),
    )


def _stack(r: ConfigReader, eps: str = "rms_norm_eps") -> StackConfig:
    hidden, heads = r.integer("hidden_size"), r.integer("num_attention_heads")
    for key in ("attention_bias", "mlp_bias"):
        if r.flag(key, False):
            raise r.error(key, "must be false")
    return StackConfig(
        hidden=hidden,
        ffn=r.integer("intermediate_size"),
        layers=r.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=r.integer("num_key_value_heads", heads),
        head_dim=r.integer("head_dim", hidden // heads),
        eps=r.number(eps, 1e-5, above=0),
    )


def _codec(r: ConfigReader) -> MimiConfig:
    ratios = r.integers("upsampling_ratios", (8, 6, 5, 4))
    rate = r.integer("sampling_rate", 24000)
    for key, usual in (
        ("num_residual_layers", 1),
        ("num_semantic_quantizers", 1),
        ("audio_channels", 1),
    ):
        if (found := r.integer(key, usual)) != usual:
            raise r.error(key, f"must be {usual}, got {found}")
    if not r.flag("use_causal_conv", True) or r.flag("use_conv_shortcut", False):
        raise r.error("use_causal_conv", "and no use_conv_shortcut are what this codec has")
    return MimiConfig(
        stack=_stack(r, "norm_eps"),
        rope=_rope(r, CODEC_THETA),
        sample_rate=rate,
        window=r.integer("sliding_window", 250),
        filters=r.integer("num_filters", 64),
        kernel=r.integer("kernel_size", 7),
        last_kernel=r.integer("last_kernel_size", 3),
        residual_kernel=r.integer("residual_kernel_size", 3),
        growth=r.integer("dilation_growth_rate", 2),
        compress=r.integer("compress", 2),
        ratios=ratios,
        codebook_size=r.integer("codebook_size", 2048),
        codebook_dim=r.integer("codebook_dim", 256),
        quantizer_dim=r.integer("vector_quantization_hidden_dimension", 256),
        quantizers=r.integer("num_quantizers", 32),
        stride=2,
    )


def parse(raw: Mapping[str, Any], where: str) -> Config:
    """config.json. CheckpointError names a key that is missing or wrong."""
    r = ConfigReader(raw, where)
    depth, codec = r.section("depth_decoder_config"), _codec(r.section("codec_config"))
    codebooks = r.integer("num_codebooks", 32)
    if codebooks > codec.quantizers:
        raise r.error("num_codebooks", f"is {codebooks}, and the codec has {codec.quantizers}")
    return Config(
        backbone=_stack(r),
        rope=_rope(r, THETA),
        depth=_stack(depth),
        depth_rope=_rope(depth, THETA),
        codebooks=codebooks,
        vocab=r.integer("vocab_size", 2051),
        text_vocab=r.integer("text_vocab_size", 128256),
        eos=r.integer("codebook_eos_token_id", 0, low=0),
        positions=r.integer("max_position_embeddings", 2048),
        codec=codec,
    )
