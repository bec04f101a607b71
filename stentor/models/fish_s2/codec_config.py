"""Sizes of the codec. The released directory has no configuration for it: they are read off its tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from stentor.layers.transformer import StackConfig
from stentor.models.fish_s2.checkpoint import count, size

WINDOW, ENCODER_WINDOW = 128, 512  # tokens that attention sees, itself included
HEAD_DIM = 64
ROPE_BASE = 10_000.0
EPS = 1e-5


@dataclass(frozen=True)
class CodecConfig:
    """Channels and strides of the modified DAC."""

    encoder_dim: int  # channels after the first convolution, which each block doubles
    encoder_strides: tuple[int, ...]
    decoder_dim: int  # channels before the first up-sampling block, which each block halves
    decoder_strides: tuple[int, ...]
    latent: int
    downsample: tuple[int, ...]  # strides between encoder and quantizer, undone in reverse before the decoder
    encoder_stack: StackConfig  # ends the last encoder block
    pre_stack: StackConfig
    post_stack: StackConfig
    semantic_codes: int
    residual_codes: int
    residual_books: int
    code_dim: int

    @property
    def encoder_hop(self) -> int:
        """Samples per encoder output."""
        return math.prod(self.encoder_strides)

    @property
    def hop(self) -> int:
        """Samples per frame."""
        return self.encoder_hop * math.prod(self.downsample)


def stack_config(hidden: int, ffn: int, layers: int) -> StackConfig:
    """A codec transformer: multi-head (not grouped) attention."""
    heads = hidden // HEAD_DIM
    return StackConfig(hidden, ffn, layers, heads, heads, HEAD_DIM, EPS)


RELEASED = CodecConfig(
    encoder_dim=64,
    encoder_strides=(2, 4, 8, 8),
    decoder_dim=1536,
    decoder_strides=(8, 8, 4, 2),
    latent=1024,
    downsample=(2, 2),
    encoder_stack=stack_config(1024, 3072, 4),
    pre_stack=stack_config(1024, 3072, 8),
    post_stack=stack_config(1024, 3072, 8),
    semantic_codes=4096,
    residual_codes=1024,
    residual_books=9,
    code_dim=8,
)
"""Sizes of the codec.pth of fishaudio/s2-pro, for random weights."""


def infer(tensors: Mapping[str, Tensor]) -> CodecConfig:
    """Sizes from the shapes of renamed tensors (see checkpoint.codec). CheckpointError names one that is missing or has
    no such size."""
    encoder = _strides(tensors, r"encoder\.block\.(\d+)\.block\.4\.weight", "encoder.block.{}.block.4.weight")
    decoder = _strides(tensors, r"decoder\.model\.(\d+)\.block\.1\.weight", "decoder.model.{}.block.1.weight")
    merges = count(tensors, r"quantizer\.downsample\.(\d+)\.")
    semantic, residual = "quantizer.semantic_quantizer.quantizers", "quantizer.quantizer.quantizers"
    return CodecConfig(
        encoder_dim=size(tensors, "encoder.block.0.weight", 0),
        encoder_strides=encoder,
        decoder_dim=size(tensors, "decoder.model.0.weight", 0),
        decoder_strides=decoder,
        latent=size(tensors, "decoder.model.0.weight", 1),
        downsample=tuple(size(tensors, f"quantizer.downsample.{i}.0.weight", 2) for i in range(merges)),
        encoder_stack=_stack(tensors, f"encoder.block.{len(encoder)}.block.5"),
        pre_stack=_stack(tensors, "quantizer.pre_module"),
        post_stack=_stack(tensors, "quantizer.post_module"),
        semantic_codes=size(tensors, f"{semantic}.0.codebook.weight", 0),
        residual_codes=size(tensors, f"{residual}.0.codebook.weight", 0),
        residual_books=count(tensors, re.escape(residual) + r"\.(\d+)\."),
        code_dim=size(tensors, f"{semantic}.0.codebook.weight", 1),
    )


def _strides(tensors: Mapping[str, Tensor], pattern: str, name: str) -> tuple[int, ...]:
    """Strides of consecutive blocks, numbered from 1: the kernel of a strided convolution is twice its stride."""
    blocks = count(tensors, pattern, first=1)
    return tuple(size(tensors, name.format(i), 2, least=2) // 2 for i in range(1, blocks + 1))


def _stack(tensors: Mapping[str, Tensor], prefix: str) -> StackConfig:
    layers = count(tensors, re.escape(prefix) + r"\.layers\.(\d+)\.")
    hidden = size(tensors, f"{prefix}.norm.weight", 0)
    return stack_config(hidden, size(tensors, f"{prefix}.layers.0.mlp.gate_proj.weight", 0), layers)
