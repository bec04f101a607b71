"""Shapes of layers, as readers of configurations make them. Nothing that computes is imported."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod


@dataclass(frozen=True)
class ExpertsConfig:
    """`count` experts of width `ffn`, of which a token takes `chosen`. normalised: their weights
    add up to 1.

    shared: width of the SwiGLU that all tokens take.
    """

    count: int
    chosen: int
    ffn: int
    shared: int
    normalised: bool


@dataclass(frozen=True)
class StackConfig:
    """Shape of one transformer stack."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    qk_norm: bool = False
    qk_weight_after_cast: bool = True  # rounding order of the q/k norms, see RMSNorm
    qkv_bias: bool = False  # of the projections of q, k and v, as in Qwen2
    experts: ExpertsConfig | None = None  # in place of one SwiGLU of width `ffn`


@dataclass(frozen=True, kw_only=True)
class FrameDecoderConfig:
    """Shape of a decoder."""

    stack: StackConfig
    theta: float
    window: int
    latent: int
    codebook_dim: int = 0  # width of what the codebooks give, where it is not `latent`
    codebook_size: int
    codebooks: int
    width: int  # channels before the first up-sampling block
    rates: tuple[int, ...]
    ratios: tuple[int, ...]
    trims_both: bool = False  # transposed convolutions lose as many outputs in front as behind

    @property
    def hop(self) -> int:
        """Samples per frame."""
        return prod(self.rates) * prod(self.ratios)

    @property
    def lags(self) -> tuple[int, ...]:
        """Steps in front of an utterance that do not exist, before each block and after the last,
        at its rate.

        A transposed convolution with kernel 2 * rate that is trimmed on both ends drops its first
        `rate` outputs.
        """
        if not self.trims_both:
            return (0,) * (len(self.rates) + 1)
        return tuple(accumulate(self.rates, lambda lag, rate: (lag + 1) * rate, initial=0))

    @property
    def skip(self) -> int:
        """First samples of an utterance that do not exist."""
        return self.lags[-1]
