"""Random weights and token ids for models without files."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping

import torch
from torch import nn

from stentor.layers.linear import QuantizedLinear
from stentor.layers.quantized import LARGEST

UNIT_GAIN = math.sqrt(3)
"""A uniform weight within sqrt(3 / fan in) has the variance 1 / fan in and keeps activations at
unit size."""

_OWN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # characters that are tokens by themselves
_TOKENS = re.compile(rf"[{_OWN}]| ?[^\W\d_{_OWN}]+|\d|[^\w\s]+|[\s_]+")
_FIRST = 1024  # below, vocabularies may have ids of their own


def dummy_tokens(text: str, vocab: int) -> list[int]:
    """One id per word, digit or mark, so that prompts are about as long as real ones.

    Ids are below `vocab`, and at least 1,024 where `vocab` is larger. The same word always has the
    same id.
    """
    first = min(_FIRST, vocab // 2)
    return [first + zlib.crc32(word.encode()) % (vocab - first) for word in dummy_words(text)]


def dummy_words(text: str) -> list[str]:
    """The words, digits and marks of a text, with the spaces before them."""
    return _TOKENS.findall(text)


class DummyTokenizer:
    """Tokenizer of a model without files: the ids of special tokens, and one id for each word
    between them."""

    def __init__(self, words: int, special: Mapping[str, int]) -> None:
        """words: ids that words may have (`dummy_tokens`). special: at least one."""
        self._words = words
        self._special = special
        self._marks = re.compile("(" + "|".join(re.escape(name) for name in special) + ")")

    def encode(self, text: str) -> list[int]:
        parts = (
            [self._special[part]] if part in self._special else dummy_tokens(part, self._words)
            for part in self._marks.split(text)
        )
        return [token for part in parts for token in part]


@torch.no_grad()
def random_init(
    module: nn.Module, seed: int, gain: float = 1.0, constants: Mapping[str, float] | None = None
) -> None:
    """Fill every parameter in place on its own device, reproducibly from `seed`.

    Gains (of norms, Snake activations and rate scales) are ones and biases are zeros. Batch norms
    have a mean of zero and a variance of one. Other weights are uniform within gain / sqrt(fan in).
    A gain of 1 is torch's default. `constants` maps values of parameters by the last parts of
    their names, before these rules.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for layer in module.modules():
        if isinstance(layer, QuantizedLinear):
            layer.weight_scale.fill_(
                gain / math.sqrt(layer.in_features) / LARGEST[layer.weight.dtype]
            )
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.reset_running_stats()
    for name, p in module.named_parameters():
        if name.endswith("weight_scale"):
            continue
        if p.device not in generators:
            generators[p.device] = torch.Generator(p.device).manual_seed(seed)
        fixed = _constant(name, p.ndim, constants or {})
        if fixed is not None:
            p.fill_(fixed)
        else:
            bound = LARGEST.get(p.dtype, gain / math.sqrt(p[0].numel()))
            if p.dtype in LARGEST:
                drawn = torch.empty_like(p, dtype=torch.float32)
            else:
                drawn = p
            drawn.uniform_(-bound, bound, generator=generators[p.device])
            if drawn is not p:
                p.copy_(drawn)


def _constant(name: str, ndim: int, constants: Mapping[str, float]) -> float | None:
    """The value of a parameter that is not drawn."""
    for parts, value in constants.items():
        if f".{name}".endswith(f".{parts}"):
            return value
    leaf = name.rpartition(".")[2]
    if leaf == "alpha" or name.endswith("scale_embed.weight") or (ndim == 1 and leaf == "weight"):
        return 1.0
    if ndim == 1 or name.endswith("bias_embed.weight"):
        return 0.0
    return None


def initialize_dummy_weights(
    module: nn.Module,
    device: torch.device,
    seed: int,
    gain: float = UNIT_GAIN,
    constants: Mapping[str, float] | None = None,
) -> None:
    """Allocate the weights of a module on the meta device on `device`, and draw them
    (`random_init`)."""
    empty = {name: torch.empty_like(w, device=device) for name, w in module.state_dict().items()}
    module.load_state_dict(empty, assign=True)
    random_init(module, seed, gain, constants)
