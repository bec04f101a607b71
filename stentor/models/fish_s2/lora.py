"""LoRA weights of Fish S2 as PEFT writes them, under the names of stentor's modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from stentor.layers.configs import StackConfig
from stentor.models.fish_s2.checkpoint import module_name
from stentor.models.fish_s2.config import LanguageConfig
from stentor.models.lora import LoraWeights
from stentor.models.lora_files import read_peft

FUSED = "self_attn.wqkv"


def serves_adapters(name: str) -> bool:
    """Whether a request's adapter may change this layer: those of the slow transformer's blocks."""
    return name.startswith("slow.layers.")


def reader(c: LanguageConfig) -> Callable[[Path], LoraWeights]:
    """Reads a folder of PEFT. Its tensors name layers as the checkpoint's shards do."""

    def read(path: Path) -> LoraWeights:
        weights = read_peft(path)
        pairs: dict[str, tuple[Tensor, Tensor]] = {}
        in_file: dict[str, str] = {}
        for layer, pair in weights.pairs.items():
            name = (
                module_name(f"{layer}.weight")
                .removesuffix(".weight")
                .replace("attention.wqkv", FUSED)
            )
            parts = _split(name, pair, c.fast if name.startswith("fast.") else c.slow)
            pairs |= parts
            in_file |= dict.fromkeys(parts, layer)
        return replace(weights, pairs=pairs, in_file=in_file)

    return read


def _split(
    name: str, pair: tuple[Tensor, Tensor], c: StackConfig
) -> dict[str, tuple[Tensor, Tensor]]:
    """The parts of a fused layer: outputs are those of q, k and v in this order, and they share
    their A."""
    if not name.endswith(FUSED):
        return {name: pair}
    a, b = pair
    queries = c.heads * c.head_dim
    keys = c.kv_heads * c.head_dim
    rows = b[:queries], b[queries : queries + keys], b[queries + keys :]
    stem = name.removesuffix("wqkv")
    return {
        f"{stem}{part}_proj": (a, part_rows) for part, part_rows in zip("qkv", rows, strict=True)
    }
