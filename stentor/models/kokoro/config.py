"""config.json of Kokoro, checked once and turned into plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stentor.models.config_reader import ConfigReader

EMBEDDING = 128  # of the language model's words


@dataclass(frozen=True)
class BertConfig:
    """Sizes of the language model, an ALBERT: one layer, `layers` times."""

    hidden: int
    heads: int
    ffn: int
    positions: int
    layers: int


@dataclass(frozen=True)
class GeneratorConfig:
    """Sizes of the vocoder. fft, hop: of its inverse transform."""

    channels: int
    rates: tuple[int, ...]
    kernels: tuple[int, ...]
    block_kernels: tuple[int, ...]
    dilations: tuple[tuple[int, ...], ...]
    fft: int
    hop: int

    @property
    def upsampling(self) -> int:
        """Samples per step of the pitch."""
        steps = self.hop
        for rate in self.rates:
            steps *= rate
        return steps


@dataclass(frozen=True)
class KokoroConfig:
    """Sizes of a checkpoint. style: half of a style's numbers."""

    tokens: int
    hidden: int
    style: int
    layers: int
    max_duration: int
    text_kernel: int
    bert: BertConfig
    generator: GeneratorConfig


def parse(config: Mapping[str, Any], file: str = "config.json") -> KokoroConfig:
    """Read the sizes. CheckpointError names a key that is missing or wrong."""
    reader = ConfigReader(config, file)
    bert = reader.section("plbert")
    net = reader.section("istftnet")
    return KokoroConfig(
        tokens=reader.integer("n_token"),
        hidden=reader.integer("hidden_dim"),
        style=reader.integer("style_dim"),
        layers=reader.count("n_layer"),
        max_duration=reader.integer("max_dur"),
        text_kernel=reader.integer("text_encoder_kernel_size"),
        bert=BertConfig(
            hidden=bert.integer("hidden_size"),
            heads=bert.count("num_attention_heads"),
            ffn=bert.integer("intermediate_size"),
            positions=bert.integer("max_position_embeddings"),
            layers=bert.count("num_hidden_layers"),
        ),
        generator=GeneratorConfig(
            channels=net.integer("upsample_initial_channel"),
            rates=net.integers("upsample_rates"),
            kernels=net.integers("upsample_kernel_sizes"),
            block_kernels=net.integers("resblock_kernel_sizes"),
            dilations=_dilations(net),
            fft=net.integer("gen_istft_n_fft"),
            hop=net.integer("gen_istft_hop_size"),
        ),
    )


def _dilations(net: ConfigReader) -> tuple[tuple[int, ...], ...]:
    rows = net.data.get("resblock_dilation_sizes")
    sizes = net.integers("resblock_kernel_sizes")
    if not isinstance(rows, list) or len(rows) != len(sizes):
        raise net.error("resblock_dilation_sizes", f"must be a list of {len(sizes)} lists")
    parsed = []
    for row in rows:
        parsed.append(ConfigReader({"row": row}, net.file).integers("row"))
    return tuple(parsed)
