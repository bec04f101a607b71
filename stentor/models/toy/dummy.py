"""`dummy:toy`, toys with other codecs, and one that says when it speaks a word. All are of seed 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.models.load_options import check_load_options
from stentor.models.toy.codec import ToyCodec
from stentor.models.toy.lookahead_codec import LookaheadCodec, WholeCodec
from stentor.models.toy.model import Toy

CODECS: Mapping[str, type[ToyCodec | LookaheadCodec]] = {
    "toy": ToyCodec,
    "toy-lookahead": LookaheadCodec,
    "toy-whole": WholeCodec,
    "toy-words": ToyCodec,
}


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> Toy:
    """The dummy `name`. `dtype` None: float32."""
    check_load_options(options, ())
    return Toy(0, dtype or torch.float32, device, CODECS[name], words=name == "toy-words")
