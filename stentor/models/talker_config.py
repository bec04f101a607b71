"""Parts of config.json of models that speak in frames of codes while they read text
(frame_talker.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.layers.configs import FrameDecoderConfig, StackConfig
from stentor.models.config_reader import ConfigReader


@dataclass(frozen=True)
class TransformerConfig:
    """A decoder stack with its vocabulary and RoPE."""

    stack: StackConfig
    vocab: int
    theta: float
    positions: int


@dataclass(frozen=True)
class Ids:
    """Special ids: text side (`tts_*`), codec side (the rest)."""

    tts_pad: int
    tts_bos: int
    tts_eos: int
    pad: int
    bos: int
    eos: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class TalkerConfig:
    """config.json of a frame talker, as far as all of them have it."""

    talker: TransformerConfig
    predictor: TransformerConfig
    text_vocab: int
    text_hidden: int
    codebooks: int
    ids: Ids
    speakers: Mapping[str, int]  # in lower case


def read_frame_decoder(
    r: ConfigReader, stack: StackConfig, theta: float, latent: int, **own: Any
) -> FrameDecoderConfig:
    """Sizes of a codec's decoder. own: further fields of FrameDecoderConfig."""
    return FrameDecoderConfig(
        stack=stack,
        theta=theta,
        window=r.integer("sliding_window"),
        latent=latent,
        codebook_size=r.integer("codebook_size"),
        codebooks=r.count("num_quantizers"),
        width=r.integer("decoder_dim"),
        rates=r.integers("upsample_rates"),
        ratios=r.integers("upsampling_ratios"),
        **own,
    )


def read_ids(top: ConfigReader, talker: ConfigReader) -> Ids:
    """Special ids, of which those of the text stand at the top of config.json."""
    return Ids(
        *(top.integer(f"tts_{name}_token_id", low=0) for name in ("pad", "bos", "eos")),
        *(talker.integer(f"codec_{name}", low=0) for name in ("pad_id", "bos_id", "eos_token_id")),
        *(
            talker.integer(f"codec_{name}_id", low=0)
            for name in ("nothink", "think_bos", "think_eos")
        ),
    )


def read_numbers(names: ConfigReader) -> dict[str, int]:
    """Token ids by their names in lower case."""
    return {name.lower(): names.integer(name, low=0) for name in names.data}
