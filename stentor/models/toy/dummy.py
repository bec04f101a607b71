"""`dummy:toy`, toys with other codecs, two that say when they speak a word, and one with page sets by frame. All are of
seed 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stentor.models.load_options import check_load_options
from stentor.models.toy.codec import LateCodec, ToyCodec
from stentor.models.toy.frames import FramesToy
from stentor.models.toy.lookahead_codec import LookaheadCodec, WholeCodec
from stentor.models.toy.model import Toy

CODECS: Mapping[str, type[ToyCodec | LookaheadCodec]] = {
    "toy": ToyCodec,
    "toy-lookahead": LookaheadCodec,
    "toy-whole": WholeCodec,
    "toy-words": ToyCodec,
    "toy-window": ToyCodec,
    "toy-frames": LateCodec,
}
WINDOW = (1, 3)
"""Text that `toy-window` sees behind and ahead of the last frame's place."""


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> Toy:
    """The dummy `name`. `dtype` None: float32."""
    check_load_options(options, ())
    words, window = name in ("toy-words", "toy-window"), WINDOW if name == "toy-window" else None
    kind = FramesToy if name == "toy-frames" else Toy
    return kind(0, dtype or torch.float32, device, CODECS[name], words, window)
