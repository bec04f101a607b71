"""Sizes that continuous audio language models have in common (CALM, arXiv 2509.06926).

One vector of a transformer becomes a latent by a small head, and a causal codec makes 80 ms of
audio of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HOP = 1920
RATE = 24_000
FRAMES_PER_SECOND = 12.5
RATIOS = (6, 5, 4)
UPSAMPLING = 16
"""Steps of the codec's transformer per frame."""
THETA = 10_000.0
LSD = "lsd"
FLOWS = (LSD, "drifting", "pointwise")
MAX_STEPS = 16
"""Evaluations of an LSD head at most."""


@dataclass(frozen=True)
class LayerConfig:
    """Sizes of a transformer stack. window: positions that a token sees, itself among them. 0: all
    before it. exact_gelu: GELU by the error function instead of its tanh formula."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    layers: int
    window: int = 0
    exact_gelu: bool = False


@dataclass(frozen=True)
class SeanetConfig:
    """Convolutions between samples and steps of 200 Hz."""

    filters: int
    kernel: int
    residual_kernel: int
    last_kernel: int
    compress: int


@dataclass(frozen=True)
class HeadConfig:
    """Sizes of the head. condition: width of the vector that it makes a latent of. rms_times:
    embeddings of times are divided by their root mean square instead of their deviation."""

    flow: str  # one of FLOWS
    width: int
    depth: int
    condition: int
    latent: int
    rms_times: bool = False


@dataclass(frozen=True)
class TextConfig:
    """How a text is prepared (calm_text.py)."""

    replace: Mapping[str, str]
    remove_semicolons: bool
    capitalize: bool
    end_mark: bool
    pad_short: bool


@dataclass(frozen=True)
class CalmConfig:
    """Sizes and habits of one checkpoint."""

    backbone: LayerConfig
    head: HeadConfig
    vocab: int  # ids of text. The table of embeddings has one more
    # width of the embedding table, which a projection widens. 0: it is as wide as the model
    text_rank: int
    projects_condition: bool  # whether a projection stands between the backbone and the head
    voice: int  # numbers of a latent of a voice
    voice_bos: bool  # whether a vector of its own stands before a voice
    decoder: LayerConfig
    decoder_seanet: SeanetConfig
    text: TextConfig
    tail: int | None  # frames from the one that ends speech on. None: by the length of the text
    temperature: float
    end_threshold: float
    flow_steps: int  # evaluations of an LSD head per frame

    @property
    def latent(self) -> int:
        """Numbers of a frame."""
        return self.head.latent
